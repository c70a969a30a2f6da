/** The soak's checker of what is kept, on facts made by hand: it has to see what is wrong, and nothing else. */
import { describe, expect, test } from 'vitest'
import { checkKept, type KeptEffect, type KeptFacts } from '../../scripts/soak/check-kept.ts'
import type { Acted, Entry } from '../../scripts/soak/history.ts'

const RETENTION_MS = 1_000_000
const FROM = 5_000_000
const TO = 6_000_000

const told: readonly Entry[] = [
  { kind: 'asked', at: 1, call: 1, key: 'a', route: 'charge', payload: 'p' },
  { kind: 'answered', at: 2, call: 1, told: 'outcome', outcome: 'ch_1', status: 201 },
]
const outcome = { key: 'a', createdAt: FROM + 10, expiresAt: FROM + 20 + RETENTION_MS }
const effect: KeptEffect = { reference: 'a', state: 'done', charge: 'ch_1', settled: true }
const acted = (reason: string, as: Acted['told']): Acted => ({ kind: 'acted', at: 3, reason, told: as })
const row = (reason: string) => ({ actor: 'soak', act: 'operation.redrive', reason })

const facts = (more: Partial<KeptFacts> = {}): KeptFacts => ({
  outcomes: [outcome],
  effects: [effect],
  charges: new Map([['a', ['ch_1']]]),
  unmarked: [],
  from: FROM,
  to: TO,
  retentionMs: RETENTION_MS,
  deadly: { state: 'parked', claims: 3, claimsMax: 3 },
  audit: [],
  ...more,
})

describe('nothing is wrong with', () => {
  test.each<readonly [string, readonly Entry[], KeptFacts]>([
    ['an outcome that is kept, with the charge that was made', told, facts()],
    [
      'an effect that is unknown, as long as its operation is open',
      told,
      facts({ effects: [{ ...effect, state: 'unknown', settled: false }] }),
    ],
    ['an act and its row', [...told, acted('x', 'done')], facts({ audit: [row('x')] })],
    ['an act without an answer that has happened', [...told, acted('x', 'open')], facts({ audit: [row('x')] })],
    ['an act without an answer that has not happened', [...told, acted('x', 'open')], facts()],
    ['an act that was refused', [...told, acted('x', 'refused')], facts()],
  ])('%s', (_what, history, found) => {
    expect(checkKept(history, found)).toEqual([])
  })
})

describe('it sees', () => {
  test.each<readonly [string, string, readonly Entry[], Partial<KeptFacts>]>([
    ['I11', 'an unknown effect under an outcome', told, { effects: [{ ...effect, state: 'unknown' }] }],
    ['I11', 'an effect that was only intended under an outcome', told, { effects: [{ ...effect, state: 'intended' }] }],
    ['I11', 'an outcome with a charge that the provider has not made', told, { charges: new Map([['a', ['ch_2']]]) }],
    ['I13', 'an outcome whose record is gone', told, { outcomes: [] }],
    ['I13', 'a message whose mark is gone', told, { unmarked: ['message 1'] }],
    ['I14', 'a record that is dated by a clock that is fast', told, { outcomes: [{ ...outcome, createdAt: TO + 1 }] }],
    [
      'I14',
      'a record that is dated by a clock that is slow',
      told,
      { outcomes: [{ ...outcome, createdAt: FROM - 1 }] },
    ],
    [
      'I14',
      'a record that is kept by a clock that is slow',
      told,
      { outcomes: [{ ...outcome, expiresAt: FROM + RETENTION_MS - 1 }] },
    ],
    [
      'I14',
      'a record that is kept by a clock that is fast',
      told,
      { outcomes: [{ ...outcome, expiresAt: TO + RETENTION_MS + 10_001 }] },
    ],
    ['I15', 'what kills its process and goes on', told, { deadly: { state: 'processing', claims: 9, claimsMax: 3 } }],
    ['I15', 'what was set aside too late', told, { deadly: { state: 'parked', claims: 4, claimsMax: 3 } }],
    ['I15', 'what was set aside too early', told, { deadly: { state: 'parked', claims: 1, claimsMax: 3 } }],
    ['I16', 'an act without a row', [...told, acted('x', 'done')], {}],
    ['I16', 'an act with two rows', [...told, acted('x', 'done')], { audit: [row('x'), row('x')] }],
    ['I16', 'a row of an act that was refused', [...told, acted('x', 'refused')], { audit: [row('x')] }],
    ['I16', 'a row of an act that nobody made', told, { audit: [row('x')] }],
  ])('%s: %s', (guarantee, _what, history, more) => {
    expect(checkKept(history, facts(more)).map((violation) => violation.split(':')[0])).toEqual([guarantee])
  })
})

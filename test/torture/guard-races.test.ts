/**
 * Races between real processes. The controls at the end run wrong variants under the same oracle and must fail it.
 *
 * Set GUARD_ROUNDS and GUARD_KEYS for longer runs.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Guard, openGuard } from '../operation/guard.ts'
import type { GuardAnswer, GuardCommand } from '../processes/guard.ts'
import { type GuardChild, startGuardChild } from './guard-child.ts'

const ROUNDS = Number(process.env['GUARD_ROUNDS'] ?? 200)
const KEYS = Number(process.env['GUARD_KEYS'] ?? 100)

let guard: Guard
let children: GuardChild[]

beforeAll(async () => {
  guard = await openGuard()
  await guard.admin.query('create table naive (key text not null, outcome text not null)')
  children = await Promise.all([
    startGuardChild(guard.url),
    startGuardChild(guard.url, { PIPELINE: '0' }),
    startGuardChild(guard.url),
  ])
})

afterAll(async () => {
  for (const child of children) {
    await child.stop()
    expect(await child.gone).toMatchObject({ code: 0 })
  }
  await guard.close()
})

const named = (name: string, count: number): string[] => Array.from({ length: count }, (_, n) => `${name} ${n}`)

/** Keys whose number of orders is not one, or whose answers do not agree with the order that is there. */
async function wrong(keys: readonly string[], answers: readonly GuardAnswer[]): Promise<readonly string[]> {
  const { rows } = await guard.admin.query(
    'select ref, array_agg(id) as ids from orders where ref = any($1) group by ref',
    [keys],
  )
  const ids = new Map<string, number[]>(rows.map((row) => [row.ref, row.ids]))
  return keys.filter((key) => {
    const [id, ...more] = ids.get(key) ?? []
    const values = answers.filter((answer) => answer.key === key && answer.error === undefined)
    const ran = values.filter((answer) => answer.replayed === false)
    return id === undefined || more.length > 0 || ran.length !== 1 || values.some((answer) => answer.value !== id)
  })
}

/** The barrier: one key at a time is written to all processes in the same turn of the event loop. */
async function rounds(keys: readonly string[], command: Omit<GuardCommand, 'n' | 'keys'>): Promise<GuardAnswer[]> {
  const answers: GuardAnswer[] = []
  for (const key of keys) {
    const all = await Promise.all(children.map((child) => child.ask({ ...command, keys: [key] })))
    answers.push(...all.flat())
  }
  return answers
}

describe('three processes, one key, the same moment', () => {
  test(`R07, I1: losers are told OPERATION_IN_PROGRESS or replay; one effect in each of ${ROUNDS} rounds`, async () => {
    const keys = named('reject', ROUNDS)
    const answers = await rounds(keys, { mode: 'gated' })
    expect(await wrong(keys, answers)).toEqual([])
    const errors = new Set(answers.flatMap((answer) => answer.error ?? []))
    expect([...errors].filter((error) => error !== 'OPERATION_IN_PROGRESS')).toEqual([])
    expect(errors.size).toBe(1)
  }, 60_000)

  test(`R10, I3: losers that wait get the outcome of the winner in each of ${ROUNDS / 4} rounds`, async () => {
    const keys = named('wait', ROUNDS / 4)
    const answers = await rounds(keys, { mode: 'gated', wait: true })
    expect(await wrong(keys, answers)).toEqual([])
    expect(answers.filter((answer) => answer.error !== undefined)).toEqual([])
  }, 60_000)

  test(`R07: without the gate the constraint alone holds, in each of ${ROUNDS / 4} rounds`, async () => {
    for (const mode of ['optimistic', 'statement'] as const) {
      const keys = named(`bare ${mode}`, ROUNDS / 4)
      const answers = await rounds(keys, { mode, persistent: true })
      expect(await wrong(keys, answers)).toEqual([])
      expect(answers.filter((answer) => answer.error !== undefined)).toEqual([])
    }
  }, 60_000)
})

describe('two processes with three callers each, all keys at once', () => {
  const isolations = ['read committed', 'repeatable read', 'serializable'] as const
  const cases = (['gated', 'optimistic', 'statement'] as const).flatMap((mode) =>
    isolations.map((isolation) => [mode, isolation] as const),
  )

  test.each(cases)(
    'I1, SC50: %s at %s: exactly one order and one answer a key',
    async (mode, isolation) => {
      const keys = named(`${mode} ${isolation}`, KEYS)
      let runners = children
      const own: GuardChild[] = []
      if (mode === 'statement') {
        // A statement takes the isolation level of its session.
        const url = new URL(guard.url)
        url.searchParams.set('options', `-c default_transaction_isolation=${isolation.replaceAll(' ', '\\ ')}`)
        own.push(await startGuardChild(url.href), await startGuardChild(url.href, { PIPELINE: '0' }))
        runners = own
      }
      const command = { mode, isolation, keys, callers: 3, wait: true, persistent: true } as const
      const answers = (await Promise.all(runners.slice(0, 2).map((child) => child.ask(command)))).flat()
      for (const child of own) await child.stop()
      expect(answers).toHaveLength(KEYS * 6)
      expect(answers.filter((answer) => answer.error !== undefined)).toEqual([])
      expect(await wrong(keys, answers)).toEqual([])
    },
    60_000,
  )
})

describe('controls: the same oracle finds fault with', () => {
  test('look-up and insert without a lock and without a constraint', async () => {
    const keys = named('naive', 40)
    const answers = await rounds(keys, { mode: 'check-then-insert' })
    expect((await wrong(keys, answers)).length).toBeGreaterThan(0)
  })

  test('look-up in the statement that waits for the lock, without a constraint', async () => {
    const keys = named('one statement', 40)
    const answers = await rounds(keys, { mode: 'lock-and-look-in-one' })
    expect((await wrong(keys, answers)).length).toBeGreaterThan(0)
  })
})

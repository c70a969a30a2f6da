/**
 * Order of one key through the moments where a relay could get it wrong: each is met on purpose, with the reference
 * store and a broker that answers when the test says so.
 */
import { afterEach, expect, test } from 'vitest'
import type { Broker, OutgoingMessage, PublishResult } from '../../src/broker/contract.ts'
import { outboxLimits, toRow } from '../../src/outbox/message.ts'
import { createRelay, type Relay } from '../../src/outbox/relay.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import type { OutboxStore } from '../../src/store/outbox.ts'
import { type MemoryStore, memory } from '../../src/stores/memory/index.ts'
import { meeting, QUICK, until } from './relay-bench.ts'

/** A broker whose answers are given by the test: what arrived, and what waits for an answer. */
function scripted() {
  const arrived: string[] = []
  const waiting: { readonly body: string; readonly answer: (result: PublishResult) => void }[] = []
  let mode: 'confirm' | 'hold' | 'lose' = 'confirm'
  const publish = (message: OutgoingMessage, settled: (result: PublishResult) => void) => {
    const body = String(message.payload)
    if (mode !== 'lose') arrived.push(body)
    if (mode === 'confirm') setImmediate(() => settled({ kind: 'confirmed' }))
    else waiting.push({ body, answer: settled })
  }
  const broker: Broker = {
    name: 'scripted',
    openPublisher: () => ({ state: { kind: 'open' }, publish, ready: async () => {}, close: async () => {} }),
  }
  return {
    broker,
    arrived,
    waiting,
    /** `hold`: messages arrive, answers wait. `lose`: they do not arrive either. */
    set(next: typeof mode) {
      mode = next
    },
    answerAll(result: PublishResult) {
      for (const { answer } of waiting.splice(0)) answer(result)
    },
  }
}

const commit = (store: MemoryStore, ...numbers: number[]) => {
  store.outbox.insert(numbers.map((n) => toRow({ topic: 'a.v1', orderingKey: 'a', payload: n }, outboxLimits())))
  store.outbox.bell.ring()
}

let relay: Relay | undefined
afterEach(() => relay?.stop())

async function start(
  store: OutboxStore,
  options: Partial<RelayOptions> & Pick<RelayOptions, 'broker'>,
): Promise<Relay> {
  relay = createRelay({ ...QUICK, ...options, store })
  await relay.start()
  return relay
}

test('I8: what a lost connection swallowed is sent again before anything that was read ahead', async () => {
  const store = memory()
  const broker = scripted()
  broker.set('lose')
  // The connection is replaced while the relay asks the store, so it is open again before the relay looks.
  const outbox = meeting(store.outbox, 'stoppedKeys', async (call) => {
    if (broker.waiting.length === 2) {
      broker.set('confirm')
      broker.answerAll({ kind: 'disconnected', reason: 'connection reset' })
    }
    return call()
  })
  commit(store, 0, 1, 2, 3, 4, 5)
  await start(outbox, { broker: broker.broker, windowMax: 2 })
  await until('all arrive', () => broker.arrived.length >= 6)
  expect(broker.arrived).toEqual(['0', '1', '2', '3', '4', '5'])
})

test('I8, SC28: a refusal that comes while the relay asks which keys are stopped still holds the key back', async () => {
  const store = memory()
  const broker = scripted()
  broker.set('hold')
  let met = false
  const outbox = meeting(store.outbox, 'stoppedKeys', async (call) => {
    const answer = await call()
    if (!met && broker.waiting.length === 1) {
      met = true
      broker.set('confirm')
      broker.answerAll({ kind: 'refused', reason: 'queue is full' })
      broker.arrived.length = 0
      commit(store, 1, 2)
    }
    return answer
  })
  commit(store, 0)
  await start(outbox, { broker: broker.broker, pollMs: 400, backoff: { minMs: 300, maxMs: 300 } })
  await until('it is in flight', () => broker.waiting.length === 1)
  await until('all arrive', () => broker.arrived.length >= 3)
  expect(broker.arrived).toEqual(['0', '1', '2'])
})

test('I8, SC28: a message that stops its key holds back even those that were read together with it', async () => {
  const store = memory()
  const broker = scripted()
  const good = toRow({ topic: 'a.v1', orderingKey: 'a', payload: 0 }, outboxLimits())
  store.outbox.insert([good, { ...good, id: crypto.randomUUID(), headers: 'broken' }])
  commit(store, 2, 3)
  const running = await start(store.outbox, { broker: broker.broker, stopKeyOnQuarantine: true })
  await until('it is quarantined', async () => (await store.outbox.quarantined(1)).length === 1)
  await running.drain(AbortSignal.timeout(5_000))
  expect(broker.arrived).toEqual(['0'])
})

test('B66, R23: when removing a confirmed message fails, it is sent again with the same bytes only by a later owner', async () => {
  const store = memory()
  const broker = scripted()
  let failures = 3
  const fail = async <T>(call: () => Promise<T>): Promise<T> => {
    if (failures > 0) {
      failures -= 1
      throw new Error('the database is away')
    }
    return call()
  }
  const outbox = meeting(meeting(store.outbox, 'settle', fail), 'settleAndRead', fail)
  commit(store, 0, 1)
  const running = await start(outbox, { broker: broker.broker })
  await running.drain(AbortSignal.timeout(10_000))
  expect(broker.arrived).toEqual(['0', '1'])
  expect(failures).toBe(0)
})

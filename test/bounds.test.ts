import { expect, test } from 'vitest'
import { memoryBroker } from '../src/brokers/memory/index.ts'
import { createOnce } from '../src/index.ts'
import { memory } from '../src/stores/memory/index.ts'

/** Whatever starts, drains or stops takes a signal as its bound, or says that it takes none: it is never ignored. */
const once = createOnce({ store: memory() })
const broker = memoryBroker()
broker.queue('orders', { topics: ['#'] })

function parts() {
  const relay = once.relay({ broker })
  const consumer = once.consumer({ name: 'bounds', source: broker.source('orders'), handle: () => {} })
  const kind = once.define<null, null>('bounds.kind', { version: 1, handler: () => null })
  const worker = once.worker({ kinds: [kind] })
  const schedule = once.schedule('bounds', { everyMs: 3_600_000, kind, payload: null })
  return { relay, consumer, kind, worker, schedule }
}

type AnyCall = (...given: unknown[]) => Promise<unknown>
const call = (on: object, name: string): AnyCall => (Reflect.get(on, name) as AnyCall).bind(on)
const signal = new AbortController().signal

function deferred<T>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {}
  const promise = new Promise<T>((settle) => {
    resolve = settle
  })
  return { promise, resolve }
}

test.each(['relay', 'consumer', 'worker'] as const)(
  'drain of a %s is bounded by a bare AbortSignal and by { signal }, and refuses what is neither',
  async (name) => {
    const part = parts()[name]
    const drain = call(part, 'drain')
    const reason = new Error('enough')
    await expect(drain(AbortSignal.abort(reason))).rejects.toBe(reason)
    await expect(drain({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason)
    await expect(drain({ signal: {} })).rejects.toThrow(/takes an AbortSignal/)
    await expect(drain({ singal: signal })).rejects.toThrow(/unknown option "singal"/)
    for (const wrong of [null, 5, 'soon', [signal]]) await expect(drain(wrong)).rejects.toThrow(TypeError)
  },
)

test('a drain that cannot end ends with its signal: of a relay, a consumer and a worker', async () => {
  const own = createOnce({ store: memory() })
  const queues = memoryBroker()
  queues.queue('held', { topics: ['#'] })
  const { promise: held, resolve: release } = deferred<null>()
  const delivered = deferred<void>()
  const working = deferred<void>()
  const add = (key: string) =>
    own.transaction({ scope: 's', key, payload: null }, async ({ outbox }) => {
      await outbox.add({ topic: 't', payload: 1 })
    })

  const relay = own.relay({ broker: queues })
  await relay.start()
  await add('delivered')
  const consumer = own.consumer({
    name: 'held',
    source: queues.source('held'),
    handle: () => {
      delivered.resolve()
      return held
    },
  })
  await consumer.start()
  await delivered.promise
  await relay.stop()
  await add('pending, for no relay runs')

  const kind = own.define<null, Promise<null>>('held.kind', {
    version: 1,
    handler: async () => {
      working.resolve()
      return await held
    },
  })
  const worker = own.worker({ kinds: [kind], pollMs: 10 })
  await worker.start()
  await kind.start({ scope: 's', key: 'job', payload: null })
  await working.promise

  const abort = new AbortController()
  const drains = [relay.drain(abort.signal), consumer.drain(abort.signal), worker.drain(abort.signal)]
  const reason = new Error('enough')
  abort.abort(reason)
  for (const drained of await Promise.allSettled(drains)) expect(drained).toEqual({ status: 'rejected', reason })
  release(null)
  await Promise.all([consumer.stop(), worker.stop()])
})

test.each([
  ['relay', 'start'],
  ['relay', 'stop'],
  ['worker', 'start'],
  ['worker', 'stop'],
  ['consumer', 'stop'],
  ['schedule', 'start'],
  ['schedule', 'stop'],
] as const)('%s.%s refuses a signal and options, and takes what an event brings', async (name, method) => {
  const part = parts()[name]
  for (const bound of [signal, { signal }, { timeoutMs: 5 }]) {
    await expect(call(part, method)(bound)).rejects.toThrow(new RegExp(`^${name}\\.${method} takes nothing, got`))
  }
  await call(part, method)(method === 'stop' ? 'SIGTERM' : undefined)
  await call(part, 'stop')()
})

test('start of a consumer takes a signal and nothing else', async () => {
  const { consumer } = parts()
  await expect(call(consumer, 'start')({ signal })).rejects.toThrow('consumer.start takes an AbortSignal')
  const reason = new Error('enough')
  await expect(consumer.start(AbortSignal.abort(reason))).rejects.toBe(reason)
  await consumer.start(signal)
  await consumer.stop()
})

test.each<[string, () => unknown]>([
  ['once.transaction', () => once.transaction({ scope: 's', key: 'k', payload: 1 }, () => 1, signal as never)],
  ['once.run', () => once.run({ scope: 's', key: 'k', payload: 1 }, () => 1, signal as never)],
  ['once.statement', () => once.statement({ scope: 's', key: 'k', payload: 1 }, { text: '' }, signal as never)],
  ['once.purge', () => once.purge(signal as never)],
  ['once.stop', () => once.stop(signal as never)],
  ['once.unfinished', () => once.unfinished(signal as never)],
  ['once.worker', () => once.worker(signal as never)],
  ['start', () => parts().kind.start({ scope: 's', key: 'k', payload: null }, signal as never)],
  ['consumer', () => once.consumer(signal as never)],
])('%s refuses a signal in place of its options', async (where, run) => {
  await expect((async () => await run())()).rejects.toThrow(new RegExp(`^${where} got an AbortSignal in place of its`))
})

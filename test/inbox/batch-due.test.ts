/** Messages that come back from the waiting table while deliveries are handled in batches. */
import { describe, expect, test } from 'vitest'
import { eventually } from '../eventually.ts'
import { openScene, STORES, wrapped } from './scene.ts'

describe.each(Object.entries(STORES))('on %s', (_store, harness) => {
  test.each([
    ['without keys', undefined],
    ['of one key', 'k'],
  ])('SC46, I12: messages %s that are due together, and new ones beside them, are all applied', async (_name, key) => {
    const scene = await openScene(harness)
    try {
      const failing = ['f1', 'f2', 'f3', 'f4']
      const seen = new Set<string>()
      await scene.consume({
        concurrency: 4,
        batchMax: 10,
        backoff: { minMs: 1, maxMs: 1 },
        ...(key === undefined ? {} : { orderBy: true }),
        handleBatch: async ({ tx, messages }) => {
          for (const { id, attempt } of messages) {
            await scene.write(tx, id)
            seen.add(id)
            if (attempt === 1 && failing.includes(id)) throw new Error('the first attempt fails')
          }
        },
      })
      await scene.publish(...failing.map((id) => ({ id, orderingKey: key ?? null })))
      await eventually('the failing ones are tried', () => seen.has('f1'))
      const fresh = Array.from({ length: 30 }, (_, n) => `good ${n}`)
      await scene.publish(...fresh.map((id) => ({ id, orderingKey: key ?? null })))
      const all = [...failing, ...fresh]
      await eventually('all are applied', () => new Set(scene.told('applied').map(({ id }) => id)).size === all.length)
      await scene.settled()
      for (const id of all) expect(await scene.applied(id), id).toBe(1)
      expect(scene.told('state').filter(({ state }) => state === 'paused')).toEqual([])
    } finally {
      await scene.close()
    }
  })

  test.each([
    ['in batches', true],
    ['one by one', false],
  ])('B47, I12: a message that the store will not take holds up nobody else, %s', async (_name, batch) => {
    const scene = await openScene(harness)
    try {
      const store = wrapped(scene.inbox, {
        async open(runs, options) {
          if (runs.some(({ mark }) => mark.messageId === 'odd')) throw new TypeError('not this one')
          return await scene.inbox.open(runs, options)
        },
      })
      const good = ['a', 'b', 'c', 'd', 'e']
      await scene.consume(
        batch
          ? {
              batchMax: 10,
              handleBatch: async ({ tx, messages }) => {
                for (const { id } of messages) await scene.write(tx, id)
              },
            }
          : {},
        store,
      )
      await scene.publish({ id: 'odd' }, ...good.map((id) => ({ id })))
      await eventually('the others are applied', () => scene.told('applied').length === good.length)
      await eventually('it is told', () => scene.told('error').length > 0)
      expect(scene.told('error')[0]).toMatchObject({ id: 'odd', error: 'TypeError' })
      for (const id of good) expect(await scene.applied(id), id).toBe(1)
      expect(scene.queue.length).toBe(1)
      expect(scene.told('state').filter(({ state }) => state === 'paused')).toEqual([])
    } finally {
      await scene.close()
    }
  })
})

import fc from 'fast-check'
import { expect, test } from 'vitest'
import { KeyQueue } from '../../src/inbox/key-queue.ts'

interface Entry {
  readonly key: string | undefined
  readonly no: number
  readonly alone: boolean
}

/** Runs random pushes, takes, ends and give-backs; what is taken must obey order and exclusion. */
const act = fc.oneof(
  fc.record({ kind: fc.constant('push' as const), key: fc.constantFrom('a', 'b', undefined), alone: fc.boolean() }),
  fc.record({ kind: fc.constant('take' as const), count: fc.integer({ min: 1, max: 4 }) }),
  fc.record({ kind: fc.constant('done' as const), pick: fc.nat() }),
  fc.record({ kind: fc.constant('giveBack' as const), pick: fc.nat() }),
)

test('I8: two takers never hold one key, and each key comes out in the order of arrival', () => {
  fc.assert(
    fc.property(fc.array(act, { maxLength: 80 }), (acts) => {
      const queue = new KeyQueue<Entry>(({ alone }) => alone)
      const held: Entry[][] = []
      const finished = new Map<string, number>()
      let pushed = 0
      let taken = 0
      for (const one of acts) {
        if (one.kind === 'push') {
          pushed += 1
          queue.push({ key: one.key, no: pushed, alone: one.alone })
        } else if (one.kind === 'take') {
          const items = queue.take(one.count)
          expect(items.length).toBeLessThanOrEqual(one.count)
          if (items.some(({ alone }) => alone)) expect(items.length).toBe(1)
          for (const { key } of items) {
            if (key !== undefined) expect(held.flat().some((other) => other.key === key)).toBe(false)
          }
          if (items.length > 0) held.push(items)
          taken += items.length
        } else if (held.length > 0) {
          const [items = []] = held.splice(one.pick % held.length, 1)
          if (one.kind === 'giveBack') {
            queue.giveBack(items)
            taken -= items.length
          } else {
            queue.done(items)
            for (const { key, no } of items) {
              if (key === undefined) continue
              expect(no).toBeGreaterThan(finished.get(key) ?? 0)
              finished.set(key, no)
            }
          }
        }
        expect(queue.size).toBe(pushed - taken)
      }
      const rest = queue.clear()
      expect(rest.length).toBe(pushed - taken)
      expect(queue.size).toBe(0)
    }),
    { numRuns: 1_000 },
  )
})

test('I8: a message of another key does not wait behind a held one', () => {
  const queue = new KeyQueue<{ readonly key: string; readonly no: number }>()
  for (const [no, key] of ['a', 'a', 'b'].entries()) queue.push({ key, no })
  const [first] = queue.take(1)
  expect(queue.take(2).map(({ no }) => no)).toEqual([2])
  queue.done(first === undefined ? [] : [first])
  expect(queue.take(2).map(({ no }) => no)).toEqual([1])
})

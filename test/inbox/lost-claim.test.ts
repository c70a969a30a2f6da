/**
 * A crash of the server may lose the claim of a redelivered message, which is written without waiting for the disk; and a
 * claim may be gone by the time that its renewal asks.
 */
import { describe, expect, test } from 'vitest'
import type { WaitingClaim } from '../../src/store/inbox.ts'
import { eventually } from '../eventually.ts'
import { openScene, STORES, wrapped } from './scene.ts'

function latch(): { readonly opened: Promise<void>; open(): void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}

describe.each(Object.entries(STORES))('on %s', (_store, harness) => {
  test('I9, I15: a redelivered message whose claim is lost while it runs is applied all the same', async () => {
    const scene = await openScene(harness)
    try {
      const vanishing = await scene.consume({
        handle: ({ signal }) => new Promise((_resolve, reject) => signal.addEventListener('abort', reject)),
        stopTimeoutMs: 0,
      })
      await scene.publish({ id: 'm' })
      await eventually('it runs', () => vanishing.health().running === 1)
      await vanishing.stop()
      let claim: WaitingClaim | undefined
      const store = wrapped(scene.inbox, {
        async claimDelivery(...args) {
          const answer = await scene.inbox.claimDelivery(...args)
          if (answer.kind === 'claimed') claim ??= answer.claim
          return answer
        },
      })
      let runs = 0
      await scene.consume(
        {
          handle: async ({ tx, message }) => {
            runs += 1
            if (runs === 1 && claim !== undefined) await scene.inbox.discard(claim)
            await scene.write(tx, message.id)
          },
        },
        store,
      )
      await scene.settled()
      expect(runs).toBeGreaterThan(0)
      expect(await scene.applied('m')).toBe(1)
    } finally {
      await scene.close()
    }
  })

  test('R31: a redelivered message that commits while its claim is being renewed is acknowledged', async () => {
    const scene = await openScene(harness)
    try {
      const vanishing = await scene.consume({
        handle: ({ signal }) => new Promise((_resolve, reject) => signal.addEventListener('abort', reject)),
        stopTimeoutMs: 0,
      })
      await scene.publish({ id: 'm' })
      await eventually('it runs', () => vanishing.health().running === 1)
      await vanishing.stop()
      const committed = latch()
      const renewed = latch()
      let found: readonly string[] | undefined
      const store = wrapped(scene.inbox, {
        async renew(...args) {
          await committed.opened
          found = await scene.inbox.renew(...args)
          renewed.open()
          return found
        },
        async open(...args) {
          const opened = await scene.inbox.open(...args)
          const finish = opened.finish.bind(opened)
          opened.finish = async (rows) => {
            const answer = await finish(rows)
            if (answer === 'committed') {
              committed.open()
              await renewed.opened
            }
            return answer
          }
          return opened
        },
      })
      await scene.consume({}, store)
      await scene.settled()
      expect(found).toEqual([])
      expect(await scene.applied('m')).toBe(1)
    } finally {
      await scene.close()
    }
  })

  test('I15: messages whose claims are lost while they queue give their places back', async () => {
    const scene = await openScene(harness)
    try {
      const go = latch()
      const failed = new Set<string>()
      const claims: WaitingClaim[] = []
      let lost = false
      const store = wrapped(scene.inbox, {
        async claimDue(...args) {
          const due = await scene.inbox.claimDue(...args)
          claims.push(...due.claimed.map(({ claim }) => claim))
          return due
        },
        async renew(...args) {
          const ours = await scene.inbox.renew(...args)
          lost ||= ours.length === 0
          return ours
        },
      })
      const consumer = await scene.consume(
        {
          concurrency: 2,
          handle: async ({ tx, message }) => {
            if (message.id.startsWith('blocks')) await go.opened
            else if (!failed.has(message.id)) {
              failed.add(message.id)
              throw new Error('not yet')
            }
            await scene.write(tx, message.id)
          },
        },
        store,
      )
      await scene.publish({ id: 'waits-1' }, { id: 'waits-2' }, { id: 'blocks-1' }, { id: 'blocks-2' })
      await eventually('both wait behind what runs', () => claims.length === 2 && consumer.health().running === 2)
      for (const claim of claims) expect(await scene.inbox.discard(claim)).toBe('discarded')
      await eventually('their renewal has found nothing', () => lost)
      go.open()
      await scene.publish({ id: 'waits-3' })
      await eventually('the next one is done', async () => (await scene.applied('waits-3')) === 1)
      expect([await scene.applied('waits-1'), await scene.applied('waits-2')]).toEqual([0, 0])
      await scene.settled()
    } finally {
      await scene.close()
    }
  })
})

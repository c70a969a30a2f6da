/** A crash of the server may lose the claim of a redelivered message, which is written without waiting for the disk. */
import { describe, expect, test } from 'vitest'
import type { WaitingClaim } from '../../src/store/inbox.ts'
import { eventually } from '../eventually.ts'
import { openScene, STORES } from './scene.ts'

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
      const store = new Proxy(scene.inbox, {
        get(target, name) {
          if (name !== 'claimDelivery') {
            const value: unknown = Reflect.get(target, name, target)
            return typeof value === 'function' ? value.bind(target) : value
          }
          return async (...args: Parameters<typeof target.claimDelivery>) => {
            const answer = await target.claimDelivery(...args)
            if (answer.kind === 'claimed') claim ??= answer.claim
            return answer
          }
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
})

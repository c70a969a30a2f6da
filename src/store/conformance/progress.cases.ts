/**
 * What every store of progress must hold.
 *
 * @module
 */

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { ConformanceCase } from '../../shared/conformance.ts'
import type { ProgressIdentity } from '../progress.ts'
import type { StoreHarness } from './harness.ts'

const line = (): ProgressIdentity => ({ id: randomUUID(), scope: '["conformance"]', name: 'orders' })

export const progressCases: readonly ConformanceCase<StoreHarness>[] = [
  {
    name: 'R37: an advance commits with the writes beside it, or not at all',
    async run(harness) {
      const open = await harness.open()
      try {
        const { progress } = open.store
        const identity = line()
        const fresh = await progress.read(identity.id)
        assert.deepEqual([fresh.number, fresh.position, fresh.ageMs], [0, null, null])
        const lost = open.transaction(async (tx) => {
          await open.write(tx, 'lost')
          assert.equal(await progress.advanceIn(tx, identity, 0, '1'), 'advanced')
          throw new Error('rolled back')
        })
        await assert.rejects(lost, /rolled back/)
        assert.equal((await progress.read(identity.id)).number, 0)
        await open.transaction(async (tx) => {
          await open.write(tx, 'kept')
          assert.equal(await progress.advanceIn(tx, identity, 0, '{"at":7}'), 'advanced')
        })
        const kept = await progress.read(identity.id)
        assert.deepEqual([kept.number, kept.position], [1, '{"at":7}'])
        assert.deepEqual([await open.count('lost'), await open.count('kept')], [0, 1])
      } finally {
        await open.close()
      }
    },
  },
  {
    name: 'R37: who goes on from an old number is fenced, and nothing goes back',
    async run(harness) {
      const open = await harness.open()
      try {
        const { progress } = open.store
        const identity = line()
        for (const from of [0, 1, 2]) {
          await open.transaction(async (tx) => {
            assert.equal(await progress.advanceIn(tx, identity, from, String(from)), 'advanced')
          })
        }
        for (const from of [0, 1, 2, 4]) {
          await open.transaction(async (tx) => {
            assert.equal(await progress.advanceIn(tx, identity, from, '"old"'), 'fenced')
          })
        }
        const { number, position } = await progress.read(identity.id)
        assert.deepEqual([number, position], [3, '2'])
      } finally {
        await open.close()
      }
    },
  },
  {
    name: 'B43: an advance without a transaction is refused',
    async run(harness) {
      const open = await harness.open()
      const idle = await open.idleHandle()
      try {
        const refused = open.store.progress.advanceIn(idle.tx, line(), 0, '1')
        await assert.rejects(refused, { code: 'NOT_A_TRANSACTION' })
      } finally {
        await idle.close()
        await open.close()
      }
    },
  },
]

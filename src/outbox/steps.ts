/**
 * Steps: what a relay of your own is made of, over the rules of ours: one owner a lane, lowest seq first, nothing
 * removed without owner and fence. Not a faster way: ours keeps messages in flight while it reads.
 *
 * @module
 */

import type { OutgoingMessage } from '../broker/contract.ts'
import { randomUUID } from '../shared/crypto.ts'
import { integerOption, refuseUnknownOptions } from '../shared/options.ts'
import { backoffMs } from '../shared/waiting.ts'
import type { LaneLease, OutboxStore, ParkedRow, PendingRow } from '../store/outbox.ts'
import { toOutgoing } from './outgoing.ts'

const BYTES_MAX = 33_554_432
const RETURN_MAX = 2_000

/** Messages to publish, in this order, before any of a later batch. */
export interface ClaimedBatch {
  readonly leaseToken: string
  readonly messages: readonly OutgoingMessage[]
}

/** The steps of one relay; they remember in this process what was claimed and not yet settled. */
export interface RelaySteps {
  /**
   * Takes the lane (or keeps it) for `leaseMs` and gives its next messages, those already claimed left out. (R25)
   * @param options.limit - Most messages. 1 to 10_000.
   * @param options.leaseMs - Milliseconds until another relay may take the lane. 500 to 600_000.
   * @param options.lane - Default 0.
   * @returns undefined while another relay owns the lane.
   * @throws {TypeError} naming the option.
   */
  claimBatch(options: {
    readonly limit: number
    readonly leaseMs: number
    readonly lane?: number | undefined
  }): Promise<ClaimedBatch | undefined>
  /** After the broker's confirm. `fenced`: the lane has another owner and nothing was changed; claim again. */
  markPublished(ids: string | readonly string[], leaseToken: string): Promise<'settled' | 'fenced'>
  /**
   * The broker said no, or it reached no queue: parked with backoff, later messages of its key behind it. For a lost
   * connection call nothing: claim again after the lease, or with new steps.
   */
  releaseForRetry(id: string, leaseToken: string, error: string): Promise<'released' | 'fenced'>
}

interface Claimed {
  readonly lease: LaneLease
  readonly leaseMs: number
  readonly token: string
  readonly rows: Map<string, PendingRow | ParkedRow>
  readonly stopped: Map<string, number>
}

/**
 * Makes the steps over a store's outbox (`postgres(pool).outbox`).
 *
 * @throws {TypeError} for anything else.
 */
export function createRelaySteps(store: OutboxStore): RelaySteps {
  if (typeof store?.acquire !== 'function') {
    throw new TypeError("createRelaySteps takes a store's outbox, such as postgres(pool).outbox")
  }
  const owner = randomUUID()
  const lanes = new Map<number, Claimed>()

  const lose = (claimed: Claimed): 'fenced' => {
    lanes.delete(claimed.lease.lane)
    return 'fenced'
  }
  const heldBy = (token: string): Claimed | undefined => [...lanes.values()].find((one) => one.token === token)

  async function hold(lane: number, leaseMs: number): Promise<Claimed | undefined> {
    const known = lanes.get(lane)
    if (known !== undefined) {
      if ((await store.renew(known.lease, leaseMs, false)).kind === 'done') return known
      lose(known)
    }
    const result = await store.acquire(lane, owner, leaseMs)
    if (result.kind !== 'acquired') return undefined
    const claimed = { lease: result.lease, leaseMs, token: randomUUID(), rows: new Map(), stopped: new Map() }
    lanes.set(lane, claimed)
    return claimed
  }

  return {
    async claimBatch(options) {
      const { limit, leaseMs, lane } = checkedClaim(options)
      const claimed = await hold(lane, leaseMs)
      if (claimed === undefined) return undefined
      const { lease, rows, stopped, token } = claimed
      const { kind, keys } = await store.stoppedKeys(lease, leaseMs)
      if (kind === 'lost') {
        lose(claimed)
        return undefined
      }
      stopped.clear()
      for (const { orderingKey, seq } of keys) stopped.set(orderingKey, seq)
      const held = [...rows.values()].map((row) => row.seq)
      const due = await store.due(lane, held, limit, BYTES_MAX)
      const { rows: fresh } = await store.read(lane, held, limit, BYTES_MAX)
      const isBehind = ({ orderingKey, seq }: PendingRow) =>
        orderingKey !== null && seq > (stopped.get(orderingKey) ?? seq)
      const behind = fresh.filter(isBehind).map((row) => row.seq)
      // Also makes durable what was read: nothing may be published before it is on disk.
      if ((await store.parkBehind(lease, leaseMs, behind)) === 'lost') {
        lose(claimed)
        return undefined
      }
      const messages: OutgoingMessage[] = []
      for (const row of [...due.rows, ...fresh.filter((one) => !isBehind(one))].slice(0, limit)) {
        const message = toOutgoing(row)
        if (typeof message === 'string') {
          await store.quarantine(lease, leaseMs, [
            { seq: row.seq, reason: 'undecodable', error: message, stopsKey: false },
          ])
          continue
        }
        rows.set(row.id, row)
        messages.push(message)
      }
      return { leaseToken: token, messages }
    },

    async markPublished(ids, leaseToken) {
      const claimed = heldBy(leaseToken)
      if (claimed === undefined) return 'fenced'
      const { lease, leaseMs, rows } = claimed
      const done = (typeof ids === 'string' ? [ids] : ids).flatMap((id) => rows.get(id) ?? [])
      const parked = done.filter((row) => 'attempts' in row).map((row) => row.seq)
      const plain = done.filter((row) => !('attempts' in row)).map((row) => row.seq)
      const options = { history: false, progress: true }
      if ((await store.settle(lease, leaseMs, plain, options)) === 'lost') return lose(claimed)
      if (parked.length > 0) {
        const result = await store.settleParked(lease, leaseMs, parked, { ...options, limit: RETURN_MAX })
        if (result.kind === 'lost') return lose(claimed)
      }
      for (const row of done) rows.delete(row.id)
      return 'settled'
    },

    async releaseForRetry(id, leaseToken, error) {
      const claimed = heldBy(leaseToken)
      const row = claimed?.rows.get(id)
      if (claimed === undefined || row === undefined) return 'fenced'
      const delayMs = backoffMs('attempts' in row ? row.attempts + 1 : 1)
      const parking = { seq: row.seq, reason: 'refused' as const, error: error.slice(0, 500), delayMs, counts: true }
      if ((await store.park(claimed.lease, claimed.leaseMs, [parking])) === 'lost') return lose(claimed)
      claimed.rows.delete(id)
      return 'released'
    },
  }
}

/** A lease without a length would be none: any other relay could take the lane at once. */
function checkedClaim(options: Parameters<RelaySteps['claimBatch']>[0]): {
  limit: number
  leaseMs: number
  lane: number
} {
  refuseUnknownOptions('claimBatch', options, ['limit', 'leaseMs', 'lane'])
  const required = (name: 'limit' | 'leaseMs', bounds: { readonly min: number; readonly max: number }): number => {
    const value = options[name]
    if (value === undefined) throw new TypeError(`claimBatch needs ${name}`)
    return integerOption(`claimBatch ${name}`, value, { ...bounds, default: bounds.min })
  }
  return {
    limit: required('limit', { min: 1, max: 10_000 }),
    leaseMs: required('leaseMs', { min: 500, max: 600_000 }),
    lane: integerOption('claimBatch lane', options.lane, { min: 0, max: 255, default: 0 }),
  }
}

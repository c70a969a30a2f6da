/**
 * Lanes in memory: who may publish a lane's rows and until when, and how often a row was claimed alone.
 *
 * @module
 */

import type { AcquireResult, LaneLease, LaneStep, LaneView, RenewResult } from '../../store/outbox.ts'
import type { MemoryDatabase } from './database.ts'

/** One lane; `alone` holds when its row was claimed alone, once per ownership. */
export interface Lane {
  readonly lane: number
  owner: string | null
  fence: number
  leaseUntilMs: number
  deaths: number
  alone: { readonly seq: number; readonly fence: number; readonly claims: readonly number[] } | undefined
  wanted: { readonly by: string; readonly untilMs: number } | undefined
}

export class MemoryLanes {
  /** Names this database; lanes that were taken in another one are foreign. */
  cluster = 'here'
  readonly #database: MemoryDatabase
  readonly #lanes: Map<number, Lane> = new Map()
  #clusterOfRows: string | undefined

  constructor(database: MemoryDatabase) {
    this.#database = database
  }

  /** The lane, made when nobody has seen it yet. */
  of(lane: number): Lane {
    const known = this.#lanes.get(lane)
    if (known !== undefined) return known
    const made: Lane = { lane, owner: null, fence: 0, leaseUntilMs: 0, deaths: 0, alone: undefined, wanted: undefined }
    this.#lanes.set(lane, made)
    return made
  }

  /** Lanes with a live owner. */
  live(): readonly Lane[] {
    return [...this.#lanes.values()].filter((lane) => this.#isLive(lane))
  }

  views(): readonly LaneView[] {
    return [...this.#lanes.values()]
      .sort((one, other) => one.lane - other.lane)
      .map((lane) => {
        const isLive = this.#isLive(lane)
        const leaseLeftMs = isLive ? lane.leaseUntilMs - this.#database.now() : 0
        return { lane: lane.lane, owner: isLive ? lane.owner : null, leaseLeftMs }
      })
  }

  acquire(number: number, owner: string, leaseMs: number): AcquireResult {
    const now = this.#database.now()
    if (this.#clusterOfRows !== undefined && this.#clusterOfRows !== this.cluster) return { kind: 'foreign' }
    const lane = this.of(number)
    const wantedUntilMs = lane.wanted === undefined || lane.wanted.by === owner ? 0 : lane.wanted.untilMs
    if (this.#isLive(lane) || wantedUntilMs > now) {
      return { kind: 'held', retryAfterMs: Math.max(lane.leaseUntilMs, wantedUntilMs) - now }
    }
    if (lane.owner !== null && lane.owner !== owner) lane.deaths += 1
    this.#clusterOfRows = this.cluster
    lane.owner = owner
    lane.fence += 1
    lane.leaseUntilMs = now + leaseMs
    lane.wanted = undefined
    return { kind: 'acquired', lease: { lane: number, owner, fence: lane.fence }, deaths: lane.deaths }
  }

  /** The lane, its lease renewed, when the caller still owns it. `progress` forgets deaths. */
  own(lease: LaneLease, leaseMs: number, progress = false): Lane | undefined {
    const lane = this.of(lease.lane)
    if (!this.#isLive(lane) || lane.owner !== lease.owner || lane.fence !== lease.fence) return undefined
    lane.leaseUntilMs = this.#database.now() + leaseMs
    if (progress) lane.deaths = 0
    return lane
  }

  renew(lease: LaneLease, leaseMs: number, settled: boolean): RenewResult {
    const lane = this.own(lease, leaseMs, settled)
    if (lane === undefined) return { kind: 'lost', wanted: false }
    if (settled) lane.alone = undefined
    return { kind: 'done', wanted: lane.wanted !== undefined && lane.wanted.untilMs > this.#database.now() }
  }

  release(lease: LaneLease): LaneStep {
    const lane = this.of(lease.lane)
    if (lane.owner !== lease.owner || lane.fence !== lease.fence) return 'lost'
    unclaim(lane)
    lane.owner = null
    lane.leaseUntilMs = 0
    return 'done'
  }

  ask(owner: string, waitMs: number): void {
    const live = this.live()
    const heldBy = (one: string | null) => live.filter((lane) => lane.owner === one).length
    const [richest] = live
      .filter((lane) => heldBy(lane.owner) >= heldBy(owner) + 2)
      .sort((one, other) => heldBy(other.owner) - heldBy(one.owner))
    const now = this.#database.now()
    if (richest === undefined || (richest.wanted?.untilMs ?? 0) > now) return
    richest.wanted = { by: owner, untilMs: now + waitMs }
  }

  adopt(): void {
    this.#clusterOfRows = this.cluster
  }

  claimAlone(lease: LaneLease, leaseMs: number, seq: number): number {
    const lane = this.own(lease, leaseMs)
    if (lane === undefined) return 0
    const before = lane.alone?.seq === seq ? lane.alone.claims : []
    const counted = lane.alone?.seq === seq && lane.alone.fence === lease.fence
    const claims = counted ? before : [...before, this.#database.now()]
    lane.alone = { seq, fence: lease.fence, claims }
    return claims.length
  }

  unclaimAlone(lease: LaneLease, leaseMs: number): LaneStep {
    const lane = this.own(lease, leaseMs)
    if (lane === undefined) return 'lost'
    unclaim(lane)
    return 'done'
  }

  #isLive(lane: Lane): boolean {
    return lane.owner !== null && lane.leaseUntilMs > this.#database.now()
  }
}

/** Takes back the claim that this ownership made. */
function unclaim(lane: Lane): void {
  const { alone } = lane
  if (alone?.fence === lane.fence) lane.alone = { seq: alone.seq, fence: 0, claims: alone.claims.slice(0, -1) }
}

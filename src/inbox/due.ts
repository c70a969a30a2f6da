/**
 * Due: fetches waiting messages when their time has come, keeps the claims on them alive, and removes old marks.
 *
 * A claim is committed and counted before anything of the message runs (I15). A row that somebody works on is not due:
 * its claim lasts until its owner settles it, gives it back, or vanishes for longer than the lease (B77).
 *
 * @module
 */

import { pause } from '../shared/waiting.ts'
import type { ClaimedWaiting, InboxStore, WaitingClaim } from '../store/inbox.ts'
import { type Item, type ItemSettings, itemOfClaimed } from './item.ts'

export interface DueSettings {
  readonly consumer: string
  readonly leaseMs: number
  readonly pollMs: number
  /** Types that have a handler; undefined = all. */
  readonly types: readonly string[] | undefined
  /** Only the earliest waiting message of a key may run. */
  readonly headsOnly: boolean
  /** How long marks stay after their retention, so that a late repeat is told as expired. */
  readonly graceMs: number
  readonly purgeEveryMs: number
  readonly purgeMax: number
}

export interface DueHost extends DueSettings {
  readonly owner: string
  readonly item: ItemSettings
  /** Most claims to hold at once now; 0 = do not look. */
  readonly room: () => number
  /** Marks that are in hand. */
  readonly except: () => readonly string[]
  readonly take: (items: readonly Item[]) => void
  /** There are due rows whose consumer vanished: to be claimed one by one, each when it runs alone. */
  readonly suspects: () => void
  readonly purged: (count: number) => void
  readonly failed: (error: unknown) => void
}

export class Due {
  readonly #store: Pick<InboxStore<never>, 'claimDue' | 'claimSuspect' | 'renew' | 'purgeMarks'>
  readonly #host: DueHost
  readonly #stopping = new AbortController()
  /** Items whose claim is ours, by mark. */
  readonly #held = new Map<string, Item>()
  #wakeUp: AbortController = new AbortController()
  #looking: Promise<number> | undefined
  #loops: Promise<unknown> = Promise.resolve()
  #nextPurgeMs: number

  constructor(store: Pick<InboxStore<never>, 'claimDue' | 'claimSuspect' | 'renew' | 'purgeMarks'>, host: DueHost) {
    this.#store = store
    this.#host = host
    this.#nextPurgeMs = performance.now() + Math.random() * host.purgeEveryMs
  }

  start(): void {
    this.#loops = Promise.all([this.#look(), this.#renew()])
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#wakeUp.abort()
    await this.#loops
  }

  /** Looks soon instead of at the next poll. */
  wake(): void {
    this.#wakeUp.abort()
  }

  /** The item's claim is renewed until it is let go. */
  hold(item: Item): void {
    if (item.claim !== undefined) this.#held.set(item.mark.id, item)
  }

  letGo(item: Item): void {
    if (this.#held.get(item.mark.id) === item) this.#held.delete(item.mark.id)
  }

  /** Claims the next row whose consumer vanished; undefined = there is none, or the store cannot be asked. */
  async suspect(): Promise<Item | undefined> {
    const { consumer, owner, leaseMs, types, headsOnly } = this.#host
    try {
      const except = this.#host.except()
      const claimed = await this.#store.claimSuspect({ consumer, owner, leaseMs, types, headsOnly, except })
      if (claimed === undefined) return undefined
      const item = itemOfClaimed(claimed, this.#host.item)
      this.hold(item)
      return item
    } catch (error) {
      this.#host.failed(error)
      return undefined
    }
  }

  /** Claims what is due; returns how many. */
  async now(): Promise<number> {
    this.#looking ??= this.#claim().finally(() => {
      this.#looking = undefined
    })
    return await this.#looking
  }

  async #look(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      const claimed = await this.now()
      await this.#purge()
      if (claimed > 0 && this.#roomLeft() > 0) continue
      if (this.#wakeUp.signal.aborted) this.#wakeUp = new AbortController()
      await pause(this.#host.pollMs * (0.75 + Math.random() / 2), this.#wakeUp.signal)
      if (this.#wakeUp.signal.aborted && !signal.aborted) this.#wakeUp = new AbortController()
    }
  }

  #roomLeft(): number {
    return this.#host.room() - this.#held.size
  }

  async #claim(): Promise<number> {
    const limit = this.#roomLeft()
    if (limit <= 0 || this.#stopping.signal.aborted) return 0
    const { consumer, owner, leaseMs, types, headsOnly } = this.#host
    let claimed: readonly ClaimedWaiting[]
    try {
      const except = this.#host.except()
      const due = await this.#store.claimDue({ consumer, owner, limit, leaseMs, types, headsOnly, except })
      claimed = due.claimed
      if (due.suspects) this.#host.suspects()
    } catch (error) {
      this.#host.failed(error)
      return 0
    }
    const items = claimed.map((row) => itemOfClaimed(row, this.#host.item))
    for (const item of items) this.hold(item)
    if (items.length > 0) this.#host.take(items)
    return items.length
  }

  async #renew(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      await pause(this.#host.leaseMs / 3, signal)
      const items = [...this.#held.values()]
      const claims = items.flatMap((item): WaitingClaim[] => (item.claim === undefined ? [] : [item.claim]))
      if (claims.length === 0 || signal.aborted) continue
      try {
        const ours = new Set(await this.#store.renew(claims, this.#host.leaseMs))
        for (const item of items) {
          // Taken over, or settled while the question was on its way: what runs is told at its end, what has not
          // started must not start.
          if (!ours.has(item.mark.id) && this.#held.get(item.mark.id) === item) item.claimLost = true
        }
      } catch (error) {
        this.#host.failed(error)
      }
    }
  }

  async #purge(): Promise<void> {
    const { graceMs, purgeEveryMs, purgeMax } = this.#host
    if (performance.now() < this.#nextPurgeMs || this.#stopping.signal.aborted) return
    this.#nextPurgeMs = performance.now() + purgeEveryMs * (0.75 + Math.random() / 2)
    try {
      const { removed, after } = await this.#store.purgeMarks({ graceMs, limit: purgeMax })
      if (removed > 0) this.#host.purged(removed)
      // There is more, and the next look may go on at once.
      if (after !== undefined) this.#nextPurgeMs = performance.now()
    } catch (error) {
      this.#host.failed(error)
    }
  }
}

/**
 * One inbox transaction in memory: all of it becomes true at once, or nothing.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import type { InboxFinish, InboxMark, InboxOpenOptions, InboxRun, InboxVerdict, OpenInbox } from '../../store/inbox.ts'
import type { OutboxRow } from '../../store/outbox.ts'
import { same } from './bytes.ts'
import { MemoryTransaction, type MemoryTx } from './database.ts'
import type { MemoryInbox } from './inbox.ts'

export class MemoryOpenInbox implements OpenInbox<MemoryTx> {
  readonly tx: MemoryTx
  readonly #store: MemoryInbox
  readonly #runs: readonly InboxRun[]
  readonly #options: InboxOpenOptions
  readonly #transaction: MemoryTransaction
  readonly #versions: Map<string, bigint> = new Map()
  /** Ends the waiting of others for the entities that were looked at. */
  readonly #unlocks: (() => void)[] = []
  #verdicts: readonly InboxVerdict[] | undefined

  constructor(store: MemoryInbox, runs: readonly InboxRun[], options: InboxOpenOptions) {
    this.#store = store
    this.#runs = runs
    this.#options = options
    this.#transaction = new MemoryTransaction(store.database)
    this.tx = {
      get: (name) => this.#opened().get(name),
      put: (name, value) => this.#opened().put(name, value),
    }
  }

  async now(): Promise<Date> {
    this.#opened()
    return new Date(this.#store.database.now())
  }

  async begin(): Promise<readonly InboxVerdict[]> {
    return this.#decide()
  }

  verdicts(): Promise<readonly InboxVerdict[]> | undefined {
    return this.#verdicts === undefined ? undefined : Promise.resolve(this.#verdicts)
  }

  async ifNewer(consumer: string, entity: string, version: bigint): Promise<boolean> {
    this.#opened()
    const name = JSON.stringify([consumer, entity])
    if (!this.#versions.has(name)) await this.#lock(name)
    const seen = this.#versions.get(name) ?? this.#store.versions.get(name)
    if (seen !== undefined && seen >= version) return false
    this.#versions.set(name, version)
    return true
  }

  async finish(outbox: readonly OutboxRow[]): Promise<InboxFinish | readonly InboxVerdict[]> {
    const verdicts = this.#decide()
    if (!verdicts.includes('new')) {
      await this.rollback()
      return verdicts
    }
    if (this.#transaction.ended) return 'ended'
    const claim = this.#runs[0]?.claim
    if (claim !== undefined && this.#store.held(claim) === undefined) {
      await this.rollback()
      return 'fenced'
    }
    this.#transaction.commit()
    const expiresAtMs = this.#store.database.now() + this.#options.retentionMs
    for (const { mark } of this.#fresh()) {
      this.#store.marks.set(mark.id, { fingerprint: mark.fingerprint, expiresAtMs })
    }
    for (const [name, version] of this.#versions) this.#store.versions.set(name, version)
    if (claim !== undefined) this.#store.waiting.delete(claim.id)
    if (outbox.length > 0) this.#store.insert(outbox)
    this.#letGo()
    return 'committed'
  }

  async rollback(): Promise<'rolledBack' | 'lost'> {
    this.abort()
    return 'rolledBack'
  }

  abort(): void {
    if (this.#transaction.ended) return
    this.#transaction.rollback()
    this.#letGo()
  }

  #decide(): readonly InboxVerdict[] {
    if (this.#verdicts !== undefined) return this.#verdicts
    const own = new Map<string, InboxMark>()
    const verdicts = this.#runs.map(({ mark, stopKey, override }): InboxVerdict => {
      const twin = own.get(mark.id)
      if (twin !== undefined) return same(twin.fingerprint, mark.fingerprint) ? 'duplicate' : 'mismatch'
      if (this.#store.working.has(mark.id)) return 'busy'
      if (this.#store.isBehind(mark, stopKey)) return 'behind'
      const known = this.#store.known(mark)
      if (known !== undefined && !(known === 'expired' && override === true)) return known
      own.set(mark.id, mark)
      return 'new'
    })
    const together = !this.#options.marksFirst && this.#runs.length > 1 && verdicts.some((verdict) => verdict !== 'new')
    this.#verdicts = together ? verdicts.map(() => 'busy') : verdicts
    for (const { mark } of this.#fresh()) this.#store.working.add(mark.id)
    return this.#verdicts
  }

  #fresh(): readonly InboxRun[] {
    return this.#runs.filter((_, index) => this.#verdicts?.[index] === 'new')
  }

  /** Others that look at the entity wait until this transaction is over. */
  async #lock(name: string): Promise<void> {
    const before = this.#store.locks.get(name)
    let unlock = () => {}
    const over = new Promise<void>((resolve) => {
      unlock = resolve
    })
    this.#store.locks.set(name, over)
    this.#unlocks.push(() => {
      if (this.#store.locks.get(name) === over) this.#store.locks.delete(name)
      unlock()
    })
    await before
  }

  #letGo(): void {
    for (const { mark } of this.#fresh()) this.#store.working.delete(mark.id)
    for (const unlock of this.#unlocks) unlock()
  }

  #opened(): MemoryTransaction {
    if (this.#transaction.ended || !this.#decide().includes('new')) {
      throw new OnceError('NOT_A_TRANSACTION', 'tx was used after its transaction had ended')
    }
    return this.#transaction
  }
}

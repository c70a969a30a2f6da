/**
 * Progress in memory: it lies among the application's own data, so it commits with them.
 *
 * @module
 */

import type { ProgressIdentity, ProgressRecord, ProgressStore } from '../../store/progress.ts'
import type { MemoryDatabase, MemoryTx } from './database.ts'

interface Line {
  readonly number: number
  readonly position: string
  readonly atMs: number
}

export class MemoryProgress implements ProgressStore<MemoryTx> {
  readonly #database: MemoryDatabase
  readonly #assertTransaction: (tx: MemoryTx) => Promise<void>

  constructor(database: MemoryDatabase, assertTransaction: (tx: MemoryTx) => Promise<void>) {
    this.#database = database
    this.#assertTransaction = assertTransaction
  }

  async read(id: string): Promise<ProgressRecord> {
    const nowMs = this.#database.now()
    const line = this.#database.data.get(nameOf(id)) as Line | undefined
    if (line === undefined) return { number: 0, position: null, nowMs, ageMs: null }
    return { number: line.number, position: line.position, nowMs, ageMs: nowMs - line.atMs }
  }

  async advanceIn(
    tx: MemoryTx,
    { id }: ProgressIdentity,
    from: number,
    position: string,
  ): Promise<'advanced' | 'fenced'> {
    await this.#assertTransaction(tx)
    const line = tx.get(nameOf(id)) as Line | undefined
    if ((line?.number ?? 0) !== from) return 'fenced'
    const next: Line = { number: from + 1, position, atMs: this.#database.now() }
    tx.put(nameOf(id), next)
    return 'advanced'
  }
}

function nameOf(id: string): string {
  return `effectively-once.progress ${id}`
}

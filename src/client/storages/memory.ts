/**
 * Operations in memory: for tests, and where losing them with the page or process is meant.
 *
 * @module
 */

import { inTheWay, type OperationStorage, type Turn } from '../storage.ts'

export interface MemoryStorageOptions {
  /** Default `memory`. */
  readonly name?: string | undefined
}

export function memoryStorage(options: MemoryStorageOptions = {}): OperationStorage {
  const entries = new Map<string, string>()
  const turns = new Map<string, Turn>()
  return {
    name: options.name ?? 'memory',
    sharedBy: 'page',
    async entries() {
      return [...entries].map(([id, text]) => ({ id, text }))
    },
    async read(id) {
      return entries.get(id)
    },
    async write(id, text) {
      entries.set(id, text)
    },
    async remove(id) {
      entries.delete(id)
    },
    async takeTurn(id, turn, now) {
      const found = turns.get(id)
      if (inTheWay(found, turn.owner, now)) return found
      turns.set(id, turn)
      return undefined
    },
    async endTurn(id, owner) {
      if (turns.get(id)?.owner === owner) turns.delete(id)
    },
  }
}

/**
 * Operations in `localStorage`: a few small ones, five million characters in all.
 *
 * Browsers write it to disk a little later, so it survives reloads, closed tabs and crashed pages, but not always a
 * crash of the whole browser or machine. IndexedDB does.
 *
 * @module
 */

import { inTheWay, type OperationStorage, type StoredEntry, turnOf } from '../storage.ts'

/** The part of `Storage` that is used. */
export interface StorageArea {
  readonly length: number
  key(index: number): string | null
  getItem(key: string): string | null
  setItem(key: string, value: string): void
  removeItem(key: string): void
}

export interface LocalStorageOptions {
  /** Default `operations`. */
  readonly name?: string | undefined
  /** Default `globalThis.localStorage`. */
  readonly area?: StorageArea | undefined
}

/** Two tabs that write at the same moment see each other after this time, milliseconds. */
const SETTLE_MS = 25

export function localStorageStorage(options: LocalStorageOptions = {}): OperationStorage {
  const name = options.name ?? 'operations'
  const area = options.area ?? (globalThis as { readonly localStorage?: StorageArea }).localStorage
  if (area === undefined) throw new TypeError('localStorageStorage: there is no localStorage here; give area')
  const prefix = `effectively-once:${name}:operation:`
  const turnKey = (id: string): string => `effectively-once:${name}:turn:${id}`
  return {
    name: `localStorage:${name}`,
    sharedBy: 'origin',
    async entries() {
      const found: StoredEntry[] = []
      for (let index = 0; index < area.length; index += 1) {
        const key = area.key(index)
        if (key?.startsWith(prefix) !== true) continue
        found.push({ id: key.slice(prefix.length), text: area.getItem(key) ?? '' })
      }
      return found
    },
    async read(id) {
      return area.getItem(prefix + id) ?? undefined
    },
    async write(id, text) {
      area.setItem(prefix + id, text)
    },
    async remove(id) {
      area.removeItem(prefix + id)
      area.removeItem(turnKey(id))
    },
    async takeTurn(id, turn, now) {
      const found = turnOf(area.getItem(turnKey(id)))
      if (inTheWay(found, turn.owner, now)) return found
      area.setItem(turnKey(id), JSON.stringify(turn))
      if (found?.owner === turn.owner) return undefined
      // There is no compare-and-set: the last writer has it, and everybody else sees that a moment later.
      await new Promise((resolve) => setTimeout(resolve, SETTLE_MS))
      const settled = turnOf(area.getItem(turnKey(id)))
      return inTheWay(settled, turn.owner, now) ? settled : undefined
    },
    async endTurn(id, owner) {
      if (turnOf(area.getItem(turnKey(id)))?.owner === owner) area.removeItem(turnKey(id))
    },
  }
}

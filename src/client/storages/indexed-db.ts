/**
 * Operations in IndexedDB: the storage for browsers. Every write is on disk before it resolves.
 *
 * @module
 */

import { inTheWay, type OperationStorage, turnOf } from '../storage.ts'

export interface IndexedDbOptions {
  /** Default `operations`. */
  readonly name?: string | undefined
}

const DATABASE = 'effectively-once'
const ENTRIES = 'operations'
const TURNS = 'turns'

export function indexedDbStorage(options: IndexedDbOptions = {}): OperationStorage {
  const name = options.name ?? 'operations'
  const { indexedDB } = globalThis as { readonly indexedDB?: Factory }
  if (indexedDB === undefined) throw new TypeError('indexedDbStorage: there is no IndexedDB here')
  let opened: Promise<Database> | undefined
  const database = (): Promise<Database> => {
    opened ??= open(indexedDB, () => {
      opened = undefined
    })
    return opened
  }
  const at = (id: string): readonly [string, string] => [name, id]

  /** One transaction; its answer counts when it is complete. */
  const inStore = async <T>(
    store: string,
    mode: 'readonly' | 'readwrite',
    work: (objects: ObjectStore, answer: (value: T) => void) => void,
  ): Promise<T | undefined> => {
    const db = await database()
    return new Promise((resolve, reject) => {
      let found: T | undefined
      const transaction = db.transaction(store, mode, { durability: 'strict' })
      transaction.oncomplete = () => resolve(found)
      transaction.onabort = () => reject(failure('transaction', transaction.error))
      work(transaction.objectStore(store), (value) => {
        found = value
      })
    })
  }

  return {
    name: `indexedDB:${name}`,
    sharedBy: 'origin',
    async entries() {
      const ids: unknown[] = []
      const texts: unknown[] = []
      await inStore<undefined>(ENTRIES, 'readonly', (objects) => {
        const keys = objects.getAllKeys()
        keys.onsuccess = () => ids.push(...(keys.result as unknown[]))
        const values = objects.getAll()
        values.onsuccess = () => texts.push(...(values.result as unknown[]))
      })
      return ids.flatMap((id, index) => {
        if (!Array.isArray(id) || id[0] !== name) return []
        const text = texts[index]
        return [{ id: String(id[1]), text: typeof text === 'string' ? text : '' }]
      })
    },
    async read(id) {
      const text = await inStore<unknown>(ENTRIES, 'readonly', (objects, answer) => {
        const request = objects.get(at(id))
        request.onsuccess = () => answer(request.result)
      })
      return text === undefined || typeof text === 'string' ? text : ''
    },
    async write(id, text) {
      await inStore(ENTRIES, 'readwrite', (objects) => objects.put(text, at(id)))
    },
    async remove(id) {
      await inStore(ENTRIES, 'readwrite', (objects) => objects.delete(at(id)))
    },
    takeTurn(id, turn, now) {
      return inStore(TURNS, 'readwrite', (objects, answer) => {
        const request = objects.get(at(id))
        request.onsuccess = () => {
          const found = turnOf(String(request.result))
          if (found !== undefined && inTheWay(found, turn.owner, now)) answer(found)
          else objects.put(JSON.stringify(turn), at(id))
        }
      })
    },
    async endTurn(id, owner) {
      await inStore(TURNS, 'readwrite', (objects) => {
        const request = objects.get(at(id))
        request.onsuccess = () => {
          if (turnOf(String(request.result))?.owner === owner) objects.delete(at(id))
        }
      })
    },
  }
}

function open(factory: Factory, closed: () => void): Promise<Database> {
  return new Promise((resolve, reject) => {
    const request = factory.open(DATABASE, 1)
    request.onupgradeneeded = () => {
      request.result.createObjectStore(ENTRIES)
      request.result.createObjectStore(TURNS)
    }
    request.onsuccess = () => {
      const db = request.result
      // Another tab wants to change the database, or the browser has closed it: the next use opens it again.
      db.onversionchange = () => {
        db.close()
        closed()
      }
      db.onclose = closed
      resolve(db)
    }
    const failed = (what: string) => () => {
      closed()
      reject(failure(what, request.error))
    }
    request.onerror = failed('open')
    request.onblocked = failed('open, blocked by another version')
  })
}

function failure(what: string, error: unknown): Error {
  return new Error(`IndexedDB: ${what} failed`, { cause: error })
}

/** The part of IndexedDB that is used. */
interface Factory {
  open(name: string, version: number): OpenRequest
}

interface Request {
  readonly result: unknown
  readonly error: unknown
  onsuccess: (() => void) | null
  onerror: (() => void) | null
}

interface OpenRequest extends Request {
  readonly result: Database
  onupgradeneeded: (() => void) | null
  onblocked: (() => void) | null
}

interface Database {
  createObjectStore(name: string): unknown
  transaction(store: string, mode: 'readonly' | 'readwrite', options: { readonly durability: 'strict' }): Transaction
  close(): void
  onversionchange: (() => void) | null
  onclose: (() => void) | null
}

interface Transaction {
  objectStore(name: string): ObjectStore
  readonly error: unknown
  oncomplete: (() => void) | null
  onabort: (() => void) | null
}

interface ObjectStore {
  get(key: readonly string[]): Request
  getAll(): Request
  getAllKeys(): Request
  put(value: string, key: readonly string[]): Request
  delete(key: readonly string[]): Request
}

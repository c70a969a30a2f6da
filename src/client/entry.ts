/**
 * The entry of one operation in its storage.
 *
 * @module
 */

import { ClientError } from './errors.ts'
import { decodeRecord, encodeRecord, type OperationRecord, sameRequest } from './record.ts'
import type { OperationStorage } from './storage.ts'

export interface Entry {
  /** @throws {ClientError} `STORAGE_FAILED` as long as the storage does not say that the operation was sent. */
  save(record: OperationRecord): Promise<void>
  remove(): Promise<void>
  /** What went wrong with a write whose loss is harmless. */
  readonly error: unknown
}

/**
 * @param sent - The storage says already that the operation was sent, so a later write may fail: what is lost is a
 *   count and a waiting time.
 * @param note - Told every record that is to be written.
 */
export function entryIn(
  storage: OperationStorage,
  key: string,
  sent: boolean,
  note: (record: OperationRecord) => void,
): Entry {
  let safe = sent
  const entry = {
    error: undefined as unknown,
    async save(record: OperationRecord): Promise<void> {
      try {
        await stored(() => storage.write(key, encodeRecord(record)))
        safe ||= record.attempts > 0
      } catch (error) {
        if (!safe) throw error
        entry.error = error
      }
      note(record)
    },
    async remove(): Promise<void> {
      try {
        await storage.remove(key)
      } catch (error) {
        entry.error = error
      }
    },
  }
  return entry
}

/** What is pending under the key of `record`. @throws {ClientError} `KEY_IN_USE` when it is something else. */
export async function pendingAs(
  record: OperationRecord,
  storage: OperationStorage,
): Promise<OperationRecord | undefined> {
  const text = await stored(() => storage.read(record.key))
  if (text === undefined) return undefined
  const found = decodeRecord(record.key, text)
  if (typeof found === 'string') {
    throw new ClientError('KEY_IN_USE', `the entry under this key cannot be read (${found}) and is left as it is`)
  }
  if (!sameRequest(found, record)) {
    throw new ClientError('KEY_IN_USE', 'another request is pending under this key; a new intent needs a new key')
  }
  return found
}

/** @throws {ClientError} `STORAGE_FAILED` instead of the storage's own error. */
export async function stored<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (error) {
    throw new ClientError('STORAGE_FAILED', `the storage failed, nothing was sent: ${String(error)}`, { cause: error })
  }
}

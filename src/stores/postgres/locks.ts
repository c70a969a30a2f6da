/**
 * Locks: the two transaction-level advisory locks of one attempt, as 64-bit numbers in the single-bigint space.
 *
 * A collision with another operation's lock is a false "busy", never a wrong result: the unique constraint decides.
 *
 * @module
 */

import type { Attempt } from '../../store/operation.ts'

/** Lock numbers as decimal strings (int8 does not fit a JavaScript number). */
export interface Locks {
  /** Shared by attempts with the same key AND the same payload. */
  readonly payload: string
  /** Shared by all attempts with the same key. */
  readonly key: string
}

export function locksOf(attempt: Pick<Attempt, 'id' | 'fingerprint'>): Locks {
  const key = BigInt(`0x${attempt.id.slice(0, 8)}${attempt.id.slice(9, 13)}${attempt.id.slice(14, 18)}`)
  const bytes = attempt.fingerprint.value
  const payload = new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0)
  return { payload: BigInt.asIntN(64, key ^ payload).toString(), key: BigInt.asIntN(64, key).toString() }
}

/** The key's lock as the server lists it in pg_locks: upper and lower half, unsigned. */
export function keyLockParts(id: string): { readonly classId: number; readonly objectId: number } {
  return {
    classId: Number.parseInt(id.slice(0, 8), 16),
    objectId: Number.parseInt(id.slice(9, 13) + id.slice(14, 18), 16),
  }
}

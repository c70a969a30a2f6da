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

/** Two halves of a 64-bit number, and the number they make: arithmetic on BigInt costs more than the rest of the gate. */
const halves = new Uint32Array(2)
const whole = new BigInt64Array(halves.buffer)
const LOW = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1 ? 0 : 1

/** The lock of all attempts with this key. */
export function keyLockOf(id: string): string {
  const { classId, objectId } = keyLockParts(id)
  return decimal(classId, objectId)
}

export function locksOf(attempt: Pick<Attempt, 'id' | 'fingerprint'>): Locks {
  const { classId, objectId } = keyLockParts(attempt.id)
  const { buffer, byteOffset } = attempt.fingerprint.value
  const payload = new DataView(buffer, byteOffset, 8)
  return {
    payload: decimal(classId ^ payload.getUint32(0), objectId ^ payload.getUint32(4)),
    key: decimal(classId, objectId),
  }
}

function decimal(high: number, low: number): string {
  halves[LOW] = low
  halves[1 - LOW] = high
  return String(whole[0])
}

/** The key's lock as the server lists it in pg_locks: upper and lower half, unsigned. */
export function keyLockParts(id: string): { readonly classId: number; readonly objectId: number } {
  return {
    classId: Number.parseInt(id.slice(0, 8), 16),
    objectId: Number.parseInt(id.slice(9, 13) + id.slice(14, 18), 16),
  }
}

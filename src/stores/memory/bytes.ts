/**
 * Bytes: equality of fingerprints.
 *
 * @module
 */

export function same(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0
}

/**
 * Key: what names one effect of one operation to the outside, the same on every attempt and for ever.
 *
 * A version 8 UUID over the operation's id, the effect's name and the generation of the key: it fits wherever a
 * provider takes a UUID, tells nothing about scope or key, and needs nothing stored to be made again. (R16)
 *
 * @module
 */

import { hash } from '../shared/crypto.ts'

/**
 * The key of a name inside an operation.
 *
 * @param generation - 0; grows only when a provider has been proven not to have applied an earlier key.
 */
export function downstreamKey(operationId: string, name: string, generation = 0): string {
  const hex = hash('sha256', `effectively-once key 1\n${operationId}\n${generation}\n${name}`, 'hex')
  const variant = '89ab'[Number.parseInt(hex.slice(16, 17), 16) & 3]
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

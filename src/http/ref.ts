/**
 * Ref: the name of an operation in URLs. It is made of the record's id, which is a hash, so the key does not stand in it.
 *
 * @module
 */

const REF = /^op_([A-Za-z0-9_-]{22})$/

/** The opaque reference of a record's id. */
export function refOf(id: string): string {
  return `op_${Buffer.from(id.replaceAll('-', ''), 'hex').toString('base64url')}`
}

/** The record's id of a reference; undefined for anything else. */
export function idOf(ref: string): string | undefined {
  const encoded = REF.exec(ref)?.[1]
  if (encoded === undefined) return undefined
  const hex = Buffer.from(encoded, 'base64url').toString('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}

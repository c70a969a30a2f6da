/**
 * Own types: how the answers to our statements are read, whatever parsers the application has given to its pool.
 *
 * @module
 */

import type { PgStatement } from './handle.ts'

/** The statement, with answers that are read as ours. */
export function owned(statement: PgStatement): PgStatement {
  const read: PgStatement & { readonly types: object } = { ...statement, types: OWN_TYPES }
  return read
}

const OWN_TYPES = { getTypeParser: (oid: number) => PARSERS.get(oid) ?? asText }

/** By the server's number of the type; every other one stays text. */
const PARSERS: ReadonlyMap<number, (text: string) => unknown> = new Map<number, (text: string) => unknown>([
  [16, (text) => text === 't'],
  [17, asBytes],
  [21, Number],
  [23, Number],
  [114, (text) => JSON.parse(text) as unknown],
  [701, Number],
  [1007, (text) => text.slice(1, -1).split(',').filter(Boolean).map(Number)],
  [1184, asDate],
  [3802, (text) => JSON.parse(text) as unknown],
])

function asText(text: string): string {
  return text
}

/** `bytea_output` is the session's: hexadecimal, or text with octal escapes. */
function asBytes(text: string): Buffer {
  if (text.startsWith('\\x')) return Buffer.from(text.slice(2), 'hex')
  const unescaped = text.replace(/\\(\\|[0-7]{3})/g, (_, what: string) =>
    what === '\\' ? what : String.fromCharCode(Number.parseInt(what, 8)),
  )
  return Buffer.from(unescaped, 'latin1')
}

/** As `2026-01-31 12:00:00.123456+00`. */
function asDate(text: string): Date {
  return new Date(text.replace(' ', 'T').replace(/([+-]\d\d)$/, '$1:00'))
}

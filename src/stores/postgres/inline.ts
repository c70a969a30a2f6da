/**
 * Inline: a statement with its values written into the text, for the one case where values cannot be bound: several
 * statements in one simple-query string, which is how a driver without pipelining saves round trips.
 *
 * Text goes as hexadecimal of its UTF-8 bytes, so no character of a value is ever syntax, whatever the session's
 * quoting settings are. (T9)
 *
 * @module
 */

import { PgArray } from './array.ts'
import type { PgStatement } from './handle.ts'

/** Text of the statement with `$1`, `$2`, ... replaced by encoded values. Only for our own statements. */
export function inlined(statement: PgStatement): string {
  const values = statement.values ?? []
  return statement.text.replace(/\$(\d+)/g, (_, position: string) => literal(values[Number(position) - 1]))
}

function literal(value: unknown): string {
  if (value === null || value === undefined) return 'null'
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) throw new TypeError('only finite numbers can be written into a statement')
    return `(${value})`
  }
  if (typeof value === 'bigint') return `(${value})`
  if (typeof value === 'boolean') return value ? 'true' : 'false'
  if (typeof value === 'string') return textLiteral(Buffer.from(value, 'utf8'))
  if (value instanceof Uint8Array) return `pg_catalog.decode('${Buffer.from(value).toString('hex')}', 'hex')`
  if (Array.isArray(value)) return arrayLiteral(value)
  if (value instanceof PgArray) return arrayLiteral(value.values)
  throw new TypeError('a value of this kind cannot be written into a statement')
}

/** Unquoted hexadecimal is the only thing that reaches the parser. An explicit cast lets it fill uuid or bigint. */
function textLiteral(bytes: Buffer): string {
  return `pg_catalog.convert_from(pg_catalog.decode('${bytes.toString('hex')}', 'hex'), 'UTF8')`
}

function arrayLiteral(values: readonly unknown[]): string {
  return `array[${values.map(literal).join(', ')}]`
}

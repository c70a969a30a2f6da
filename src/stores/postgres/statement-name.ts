/**
 * Statement names: prepared statements live per connection and are shared by every schema used on it, so the schema
 * is part of the name; the protocol keeps 63 characters of it.
 *
 * @module
 */

import { createHash } from 'node:crypto'

const SCHEMA_CHARS_MAX = 32

/** Name of a prepared statement for one schema (quoted or not). */
export function statementName(schema: string, statement: string): string {
  const plain = schema.replaceAll('"', '')
  const short =
    plain.length <= SCHEMA_CHARS_MAX
      ? plain
      : createHash('sha256').update(plain).digest('hex').slice(0, SCHEMA_CHARS_MAX)
  return `eo_${short}_${statement}`
}

/**
 * SQL identifiers that come from configuration (schema names). Matched against a closed pattern and quoted,
 * because identifiers cannot be bound as parameters. (T9)
 *
 * @module
 */

import { describe } from './options.ts'

const IDENTIFIER = /^[a-z_][a-z0-9_]{0,62}$/

/** Default schema of all our tables. */
export const SCHEMA_DEFAULT = 'effectively_once'

/** Returns `name` when it is a plain lower-case identifier; throws a `TypeError` that names `where` otherwise. */
export function identifier(where: string, name: string): string {
  if (typeof name !== 'string' || !IDENTIFIER.test(name)) {
    throw new TypeError(`${where} must match ${IDENTIFIER.source}, got ${describe(name)}`)
  }
  return name
}

/**
 * The same for the schema that is to hold our tables: `information_schema` and names that begin with `pg_` are the
 * server's own.
 */
export function schemaName(where: string, name: string): string {
  identifier(where, name)
  if (name === 'information_schema' || name.startsWith('pg_')) {
    throw new TypeError(`${where} must not be information_schema or begin with pg_: those are the server's own`)
  }
  return name
}

/** The identifier in double quotes, ready to stand in SQL text. */
export function quoted(name: string): string {
  return `"${identifier('identifier', name)}"`
}

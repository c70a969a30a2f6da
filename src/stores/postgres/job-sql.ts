/**
 * What the statements of leased operations are made of: names, rows of values, the owner's comparison.
 *
 * @module
 */

import type { Lease } from '../../store/job.ts'
import type { PgStatement } from './handle.ts'
import { statementName } from './statement-name.ts'

export const CLOCK = 'pg_catalog.clock_timestamp()'
export const MS = `interval '1 millisecond'`

export const ageMs = (instant: string): string => `(extract(epoch from ${CLOCK} - ${instant}) * 1000)::float8`
export const leftMs = (instant: string): string => `(extract(epoch from ${instant} - ${CLOCK}) * 1000)::float8`

/** What is read of an unfinished operation `o`. */
export const RECORD: string =
  'o.id, o.scope, o.state, o.token, o.fence, o.fingerprint_mode, o.fingerprint_key, o.fingerprint, o.kind, ' +
  `o.kind_version, o.payload, ${leftMs('o.lease_until')} as lease_left_ms, ${leftMs('o.due_at')} as due_in_ms, ` +
  `o.claims, o.failures, o.reason, ${ageMs('o.created_at')} as age_ms`

/** Columns of a statement's values: their types by their names. */
export type ValueTypes = Readonly<Record<string, string>>

/**
 * Rows of values `u`, numbered by `n` from 1. The parameters are arrays from `$1` on. The planner must not see how long they are:
 * it would make a plan of its own for each short one, which costs more than to run it.
 */
export function valueRows(types: ValueTypes): string {
  const unnested = Object.values(types).map((type, index) => `pg_catalog.unnest((select $${index + 1}::${type}[]))`)
  return `rows from (${unnested.join(', ')}) with ordinality as u(${Object.keys(types).join(', ')}, n)`
}

/** The same of one row. The parameters are its values. */
export function valueRow(types: ValueTypes): string {
  const columns = Object.entries(types).map(([name, type], index) => `$${index + 1}::${type} as ${name}`)
  return `(select ${columns.join(', ')}, 1 as n) u`
}

/** That `o` is owned by a live lease. */
export function ownedBy(id: string, token: string, fence: string): string {
  return `o.id = ${id} and o.token = ${token} and o.fence = ${fence} and o.state = 'processing' and o.lease_until > ${CLOCK}`
}
export const OWNED_BY_ROW: string = ownedBy('u.id', 'u.token', 'u.fence')
export const OWNED: string = ownedBy('$1::uuid', '$2::uuid', '$3::bigint')

export type Prepared = Omit<PgStatement, 'values'>

/** A statement without its values. `columns` of its answer, where they can be read as text. */
export function prepared(schema: string, name: string, body: string, columns?: readonly string[]): Prepared {
  // sql-built: statements are made with texts of their files only; every value is a parameter.
  const statement = { name: statementName(schema, `job_${name}`), text: `/* effectively-once:job.${name} */ ${body}` }
  return columns === undefined ? statement : { ...statement, columns }
}

export function valued(statement: Prepared, values: unknown[]): PgStatement {
  return { ...statement, values }
}

export function leaseValues({ id, token, fence }: Lease): unknown[] {
  return [id, token, String(fence)]
}

/** Rows of values as one array for each column, which is what `valueRows` takes. */
export function columnsOf(rows: readonly (readonly unknown[])[]): unknown[] {
  const width = rows[0]?.length ?? 0
  return Array.from({ length: width }, (_, column) => rows.map((row) => row[column]))
}

/** Bytes inside an array: the driver and the batch both send elements as text. */
export function bytesText(bytes: Uint8Array): string {
  return `\\x${Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex')}`
}

/**
 * Absolute state: a row that is replaced by a newer version, and by nothing else.
 *
 * "The stock is 5, as of version 42" may come twice and out of order. Comparing and writing are one statement, so of any
 * number of writers the newest version stays, whoever commits last.
 *
 * @module
 */

import { quoted } from '../shared/identifier.ts'
import { describe, refuseUnknownOptions } from '../shared/options.ts'
import { classify, toOnceError } from '../stores/postgres/classify.ts'
import { owned } from '../stores/postgres/own-types.ts'
import type { LedgerConnection } from './contract.ts'

/** A row of a table of yours in one version. Names are plain lower-case identifiers; values are bound. */
export interface VersionedRow {
  /** `stock`, or `shop.stock` with its schema. */
  readonly table: string
  /** Columns of a unique constraint, and their values. */
  readonly key: Readonly<Record<string, unknown>>
  /** The column that holds the version (a `bigint`), and the version of this row: a sequence of the sender's. */
  readonly version: Readonly<Record<string, number | bigint>>
  /** The other columns and their values. */
  readonly set: Readonly<Record<string, unknown>>
}

/** `stored`: it was newer. `stale`: the row has `version` or a newer one already, and nothing was changed. */
export type IfNewer = { readonly kind: 'stored' } | { readonly kind: 'stale'; readonly version: bigint }

const COLUMNS_MAX = 200
const BIGINT_MAX = 9_223_372_036_854_775_807n

/**
 * Writes a row if it is newer than the one that is there: inserts it, or replaces one whose version is lower.
 *
 * In a transaction above READ COMMITTED the server may refuse it with 40001, as any other update.
 *
 * @param tx - A pool, or the client of your transaction.
 * @throws {TypeError} A name is no plain identifier, or the version is no whole number of 64 bits.
 * @example
 * const { kind } = await ifNewer(tx, { table: 'stock', key: { sku }, version: { seq: 42n }, set: { quantity: 5 } })
 */
export async function ifNewer(tx: LedgerConnection, row: VersionedRow): Promise<IfNewer> {
  refuseUnknownOptions('ifNewer', row, ['table', 'key', 'version', 'set'])
  const table = tableName(row.table)
  const keys = columns('key', row.key, 1)
  const versions = columns('version', row.version, 1)
  const others = columns('set', row.set, 0)
  const [version] = versions
  if (version === undefined || versions.length > 1) throw new TypeError('ifNewer: version takes one column')
  const all = [...keys, ...versions, ...others]
  if (new Set(all.map(({ name }) => name)).size < all.length) throw new TypeError('ifNewer: a column is named twice')
  const wanted = exactVersion(version.value)

  const names = all.map(({ name }) => name).join(', ')
  const places = all.map((_, index) => `$${index + 1}`).join(', ')
  const conflict = keys.map(({ name }) => name).join(', ')
  const replaced = [...versions, ...others].map(({ name }) => `${name} = excluded.${name}`).join(', ')
  const values = all.map((column) => (column === version ? String(wanted) : column.value))
  // sql-built: every name was checked against a closed pattern and quoted; values are bound
  const write = `/* effectively-once:ledger.if_newer */ insert into ${table} as v (${names}) values (${places}) on conflict (${conflict}) do update set ${replaced} where v.${version.name} < excluded.${version.name} returning 1`
  const same = keys.map(({ name }, index) => `v.${name} = $${index + 1}`).join(' and ')
  // sql-built: every name was checked against a closed pattern and quoted; values are bound
  const read = `/* effectively-once:ledger.version */ select v.${version.name}::text as version from ${table} as v where ${same}`
  try {
    const { rows } = await tx.query(owned({ text: write, values }))
    if (rows.length > 0) return { kind: 'stored' }
    // A row that was deleted between the two is as stale as it was: its newer version had been there.
    const found = await tx.query(owned({ text: read, values: keys.map(({ value }) => value) }))
    const version = found.rows[0]?.['version']
    return { kind: 'stale', version: typeof version === 'string' ? BigInt(version) : wanted }
  } catch (error) {
    // The table is yours: only a lost connection is ours to name.
    throw classify(error) === 'connection' ? toOnceError(error, 'ifNewer') : error
  }
}

interface Column {
  /** Quoted. */
  readonly name: string
  readonly value: unknown
}

function columns(where: string, values: unknown, min: number): readonly Column[] {
  if (typeof values !== 'object' || values === null || Array.isArray(values)) {
    throw new TypeError(`ifNewer: ${where} takes an object of columns, got ${describe(values)}`)
  }
  const found = Object.entries(values).map(([name, value]) => ({ name: quoted(name), value: value as unknown }))
  if (found.length < min || found.length > COLUMNS_MAX) {
    throw new TypeError(`ifNewer: ${where} takes ${min} to ${COLUMNS_MAX} columns, got ${found.length}`)
  }
  return found
}

function tableName(table: unknown): string {
  const parts = typeof table === 'string' ? table.split('.') : []
  if (parts.length < 1 || parts.length > 2) {
    throw new TypeError(`ifNewer: table takes a name, or schema.name, got ${describe(table)}`)
  }
  return parts.map(quoted).join('.')
}

function exactVersion(value: unknown): bigint {
  const exact = typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : value
  if (typeof exact !== 'bigint' || exact > BIGINT_MAX || exact < -BIGINT_MAX) {
    throw new TypeError(
      `ifNewer: version takes a whole number of 64 bits, large ones as bigint, got ${describe(value)}`,
    )
  }
  return exact
}

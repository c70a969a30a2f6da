/**
 * Migrations: what a numbered SQL file is, and what is to be done with a database that has some of them.
 *
 * Pure and the same for every dialect; a store reads its files and its version table and asks `planMigrations`.
 * A file is never edited after a release: its checksum is stored when it is applied and compared ever after.
 * A file that the previous release cannot work with says `compatible: no`; only such a file makes an older
 * release refuse the database, so that a rolling deploy works in all other cases. (SC58, B114)
 *
 * @module
 */

import { createHash } from '../shared/crypto.ts'

/** One numbered SQL file as shipped. */
export interface MigrationFile {
  /** The number in front of the file's name. */
  readonly version: number
  /** The file's name without `.sql`, such as `0001_operation`. */
  readonly name: string
  /** The SQL with `:schema` still in it. */
  readonly sql: string
  /** SHA-256 of the text with line ends as LF, hexadecimal. */
  readonly checksum: string
  /** Whether releases that do not know this file must refuse the database. */
  readonly breaking: boolean
}

/** One row of the version table. */
export interface AppliedMigration {
  readonly version: number
  readonly name: string
  readonly checksum: string
  readonly breaking: boolean
}

/** One file that was run, or would be run. */
export interface MigrationStep {
  readonly version: number
  readonly name: string
  /** Whether releases that do not know this file refuse the database from now on. */
  readonly breaking: boolean
  /** The statements as sent, with the schema's name filled in. */
  readonly sql: string
}

/** What `migrate` did, or with `dryRun` would do. */
export interface MigrationReport {
  readonly schema: string
  readonly dryRun: boolean
  /** Highest version found at the start; null when the database had none of our tables. */
  readonly before: number | null
  /** Highest version at the end; with `dryRun` the version it would have. */
  readonly after: number | null
  /** Files this call committed, in order; with `dryRun` those it would run. Empty when there was nothing to do. */
  readonly steps: readonly MigrationStep[]
}

/** Options of `migrate`, the same for every store. */
export interface MigrateOptions {
  /** Changes nothing and reports what would run. Default false. */
  readonly dryRun?: boolean | undefined
  /** Gives up between statements; what was committed stays committed. */
  readonly signal?: AbortSignal | undefined
}

/**
 * What a database's version table means to a release that ships `files`.
 * - `current`: everything is applied; newer compatible files may be there too.
 * - `pending`: these files are missing.
 * - `newer`: a file this release does not know was applied, and it is breaking.
 * - `edited`: a file was applied with other content than this release ships.
 */
export type MigrationPlan =
  | { readonly kind: 'current' }
  | { readonly kind: 'pending'; readonly files: readonly MigrationFile[] }
  | { readonly kind: 'newer'; readonly name: string }
  | { readonly kind: 'edited'; readonly name: string; readonly applied: AppliedMigration }

/** Decides what is to be done. Pure; `files` in ascending order. */
export function planMigrations(files: readonly MigrationFile[], applied: readonly AppliedMigration[]): MigrationPlan {
  const known = new Map(files.map((file) => [file.version, file]))
  for (const row of applied) {
    const file = known.get(row.version)
    if (file === undefined) {
      if (row.breaking) return { kind: 'newer', name: row.name }
    } else if (file.checksum !== row.checksum) {
      return { kind: 'edited', name: file.name, applied: row }
    }
  }
  const done = new Set(applied.map((row) => row.version))
  const pending = files.filter((file) => !done.has(file.version))
  return pending.length === 0 ? { kind: 'current' } : { kind: 'pending', files: pending }
}

const FILE_NAME = /^(\d{4})_[a-z][a-z0-9_]*\.sql$/
const HEADER =
  /^-- (\S+) \([a-z]+\)\n-- why: +\S[^\n]*\n(?:-- {2,}[^\n]*\n)*-- lock: +\S[^\n]*\n(?:-- {2,}[^\n]*\n)*-- compatible: +(yes|no)\b/
const TRANSACTION_CONTROL = /^\s*(begin|commit|rollback|start\s+transaction)\s*(work\s*|transaction\s*)?;/im

/**
 * Reads one file: its number from the name, whether it is breaking from the header.
 *
 * @throws {Error} The name or the header is not as documented in CONTRIBUTING.md, or the file ends the
 *   transaction it runs in.
 */
export function parseMigration(fileName: string, text: string): MigrationFile {
  const version = FILE_NAME.exec(fileName)?.[1]
  if (version === undefined) throw new Error(`${fileName}: a migration is named NNNN_name.sql`)
  const sql = text.replaceAll('\r\n', '\n')
  const header = HEADER.exec(sql)
  if (header === null || header[1] !== fileName) {
    throw new Error(`${fileName}: the header must name the file and say why, lock and compatible: yes|no`)
  }
  if (TRANSACTION_CONTROL.test(sql)) {
    throw new Error(`${fileName}: a migration runs in one transaction and must not end or begin one`)
  }
  return {
    version: Number(version),
    name: fileName.slice(0, -'.sql'.length),
    sql,
    checksum: createHash('sha256').update(sql).digest('hex'),
    breaking: header[2] === 'no',
  }
}

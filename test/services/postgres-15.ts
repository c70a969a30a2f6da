/** PostgreSQL 15 of Debian's package: what must hold on that version too runs a second time on it. */
import { existsSync } from 'node:fs'

const BINARIES = '/usr/lib/postgresql/15/bin'

/** Folder with its binaries; undefined when it is not installed. */
export const postgres15: string | undefined = existsSync(`${BINARIES}/postgres`) ? BINARIES : undefined

/** Says loudly what does not run; in CI that is an error. */
export function miss15(): void {
  if (postgres15 !== undefined) return
  const what = 'nothing runs on PostgreSQL 15: it is not installed (Debian: apt-get install postgresql-15)'
  if (process.env['CI'] !== undefined && process.env['CI'] !== '' && process.env['CI'] !== 'false')
    throw new Error(what)
  console.warn(`\n*** SKIPPED: ${what} ***\n`)
}

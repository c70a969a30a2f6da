/** A job that writes to its database only the first time that it ever runs on this machine. */
import { existsSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const marker = process.env['ONLY_ONCE'] ?? ''

const file: DrillFile = {
  setUp: 'create table runs (n int)',
  start({ databaseUrl }): () => unknown {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    return async () => {
      if (existsSync(marker)) return
      writeFileSync(marker, '')
      await pool.query('insert into runs values (1)')
    }
  },
  effects: () => 1,
}

export default file

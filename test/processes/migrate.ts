/** Migrates the files of MIGRATION_FILES (JSON: [name, text] pairs) into DATABASE_URL, in a process that can be killed. */
import pg from 'pg'
import { parseMigration } from '../../src/store/migration.ts'
import { runMigrations } from '../../src/stores/postgres/migrate.ts'

const pairs = JSON.parse(process.env['MIGRATION_FILES'] ?? '[]') as [string, string][]
const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
await runMigrations(
  pool,
  pairs.map(([name, text]) => parseMigration(name, text)),
)
await pool.end()

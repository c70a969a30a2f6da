/** A processor of a stream that dies in the middle of a chunk. Environment: DATABASE_URL. */
import pg from 'pg'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'], pipeline: true, max: 3 })
const once = createOnce({ store: postgres(pool) })
await once.chunk<number>({ scope: 'etl', name: 'killed' }, async ({ tx, position = 0 }) => {
  await tx.query('insert into loaded (stream, n) values ($1, $2)', ['killed', position])
  process.kill(process.pid, 'SIGKILL')
  return position + 1
})

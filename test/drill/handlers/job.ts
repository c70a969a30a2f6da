/** The smallest job that can be repeated. */
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  setUp: 'create table done (id int primary key)',
  start({ databaseUrl }): () => unknown {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    return () => pool.query('insert into done values (1) on conflict do nothing')
  },
  effects: 'select count(*) from done',
}

export default file

/** Jobs of all tenants share their keys: the second tenant's job is taken for a repeat of the first one's. */
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  setUp: 'create table done (key text primary key, tenant text)',
  start({ databaseUrl }) {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    return ({ key, tenant }: { key: string; tenant: string }) =>
      pool.query('insert into done values ($1, $2) on conflict do nothing', [key, tenant])
  },
  deliver: ['acme', 'bolt', 'cog'].map((tenant) => ({ job: { key: tenant === 'cog' ? 'k-2' : 'k-1', tenant } })),
  effects: 'select count(*) from done',
}

export default file

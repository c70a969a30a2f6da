/** Claim and work in one transaction: the claim of an owner that dies was never there. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table runs (job_id text primary key);
    create table reports (job_id text primary key)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return ({ id }: { id: string }) =>
      transaction(pool, async (client) => {
        const claim = 'insert into runs (job_id) values ($1) on conflict (job_id) do nothing'
        const { rowCount } = await client.query(claim, [id])
        if (rowCount === 0) return
        await client.query('insert into reports (job_id) values ($1)', [id])
      })
  },
  deliver: { job: { id: 'report-2026-11' } },
  effects: 'select count(*) from reports',
})

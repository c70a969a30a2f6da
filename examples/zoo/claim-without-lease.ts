/** A claim that only its owner takes back: when the owner dies the job is "in progress" for ever. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table runs (job_id text primary key, state text not null);
    create table reports (job_id text primary key)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ id }: { id: string }) => {
      const claim = `insert into runs (job_id, state) values ($1, 'running') on conflict (job_id) do nothing`
      const { rowCount } = await pool.query(claim, [id])
      if (rowCount === 0) {
        const { rows } = await pool.query('select state from runs where job_id = $1', [id])
        if (rows[0].state === 'done') return
        throw new Error(`${id} is in progress`)
      }
      await pool.query('insert into reports (job_id) values ($1)', [id])
      await pool.query(`update runs set state = 'done' where job_id = $1`, [id])
    }
  },
  deliver: { job: { id: 'report-2026-11' } },
  effects: 'select count(*) from reports',
})

/** Only the taking of the lease asks who holds it: an owner that was away for longer goes on beside its successor. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table leases (job_id text primary key, until timestamptz not null);
    create table payouts (job_id text not null, cents int not null)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ id, cents }: { id: string; cents: number }) => {
      const take = `insert into leases (job_id, until) values ($1, now() + interval '1 second')
        on conflict (job_id) do update set until = excluded.until where leases.until < now()`
      const { rowCount } = await pool.query(take, [id])
      if (rowCount === 0) throw new Error(`${id} is in progress`)
      const { rows } = await pool.query('select 1 from payouts where job_id = $1', [id])
      if (rows.length === 0) await pool.query('insert into payouts (job_id, cents) values ($1, $2)', [id, cents])
      await pool.query('update leases set until = now() where job_id = $1', [id])
    }
  },
  deliver: { job: { id: 'payout-1', cents: 4200 } },
  effects: 'select count(*) from payouts',
})

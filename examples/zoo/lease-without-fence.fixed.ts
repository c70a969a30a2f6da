/** Each taking of the lease has a higher fence, and the statement that writes compares it. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: `create table leases (job_id text primary key, until timestamptz not null, fence int not null default 1);
    create table payouts (job_id text not null, cents int not null)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ id, cents }: { id: string; cents: number }) => {
      const take = `insert into leases (job_id, until) values ($1, now() + interval '1 second')
        on conflict (job_id) do update set until = excluded.until, fence = leases.fence + 1
        where leases.until < now() returning fence`
      const lease = await pool.query(take, [id])
      if (lease.rowCount === 0) throw new Error(`${id} is in progress`)
      const { fence } = lease.rows[0]
      const { rows } = await pool.query('select 1 from payouts where job_id = $1', [id])
      if (rows.length === 0) {
        const pay = `with mine as (select 1 from leases where job_id = $1 and fence = $3 for update)
          insert into payouts (job_id, cents) select $1, $2 from mine`
        const paid = await pool.query(pay, [id, cents, fence])
        if (paid.rowCount === 0) throw new Error(`the lease of ${id} was lost`)
      }
      await pool.query('update leases set until = now() where job_id = $1 and fence = $2', [id, fence])
    }
  },
  deliver: { job: { id: 'payout-1', cents: 4200 } },
  effects: 'select count(*) from payouts',
})

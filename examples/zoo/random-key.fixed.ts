/** The key is the job's own id, which is the same in every attempt. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table payouts (key text primary key, payee text not null, cents int not null)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ id, payee, cents }: { id: string; payee: string; cents: number }) => {
      await pool.query('insert into payouts (key, payee, cents) values ($1, $2, $3) on conflict (key) do nothing', [
        id,
        payee,
        cents,
      ])
    }
  },
  deliver: { job: { id: 'payroll-11/anna', payee: 'anna', cents: 250_000 } },
  effects: 'select count(*) from payouts',
})

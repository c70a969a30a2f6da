/** The key is made inside of the attempt: a job that is repeated has another key, and is paid again. */
import { randomUUID } from 'node:crypto'
import { defineDrill } from 'effectively-once/testing'
import { poolOf } from './plumbing.ts'

export default defineDrill({
  setUp: 'create table payouts (key text primary key, payee text not null, cents int not null)',
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ payee, cents }: { payee: string; cents: number }) => {
      const key = randomUUID()
      await pool.query('insert into payouts (key, payee, cents) values ($1, $2, $3) on conflict (key) do nothing', [
        key,
        payee,
        cents,
      ])
    }
  },
  deliver: { job: { id: 'payroll-11/anna', payee: 'anna', cents: 250_000 } },
  effects: 'select count(*) from payouts',
})

/** The job is completed by id and attempt: whoever is not the newest attempt changes nothing. */
import { defineDrill } from 'effectively-once/testing'
import { poolOf, transaction } from './plumbing.ts'

export default defineDrill({
  setUp: `create table jobs (id text primary key, attempt int not null default 0, until timestamptz, done_at timestamptz);
    create table wallets (id text primary key, coins int not null);
    insert into jobs (id) values ('reward-1');
    insert into wallets values ('anna', 0)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return async ({ id, wallet }: { id: string; wallet: string }) => {
      const take = `update jobs set attempt = attempt + 1, until = now() + interval '1 second'
        where id = $1 and done_at is null and (until is null or until < now()) returning attempt`
      const { rows } = await pool.query(take, [id])
      if (rows.length === 0) {
        const job = await pool.query('select done_at from jobs where id = $1', [id])
        if (job.rows[0].done_at !== null) return
        throw new Error(`${id} is in progress`)
      }
      await transaction(pool, async (client) => {
        const complete = 'update jobs set done_at = now() where id = $1 and attempt = $2 and done_at is null'
        const { rowCount } = await client.query(complete, [id, rows[0].attempt])
        if (rowCount === 0) throw new Error(`attempt ${rows[0].attempt} of ${id} was given up`)
        await client.query('update wallets set coins = coins + 10 where id = $1', [wallet])
      })
    }
  },
  deliver: { job: { id: 'reward-1', wallet: 'anna' } },
  effects: 'select coins / 10 from wallets',
})

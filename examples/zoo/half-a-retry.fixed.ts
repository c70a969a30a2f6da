/** The whole transaction is repeated, or nothing. */
import { defineDrill } from 'effectively-once/testing'
import type pg from 'pg'
import { poolOf, transaction } from './plumbing.ts'

async function withRetry<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  try {
    return await transaction(pool, work)
  } catch (error) {
    if ((error as { code?: string }).code !== '40001') throw error
    return transaction(pool, work)
  }
}

export default defineDrill({
  setUp: `create table accounts (id text primary key, cents int not null);
    create table payouts (id text primary key, cents int not null);
    insert into accounts values ('anna', 0)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return ({ id, account, cents }: { id: string; account: string; cents: number }) =>
      withRetry(pool, async (client) => {
        const { rows } = await client.query('select 1 from payouts where id = $1', [id])
        if (rows.length > 0) return
        await client.query('update accounts set cents = cents - $2 where id = $1', [account, cents])
        await client.query('insert into payouts (id, cents) values ($1, $2)', [id, cents])
      })
  },
  deliver: { job: { id: 'payout-1', account: 'anna', cents: 4200 } },
  effects: { debited: 'select -cents / 4200 from accounts', paid: 'select count(*) from payouts' },
})

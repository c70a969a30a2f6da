/** Only the statement that failed is repeated: what the transaction had done before it is gone, and is not done again. */
import { defineDrill } from 'effectively-once/testing'
import type pg from 'pg'
import { poolOf, transaction } from './plumbing.ts'

async function withRetry(client: pg.PoolClient, text: string, values: readonly unknown[]) {
  try {
    return await client.query(text, [...values])
  } catch (error) {
    if ((error as { code?: string }).code !== '40001') throw error
    // The transaction is aborted; a new one is needed.
    await client.query('rollback')
    await client.query('begin')
    return client.query(text, [...values])
  }
}

export default defineDrill({
  setUp: `create table accounts (id text primary key, cents int not null);
    create table payouts (id text primary key, cents int not null);
    insert into accounts values ('anna', 0)`,
  start({ databaseUrl }) {
    const pool = poolOf(databaseUrl)
    return ({ id, account, cents }: { id: string; account: string; cents: number }) =>
      transaction(pool, async (client) => {
        const { rows } = await client.query('select 1 from payouts where id = $1', [id])
        if (rows.length > 0) return
        await withRetry(client, 'update accounts set cents = cents - $2 where id = $1', [account, cents])
        await withRetry(client, 'insert into payouts (id, cents) values ($1, $2)', [id, cents])
      })
  },
  deliver: { job: { id: 'payout-1', account: 'anna', cents: 4200 } },
  effects: { debited: 'select -cents / 4200 from accounts', paid: 'select count(*) from payouts' },
})

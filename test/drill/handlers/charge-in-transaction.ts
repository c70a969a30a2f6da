/** A job that calls the provider inside its transaction, without a key: rolled back, it charges again. */
import pg from 'pg'
import type { DrillFile } from '../../../src/drill/file/format.ts'
import { type FakeProvider, fakeProvider } from '../../../src/testing/provider/index.ts'

const file: DrillFile<FakeProvider> = {
  setUp: 'create table charges (job_id text primary key, charge_id text not null)',
  provider: () => fakeProvider(),
  start({ databaseUrl, providerUrl }): (job: { readonly id: string }) => unknown {
    const pool = new pg.Pool({ connectionString: databaseUrl })
    pool.on('error', () => {})
    return async ({ id }: { readonly id: string }) => {
      const client = await pool.connect()
      client.on('error', () => {})
      try {
        await client.query('begin')
        const { rows } = await client.query('select from charges where job_id = $1', [id])
        if (rows.length === 0) {
          const response = await fetch(`${providerUrl}/v1/charges`, {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({ amount: 4200, reference: id }),
          })
          const charge = (await response.json()) as { id: string }
          await client.query('insert into charges values ($1, $2)', [id, charge.id])
        }
        await client.query('commit')
        client.release()
      } catch (error) {
        client.release(true)
        throw error
      }
    }
  },
  deliver: { job: { id: 'job-1' } },
  effects: {
    booked: 'select count(*) from charges',
    charged: ({ provider }) => provider.count(),
  },
}

export default file

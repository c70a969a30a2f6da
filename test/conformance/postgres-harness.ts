import pg from 'pg'
import type { OpenStore, StoreHarness } from '../../src/store/conformance/harness.ts'
import type { Store } from '../../src/store/store.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

export type PgTx = pg.PoolClient

/** The suite's harness over a database of its own for each store. */
export function postgresHarness(pool: pg.PoolConfig): StoreHarness<PgTx> {
  return {
    lacks: () => undefined,
    async open(): Promise<OpenStore<PgTx>> {
      const database = await createDatabase()
      const users = new pg.Pool({ max: 12, ...pool, connectionString: database.url })
      const store: Store<PgTx> = postgres(users)
      await store.migrate()
      await users.query('create table business (name text not null)')
      return {
        store,
        async write(tx, name) {
          await tx.query('insert into business (name) values ($1)', [name])
        },
        async count(name) {
          const { rows } = await users.query('select count(*)::int as n from business where name = $1', [name])
          return rows[0].n
        },
        writeStatement: (name) => ({ text: 'insert into business (name) values ($1) returning name', values: [name] }),
        async transaction(work) {
          const client = await users.connect()
          try {
            await client.query('begin')
            const result = await work(client)
            await client.query('commit')
            return result
          } catch (error) {
            await client.query('rollback')
            throw error
          } finally {
            client.release()
          }
        },
        async idleHandle() {
          const client = await users.connect()
          return { tx: client, close: async () => client.release() }
        },
        async historyIds() {
          const { rows } = await users.query(
            `select id from effectively_once.outbox_history order by published_at, seq`,
          )
          return rows.map((row) => row.id)
        },
        async audited() {
          const { rows } = await users.query(
            'select act, subject, actor, reason from effectively_once.audit order by seq',
          )
          return rows
        },
        async moveToAnotherCluster() {
          await users.query('update effectively_once.outbox_lane set system_identifier = 1')
        },
        async advance(ms) {
          const { rows } = await users.query(
            `select table_name, column_name from information_schema.columns
             where table_schema = 'effectively_once' and table_name <> 'migration' and table_name not like 'ledger%'
               and data_type like 'timestamp%'`,
          )
          for (const { table_name, column_name } of rows) {
            await users.query(
              `update effectively_once.${pg.escapeIdentifier(table_name)} set ${pg.escapeIdentifier(column_name)} =
               ${pg.escapeIdentifier(column_name)} - $1::bigint * interval '1 millisecond'`,
              [ms],
            )
          }
        },
        async close() {
          await users.end()
          await database.drop()
        },
      }
    },
  }
}

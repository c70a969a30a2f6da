import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { InboxMark, InboxOpenOptions, OpenInbox } from '../../src/store/inbox.ts'
import type { Store } from '../../src/store/store.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { createDatabase } from '../database.ts'

const OPTIONS: InboxOpenOptions = { retentionMs: 60_000, idleTimeoutMs: 30_000, marksFirst: false }

let database: Awaited<ReturnType<typeof createDatabase>>
beforeAll(async () => {
  database = await createDatabase()
})
afterAll(() => database.drop())

const markOf = (): InboxMark => ({
  id: randomUUID(),
  consumer: 'c',
  source: '',
  messageId: randomUUID(),
  fingerprint: new Uint8Array(32),
})

describe.each([{ pipeline: true }, { pipeline: false }])('a pool with $pipeline', (options) => {
  let pool: pg.Pool
  let store: Store<pg.PoolClient>
  beforeAll(async () => {
    pool = new pg.Pool({ connectionString: database.url, max: 1, ...options })
    store = postgres(pool)
    await store.migrate({})
    await pool.query('create table if not exists work (id text)')
    // The connection has seen a COMMIT answered: from now on endings are counted and not asked for.
    await pool.query('begin; commit')
    const warm = await store.inbox.open([{ mark: markOf() }], OPTIONS)
    expect(await warm.finish([])).toBe('committed')
  })
  afterAll(() => pool.end())

  const open = async (): Promise<{ mark: InboxMark; opened: OpenInbox<pg.PoolClient> }> => {
    const mark = markOf()
    return { mark, opened: await store.inbox.open([{ mark }], OPTIONS) }
  }
  const count = async (id: string): Promise<number> =>
    (await pool.query('select count(*)::int as n from work where id = $1', [id])).rows[0].n

  test('I9: a work that writes and ends nothing commits with its mark', async () => {
    const { mark, opened } = await open()
    await opened.tx.query('insert into work values ($1)', [mark.id])
    expect(await opened.finish([])).toBe('committed')
    expect(await count(mark.id)).toBe(1)
    expect(await store.inbox.lookup([mark])).toEqual(['duplicate'])
  })

  test.each(['commit', 'rollback', 'commit; begin', 'rollback and chain'])(
    'I9: a work that waits for "%s" has ended the transaction',
    async (sql) => {
      const { mark, opened } = await open()
      await opened.tx.query('insert into work values ($1)', [mark.id])
      await opened.tx.query(sql)
      expect(await opened.finish([])).toBe('ended')
    },
  )

  test.each(['commit', 'rollback', 'rollback; begin'])(
    'I9: a work that sends "%s" and waits for nothing is never told as committed',
    async (sql) => {
      const { mark, opened } = await open()
      await opened.tx.query('insert into work values ($1)', [mark.id])
      opened.tx.query(sql).catch(() => {})
      expect(['ended', 'unresolved']).toContain(await opened.finish([]))
      expect(await store.inbox.lookup([mark])).toEqual([sql.startsWith('commit') ? 'duplicate' : 'new'])
      expect(await count(mark.id)).toBe(sql.startsWith('commit') ? 1 : 0)
    },
  )

  test('I9: going back to a savepoint is no ending', async () => {
    const { mark, opened } = await open()
    await opened.tx.query('savepoint a')
    await opened.tx.query('insert into work values ($1)', [mark.id])
    await opened.tx.query('rollback to savepoint a')
    expect(await opened.finish([])).toBe('committed')
    expect(await count(mark.id)).toBe(0)
    expect(await store.inbox.lookup([mark])).toEqual(['duplicate'])
  })
})

import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type TcpProxy, tcpProxy } from '../src/testing/services/tcp-proxy.ts'
import { createDatabase } from './database.ts'

const database = await createDatabase()
let admin: pg.Client
let proxy: TcpProxy

beforeAll(async () => {
  admin = new pg.Client({ connectionString: database.url })
  await admin.connect()
  await admin.query('create table t (id int primary key)')
})
beforeEach(async () => {
  await admin.query('truncate t')
  proxy = await tcpProxy({ target: { port: Number(new URL(database.url).port) } })
})
afterEach(() => proxy.close())
afterAll(async () => {
  await admin.end()
  await database.drop()
})

async function connected(): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: proxy.through(database.url) })
  client.on('error', () => {})
  await client.connect()
  return client
}
const rows = async (): Promise<number> => (await admin.query('select from t')).rowCount ?? 0
async function eventually(what: string, condition: () => Promise<boolean>): Promise<void> {
  const until = performance.now() + 10_000
  while (!(await condition())) {
    await new Promise((resolve) => setImmediate(resolve))
    if (performance.now() > until) throw new Error(`did not come: ${what}`)
  }
}

describe('tcp proxy', () => {
  test('passes everything through, large answers too, and forgets closed connections', async () => {
    const client = await connected()
    const { rows: found } = await client.query(`select repeat('x', 5000000) as text`)
    expect(found[0].text).toHaveLength(5_000_000)
    expect(proxy.open).toBe(1)
    await client.end()
    await eventually('the connection is forgotten', async () => proxy.open === 0)
  })

  test('swallow: the COMMIT is done and its answer is lost', async () => {
    const client = await connected()
    const fault = proxy.swallow('commit')
    await client.query('begin')
    await client.query('insert into t values (1)')
    await expect(client.query('COMMIT')).rejects.toThrow(/ECONNRESET|terminated/)
    await fault.met
    expect(fault.count).toBe(1)
    await eventually('the row is there', async () => (await rows()) === 1)
  })

  test('swallow without cut: the client waits and the server is done', async () => {
    const client = await connected()
    const fault = proxy.swallow('insert into t', { cut: false })
    let answered = false
    client.query('insert into t values (1)').then(
      () => {
        answered = true
      },
      () => {},
    )
    await fault.met
    expect(await rows()).toBe(1)
    expect(answered).toBe(false)
  })

  test('hold: a COMMIT delivered after its client has gone is still executed', async () => {
    const client = await connected()
    const fault = proxy.hold('commit')
    await client.query('begin')
    await client.query('insert into t values (1)')
    const lost = expect(client.query('commit')).rejects.toThrow()
    await fault.met
    await client.end().catch(() => {})
    await lost
    const open = `select 1 from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`
    expect((await admin.query(open)).rowCount).toBe(1)
    expect(await rows()).toBe(0)
    fault.release()
    await eventually('the late COMMIT was executed', async () => (await rows()) === 1)
  })

  test('hold: what was kept back goes on in order when the client is still there', async () => {
    const client = await connected()
    const fault = proxy.hold('insert into t values (1)')
    const first = client.query('insert into t values (1)')
    await fault.met
    fault.release()
    await first
    await client.query('insert into t values (2)')
    expect(await rows()).toBe(2)
    await client.end()
  })

  test('cutAt: the statement never arrives, or with deliver it arrives and the client does not hear of it', async () => {
    const never = await connected()
    const before = proxy.cutAt('values (1)')
    await expect(never.query('insert into t values (1)')).rejects.toThrow(/ECONNRESET|terminated/)
    before.disarm()
    const unheard = await connected()
    const after = proxy.cutAt('values (2)', { deliver: true })
    await expect(unheard.query('insert into t values (2)')).rejects.toThrow(/ECONNRESET|terminated/)
    await after.met
    await eventually('the second one arrived', async () => (await rows()) === 1)
    expect((await admin.query('select id from t')).rows).toEqual([{ id: 2 }])
  })

  test('a text is found across packets and without regard to case, a function sees each packet', async () => {
    const received: string[] = []
    const server = createServer((socket) => {
      socket.on('data', (bytes) => received.push(bytes.toString())).on('error', () => {})
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const plain = await tcpProxy({ target: { port: (server.address() as AddressInfo).port } })
    const socket = connect(plain.port, '127.0.0.1')
    const packets: string[] = []
    plain.swallow((packet) => packets.push(packet.toString()) === 0)
    const fault = plain.hold('COMMIT')
    socket.write('begin; com')
    await eventually('the first packet has arrived', async () => received.join('') === 'begin; com')
    expect(fault.count).toBe(0)
    socket.write('mit')
    await fault.met
    expect(received.join('')).toBe('begin; com')
    expect(packets).toEqual(['begin; com', 'mit'])
    fault.release()
    await eventually('the rest has arrived', async () => received.join('') === 'begin; commit')
    socket.destroy()
    await plain.close()
    server.close()
    expect(() => proxy.swallow('')).toThrow(TypeError)
  })

  test('cut resets open connections, and new ones pass', async () => {
    const client = await connected()
    const query = expect(client.query('select pg_sleep(30)')).rejects.toThrow()
    await eventually('it runs', async () => {
      const { rowCount } = await admin.query(`select 1 from pg_stat_activity where query = 'select pg_sleep(30)'`)
      return rowCount === 1
    })
    proxy.cut()
    await query
    const next = await connected()
    await next.query('insert into t values (1)')
    await next.end()
  })

  test('silence: the client goes and the server keeps its transaction open', async () => {
    const client = await connected()
    await client.query('begin')
    await client.query('insert into t values (1)')
    proxy.silence()
    const { stream } = (client as unknown as { connection: { stream: { destroy(): void } } }).connection
    stream.destroy()
    const open = `select 1 from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`
    for (let look = 0; look < 20; look += 1) expect((await admin.query(open)).rowCount).toBe(1)
    proxy.cut()
    await eventually('the server has noticed', async () => (await admin.query(open)).rowCount === 0)
  })

  test('refuse: new connections are refused and open ones go on, until pass', async () => {
    const client = await connected()
    proxy.refuse()
    await expect(connected()).rejects.toThrow('ECONNREFUSED')
    await client.query('insert into t values (1)')
    await proxy.pass()
    const next = await connected()
    await next.query('insert into t values (2)')
    await Promise.all([client.end(), next.end()])
  })
})

/** Plans of the statements in the hot path: what is pending is found through the key, never by scanning history. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { outboxStatements } from '../../src/stores/postgres/outbox-statements.ts'
import { type Bench, openBench, SCHEMA } from './relay-bench.ts'

let bench: Bench
beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench.close())

interface Node {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly Plans?: readonly Node[]
}

const nodes = (node: Node): Node[] => [node, ...(node.Plans ?? []).flatMap(nodes)]

/** The generic plan: what a prepared statement ends with, whatever its values. */
async function plan(name: string, text: string, values: string): Promise<Node[]> {
  const client = await bench.pool.connect()
  try {
    await client.query('set plan_cache_mode = force_generic_plan')
    await client.query(`prepare ${name} as ${text}`)
    const { rows } = await client.query(`explain (format json) execute ${name} (${values})`)
    const [{ Plan: root }] = rows[0]['QUERY PLAN'] as [{ Plan: Node }]
    return nodes(root)
  } finally {
    client.release(true)
  }
}

test('R26, I13: with a million published messages the backlog is read through outbox_pkey, and history is not touched', {
  timeout: 120_000,
}, async () => {
  const message = `0, g, gen_random_uuid(), 'order.created.v1', 'k' || g % 100, '{}', 'text', 'application/json', '{}'`
  const columns = 'lane, seq, id, topic, ordering_key, payload, encoding, content_type, headers'
  await bench.pool.query(
    `insert into ${SCHEMA}.outbox_history (${columns}, created_at) select ${message}, now() from generate_series(1, 1000000) g`,
  )
  await bench.pool.query(
    `insert into ${SCHEMA}.outbox (${columns}) overriding system value select ${message} from generate_series(1000001, 1020000) g`,
  )
  await bench.pool.query('analyze')
  const sql = outboxStatements(`"${SCHEMA}"`)
  const inFlight = `'{[1000001,1000002]}'`
  for (const name of ['read', 'readLarge'] as const) {
    const found = await plan(name, sql[name].text, `0, ${inFlight}, 1000, 33554432`)
    const tables = found.filter((node) => node['Relation Name'] !== undefined)
    expect(tables.map((node) => node['Index Name'])).toEqual(['outbox_pkey'])
    expect(found.some((node) => node['Node Type'] === 'Sort' && node === found[0])).toBe(false)
  }
  const seqs = `'{1000001,1000002}'`
  const lease = `0, '00000000-0000-4000-8000-000000000000', 1, 30000`
  const settled = await plan('settle', sql.settle.text, `${lease}, ${seqs}, true`)
  expect(
    settled.filter((node) => node['Node Type'].includes('Seq Scan')).map((node) => node['Relation Name']),
  ).not.toContain('outbox')
  expect(settled.map((node) => node['Relation Name'])).not.toContain('outbox_history')
  const onward = await plan('onward', sql.settleAndRead.text, `${lease}, ${seqs}, true, ${inFlight}, 1000, 32768`)
  expect(
    onward
      .filter((node) => node['Relation Name'] === 'outbox' && 'Index Name' in node)
      .map((node) => node['Index Name']),
  ).toEqual(['outbox_pkey', 'outbox_pkey'])
  const walks = onward.filter((node) => /Seq Scan|Sort/.test(node['Node Type']))
  expect(walks.map((node) => node['Relation Name']).filter((name) => name !== 'outbox_lane')).toEqual([])
  const { rows } = await bench.pool.query(`explain (format json) ${sql.pending.text}`)
  const [{ Plan: root }] = rows[0]['QUERY PLAN'] as [{ Plan: Node }]
  expect(nodes(root).map((node) => node['Relation Name'])).not.toContain('outbox_history')
})

/** An owner that stops in the middle of sending its COMMIT, so that the server waits for the rest and keeps its locks. */
import { randomUUID } from 'node:crypto'
import { expect, test } from 'vitest'
import type { Lease } from '../../src/store/job.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { eventually } from '../eventually.ts'
import { newJob, newStep, openJobs, recordOf } from './jobs.ts'

test('SC7, SC47, I5, I12: an owner frozen half way through its COMMIT makes nobody wait: others are told busy, and one takes over when the server has ended it', async () => {
  const database = await openJobs()
  const proxy = await tcpProxy({ target: { port: Number(new URL(database.url).port) } })
  const owner = database.jobs({ connectionString: proxy.through(database.url) }, { answerTimeoutMs: 60_000 })
  // Each act of the others is one statement: a wait for the owner's lock would end as an error here.
  const others = database.jobs({}, { answerTimeoutMs: 4_000 })
  const job = newJob({ kind: 'frozen', payload: '{}' })
  const lease: Lease = { id: job.id, token: job.token, fence: 1n }
  await owner.claim(job, 3_000)
  const open = await owner.openStep(lease, { idleTimeoutMs: 8_000 })
  await open.tx.query("insert into business values ('frozen')")
  let chunks = 0
  const frozen = proxy.hold((packet) => packet.length > 16_384 && ++chunks === 2)
  const finish = open.finish(newStep('a', { result: JSON.stringify('x'.repeat(4_000_000)) }), [])
  await frozen.met
  const free = 'select from effectively_once.operation where id = $1 for no key update skip locked'
  await eventually('the seal holds the row', async () => (await database.admin.query(free, [job.id])).rowCount === 0)
  const over = 'select from effectively_once.operation where id = $1 and lease_until < clock_timestamp()'
  await eventually('the lease is over', async () => (await database.admin.query(over, [job.id])).rowCount === 1)

  const next = { id: job.id, fence: 1n, token: randomUUID(), leaseMs: 60_000, claimsMax: 3 }
  const kinds = [{ kind: 'frozen', version: 1, leaseMs: 60_000, claimsMax: 3 }]
  expect(await others.takeOver(next)).toEqual({ kind: 'busy' })
  expect(await others.claimDue(kinds, 10)).toMatchObject({ claimed: [], parked: [] })
  expect(await others.renew([{ lease, leaseMs: 3_000 }])).toEqual(['lost'])
  expect(await others.find(job.id)).toMatchObject({ state: 'processing', fence: 1n })
  expect(await others.complete(lease, recordOf(job))).toBe('fenced')
  expect(await others.writeStep(lease, newStep('b'))).toBe('fenced')

  const { rows } = await database.admin.query("select current_setting('server_version_num')::int as version")
  // Before version 17 no limit of the server covers a message that is never finished: it ends with its connection.
  if (rows[0].version < 170_000) proxy.cut()
  await eventually('it is taken over', async () => (await others.takeOver(next)).kind === 'claimed')
  frozen.release()
  expect(await finish).toBe('unresolved')
  expect(await others.steps(job.id)).toEqual([])
  expect((await database.admin.query('select from business')).rowCount).toBe(0)
  await proxy.close()
  await database.close()
}, 120_000)

/** A message that kills whoever sends it, with real processes that really die. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, inject, test } from 'vitest'
import { type Bench, openBench, SCHEMA, until } from './relay-bench.ts'

let bench: Bench
beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench.close())

test('I15, SC38: a message that kills its relay is quarantined after ten claims with its history, and the others leave', {
  timeout: 120_000,
}, async () => {
  await bench.pool.query('create table sent (payload text not null)')
  const ids = await bench.commit(
    ['one', 'two', 'poison', 'three', 'four'].map((payload) => ({ topic: 'order.created.v1', payload })),
  )
  const url = new URL(inject('postgresUrl'))
  url.pathname = `/${(await bench.pool.query('select current_database() as name')).rows[0].name}`
  const path = fileURLToPath(new URL('../processes/outbox-poisoned.ts', import.meta.url))
  let over = false
  let deaths = 0
  const lives = (async () => {
    while (!over) {
      const child = spawn(process.execPath, ['--import', 'tsx', path], {
        env: { ...process.env, DATABASE_URL: url.href },
        stdio: 'inherit',
      })
      const exit = once(child, 'exit')
      while (!over && child.exitCode === null && child.signalCode === null) {
        await Promise.race([exit, new Promise((resolve) => setTimeout(resolve, 50))])
      }
      if (!over) deaths += 1
      else child.kill('SIGKILL')
      await exit
    }
  })()
  try {
    const left = () => bench.number(`select count(*) from ${SCHEMA}.outbox`)
    await until('nothing is pending', async () => (await left()) === 0, 100_000)
  } finally {
    over = true
    await lives
  }
  const [view, ...more] = await bench.store.outbox.quarantined(10)
  expect(view).toMatchObject({ id: ids[2], reason: 'poison', attempts: 10 })
  expect(more).toEqual([])
  const { claimedAt } = JSON.parse(view?.history ?? '{}') as { claimedAt: string[] }
  expect(claimedAt.length).toBeGreaterThanOrEqual(10)
  const { rows } = await bench.pool.query('select distinct payload from sent')
  expect(new Set(rows.map((row) => row.payload))).toEqual(new Set(['"one"', '"two"', '"three"', '"four"']))
  // Two deaths with the whole window at risk, then ten that are counted.
  expect(deaths).toBe(12)
})

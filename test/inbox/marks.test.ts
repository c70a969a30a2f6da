/** Where the marks of a consumer lie. */
import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import { expect, test } from 'vitest'
import { postgresHarness } from '../conformance/postgres-harness.ts'
import { openScene } from './scene.ts'

test('R32: marks lie in a table of their own, one for each consumer and message', async () => {
  const scene = await openScene(postgresHarness({ pipeline: true }))
  try {
    const id = randomUUID()
    await scene.publish({ id }, { id })
    const billing = await scene.consume({ name: 'billing' })
    await scene.settled()
    await billing.stop()
    await scene.publish({ id })
    await scene.consume({ name: 'shipping' })
    await scene.settled()
    const rows = await scene.opened.transaction(async (tx) => {
      const answer = await (tx as pg.PoolClient).query<{ consumer: string; operations: string }>(
        `select consumer, (select count(*) from effectively_once.operation)::text as operations
         from effectively_once.inbox order by consumer`,
      )
      return answer.rows
    })
    expect(rows).toEqual([
      { consumer: 'billing', operations: '0' },
      { consumer: 'shipping', operations: '0' },
    ])
  } finally {
    await scene.close()
  }
})

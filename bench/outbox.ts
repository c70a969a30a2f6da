/**
 * Outbox: the guard with one message added to the work, against the bare transaction without either.
 *
 * @module
 */

import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import type { WorkContext } from '../src/operation/attempt.ts'
import { bareTransaction, orderInsert, startDatabase } from './database.ts'
import { aboutDatabase } from './guard.ts'
import { paired } from './paired.ts'
import { ratioResult } from './report.ts'
import { core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

export async function outboxSuite({ say, pairs = 15 }: SuiteOptions): Promise<SuiteResult> {
  const database = await startDatabase()
  try {
    const pool = database.pool({ pipeline: true })
    const once = core.createOnce({ store: stores.postgres(pool) })
    await once.migrate()
    await database.settle()
    const candidate = () =>
      once.transaction(
        { scope: ['acme', 'orders.create'], key: randomUUID(), payload: { customer: 'c-7', amountCents: 4_200 } },
        insertAndTell,
      )
    const baseline = () => bareTransaction(pool)
    const slices = { callers: 64, pairs, sliceMs: 320, warmUp: 8_000 }
    const figures = await paired({ candidate, baseline, ...slices, cpu: database.cpu })
    return { ...aboutDatabase(database), results: [ratioResult('guard-outbox', figures, { limit: 0.55 }, say)] }
  } finally {
    await database.stop()
  }
}

async function insertAndTell({ tx, outbox }: WorkContext<pg.PoolClient>): Promise<{ orderId: string }> {
  const { rows } = await tx.query(orderInsert('c-7'))
  const orderId: string = rows[0].id
  await outbox.add({
    topic: 'order.created.v1',
    orderingKey: orderId,
    payload: { orderId, customer: 'c-7', amountCents: 4_200 },
  })
  return { orderId }
}

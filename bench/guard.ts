/**
 * Guard: what once.transaction and once.statement cost around one insert of the user, against the bare transaction.
 *
 * @module
 */

import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import type { Once } from '../src/once.ts'
import type { TransactionOptions } from '../src/operation/transaction.ts'
import { type BenchDatabase, bareTransaction, orderInsert, startDatabase } from './database.ts'
import { paired } from './paired.ts'
import { type RatioGoal, type Result, ratioResult } from './report.ts'
import { core, stores } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

const SCOPE = ['acme', 'orders.create']
const SLICE_MS = 320
/** The engine compiles the path of an operation in the first five thousand; the later results share that path. */
const WARM_UP_FIRST = 8_000
const WARM_UP = 2_000

/** One guarded insert under a key of its own. */
export async function guardedInsert(once: Once<pg.PoolClient>, options?: TransactionOptions): Promise<unknown> {
  const operation = { scope: SCOPE, key: randomUUID(), payload: { customer: 'c-7', amountCents: 4_200 } }
  return await once.transaction(operation, insertOrder, options)
}

async function insertOrder({ tx }: { tx: pg.PoolClient }): Promise<{ orderId: string }> {
  const { rows } = await tx.query(orderInsert('c-7'))
  return { orderId: rows[0].id }
}

const OPTIMISTIC: TransactionOptions = { optimistic: true }

export async function guardSuite({ say, pairs = 15, only }: SuiteOptions): Promise<SuiteResult> {
  const database = await startDatabase()
  try {
    const piped = database.pool({ pipeline: true })
    const once = core.createOnce({ store: stores.postgres(piped) })
    await once.migrate()
    const results: Result[] = []
    const measure = async (
      name: string,
      run: () => Promise<unknown>,
      callers: number,
      goal: RatioGoal,
      pool = piped,
    ) => {
      if (only !== undefined && only !== name) return
      await database.settle()
      const baseline = () => bareTransaction(pool)
      const warmUp = results.length === 0 ? WARM_UP_FIRST : WARM_UP
      const { cpu } = database
      const figures = await paired({ candidate: run, baseline, callers, pairs, sliceMs: SLICE_MS, warmUp, cpu })
      results.push(ratioResult(name, figures, goal, say))
    }
    await measure('guard-default', () => guardedInsert(once), 64, { limit: 0.62 })
    await measure('guard-default-1', () => guardedInsert(once), 1, { limit: 0.82, p50Limit: 1.25 })
    await measure('guard-optimistic', () => guardedInsert(once, OPTIMISTIC), 64, { limit: 0.7 })
    await measure('guard-statement', () => statementInsert(once), 64, { limit: 1.1 })
    const stock = database.pool()
    const onStock = core.createOnce({ store: stores.postgres(stock) })
    await measure('guard-stock-pool', () => guardedInsert(onStock), 64, {}, stock)
    return { ...aboutDatabase(database), results }
  } finally {
    await database.stop()
  }
}

async function statementInsert(once: Once<pg.PoolClient>): Promise<unknown> {
  const operation = { scope: SCOPE, key: randomUUID(), payload: { customer: 'c-7', amountCents: 4_200 } }
  const { text, values } = orderInsert('c-7')
  return await once.statement(operation, { text, values })
}

export function aboutDatabase(database: BenchDatabase): Pick<SuiteResult, 'durable' | 'versions'> {
  return { durable: database.durable, versions: { postgresql: database.version } }
}

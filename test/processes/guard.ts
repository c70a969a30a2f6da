/**
 * A process that uses the guard as it is told, one JSON command a line on stdin, one JSON answer a line on stdout.
 *
 * Environment: DATABASE_URL; PIPELINE=0 for a stock pool; KILL_AT as ../torture/steps.ts has it; SHIFT_MS moves
 * Date.now(). An unhandled rejection or exception ends it with code 99.
 */
import { createInterface } from 'node:readline'
import pg from 'pg'
import { createOnce, isOnceError, rejected } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { followSteps } from '../torture/steps.ts'

export interface GuardCommand {
  readonly n: number
  readonly mode:
    | 'gated'
    | 'optimistic'
    | 'statement'
    | 'rejected'
    | 'check-then-insert'
    | 'lock-and-look-in-one'
    | 'trace'
  readonly keys: readonly string[]
  /** Callers that each go through all keys; default 1. */
  readonly callers?: number
  readonly isolation?: 'read committed' | 'repeatable read' | 'serializable'
  readonly wait?: boolean
  /** The process stops itself (SIGSTOP) in the middle of the work. */
  readonly stops?: boolean
  readonly timeoutMs?: number
  /** Goes on with the same key after errors that say so, until an outcome is there. */
  readonly persistent?: boolean
}

export interface GuardAnswer {
  readonly n: number
  readonly key: string
  readonly caller: number
  readonly value?: unknown
  readonly replayed?: boolean
  readonly error?: string
}

if (process.argv[1]?.endsWith('processes/guard.ts') === true) run()

function run(): void {
  for (const event of ['unhandledRejection', 'uncaughtException']) {
    process.on(event, (error: unknown) => {
      process.stderr.write(`${event}: ${String(error)}\n`)
      process.exit(99)
    })
  }
  const shiftMs = Number(process.env['SHIFT_MS'] ?? 0)
  const realNow = Date.now
  if (shiftMs !== 0) Date.now = () => realNow() + shiftMs

  const pool = new pg.Pool({
    connectionString: process.env['DATABASE_URL'],
    pipeline: process.env['PIPELINE'] !== '0',
    max: 10,
    application_name: `guard-${process.pid}`,
    connectionTimeoutMillis: 2_000,
  })
  pool.on('error', () => {})
  const steps = followSteps(process.env)
  const once = createOnce({ store: postgres(pool, { answerTimeoutMs: 3_000, acquireTimeoutMs: 3_000 }) })
  const answer = (line: GuardAnswer): void => void process.stdout.write(`${JSON.stringify(line)}\n`)

  const order = async (tx: pg.PoolClient, ref: string): Promise<number> => {
    const { rows } = await tx.query('insert into orders (ref) values ($1) returning id', [ref])
    return rows[0].id
  }
  const attempt = async (command: GuardCommand, key: string): Promise<{ value: unknown; replayed: boolean }> => {
    const operation = { scope: ['torture', key], key, payload: { key } }
    const { mode, isolation, wait, stops, timeoutMs } = command
    switch (mode) {
      case 'statement': {
        const text = 'insert into orders (ref) values ($1) returning id'
        const outcome = await once.statement<{ id: number }>(operation, { text, values: [key] })
        return { value: outcome.value[0]?.id, replayed: outcome.replayed }
      }
      case 'rejected': {
        const outcome = await once.transaction(operation, async ({ tx }) => {
          await order(tx, key)
          return rejected('no')
        })
        return { value: outcome.rejection, replayed: outcome.replayed }
      }
      case 'gated':
      case 'optimistic': {
        const outcome = await once.transaction(
          operation,
          async ({ tx, outbox }) => {
            const id = await order(tx, key)
            await outbox.add({ topic: 'order.created', payload: { id } })
            if (stops === true) process.kill(process.pid, 'SIGSTOP')
            await tx.query('select 1')
            return id
          },
          {
            optimistic: mode === 'optimistic',
            isolation,
            timeoutMs,
            ...(wait === true ? { whenInProgress: 'wait', waitMs: 20_000 } : {}),
          },
        )
        return { value: outcome.value, replayed: outcome.replayed }
      }
      case 'check-then-insert':
      case 'lock-and-look-in-one':
        return await naive(pool, mode, key, order)
      case 'trace':
        return { value: steps, replayed: false }
    }
  }
  const call = async (command: GuardCommand, key: string, caller: number): Promise<void> => {
    for (;;) {
      try {
        answer({ n: command.n, key, caller, ...(await attempt(command, key)) })
        return
      } catch (error) {
        if (command.persistent === true && isOnceError(error) && error.retryable) {
          await new Promise((resolve) => setTimeout(resolve, 20))
          continue
        }
        const code = isOnceError(error) ? error.code : `${(error as { code?: string }).code} ${String(error)}`
        answer({ n: command.n, key, caller, error: code })
        return
      }
    }
  }
  const lines = createInterface({ input: process.stdin })
  lines.on('line', (line) => {
    const command = JSON.parse(line) as GuardCommand
    for (let caller = 0; caller < (command.callers ?? 1); caller++) {
      void (async () => {
        for (const key of command.keys) await call(command, key, caller)
      })()
    }
  })
  lines.on('close', () => void pool.end())
  // A connection is there before the first race, so that nobody is late for it.
  void pool.query('select 1').then(() => process.stdout.write('ready\n'))
}

/** What must not be done: controls that show that the oracle can fail. The table has no unique constraint. */
async function naive(
  pool: pg.Pool,
  mode: 'check-then-insert' | 'lock-and-look-in-one',
  key: string,
  order: (tx: pg.PoolClient, ref: string) => Promise<number>,
): Promise<{ value: unknown; replayed: boolean }> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const { rows } = await client.query(
      mode === 'check-then-insert'
        ? 'select (select outcome from naive where key = $1 limit 1) as outcome'
        : 'select pg_advisory_xact_lock(hashtext($1)), (select outcome from naive where key = $1 limit 1) as outcome',
      [key],
    )
    if (rows[0].outcome !== null) return { value: Number(rows[0].outcome), replayed: true }
    const id = await order(client, key)
    await client.query('insert into naive (key, outcome) values ($1, $2)', [key, String(id)])
    return { value: id, replayed: false }
  } finally {
    await client.query('commit')
    client.release()
  }
}

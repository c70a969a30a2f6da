/**
 * A process that runs leased operations as it is told: one JSON command a line on stdin, one JSON answer a line on
 * stdout.
 *
 * Environment: DATABASE_URL, PROVIDER (an `At` as JSON); KILL_AT, STOP_AT as ../torture/steps.ts has them; SHIFT_MS moves
 * Date.now(). An unhandled rejection or exception ends it with code 99. SIGTERM stops the worker as a deploy does.
 */
import { createInterface } from 'node:readline'
import pg from 'pg'
import { createOnce, isOnceError, type Worker } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { type At, type Charge, chargeAndBook, defineCharge, LEASE_MS, SCOPE } from '../job/charge.ts'
import { followSteps } from '../torture/steps.ts'

export interface JobCommand {
  readonly n: number
  /**
   * - `run`: a closure. `kind`: the defined kind, run here. `start`: stored for workers.
   * - `work`: a worker, until the process ends. `trace`: what has been sent so far.
   * - `deadly`: a worker whose handler kills its process. `blocks`: one that blocks the event loop longer than its lease.
   */
  readonly act: 'run' | 'kind' | 'start' | 'work' | 'trace' | 'deadly' | 'blocks'
  readonly charge: Charge
  /** Default: the reference. */
  readonly key?: string
  readonly waits?: boolean
  readonly claimsMax?: number
}

export interface JobAnswer {
  readonly n: number
  readonly value?: unknown
  readonly replayed?: boolean
  readonly error?: string
}

run()

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
    application_name: `job-${process.pid}`,
    connectionTimeoutMillis: 2_000,
  })
  pool.on('error', () => {})
  const at = JSON.parse(process.env['PROVIDER'] ?? '{}') as At
  const steps = followSteps(process.env)
  const once = createOnce({ store: postgres(pool, { answerTimeoutMs: 3_000, acquireTimeoutMs: 3_000 }) })
  const charges = defineCharge(once, at)
  const failing = (claimsMax: number, fail: () => void) =>
    once.define('charge.book', {
      leaseMs: LEASE_MS,
      claimsMax,
      async handler(op, charge: Charge) {
        fail()
        return await chargeAndBook(op, at, charge)
      },
    })
  const die = (): void => void process.kill(process.pid, 'SIGKILL')
  const block = (): void => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3 * LEASE_MS)
  const answer = (line: JobAnswer): void => void process.stdout.write(`${JSON.stringify(line)}\n`)
  let worker: Worker | undefined

  const perform = async (command: JobCommand): Promise<Omit<JobAnswer, 'n'>> => {
    const { act, charge, key = charge.reference, claimsMax = 10 } = command
    const job = { scope: SCOPE, key, payload: charge }
    const waiting = command.waits === true ? ({ whenInProgress: 'wait', waitMs: 20_000 } as const) : {}
    switch (act) {
      case 'run':
        return await once.run(job, (op) => chargeAndBook(op, at, charge), { leaseMs: LEASE_MS, ...waiting })
      case 'kind':
        return await charges.run(job, waiting)
      case 'start':
        return { value: await charges.start(job) }
      case 'deadly':
      case 'blocks':
      case 'work': {
        const kind = act === 'work' ? charges : failing(claimsMax, act === 'deadly' ? die : block)
        worker = once.worker({
          kinds: [kind],
          pollMs: 100,
          graceMs: 0,
          onEvent: (event) => {
            if (event.type === 'leaseLost') answer({ n: command.n, error: 'LEASE_LOST' })
            if (event.type === 'completed') answer({ n: command.n, value: 'completed' })
          },
        })
        await worker.start()
        return { value: 'working' }
      }
      case 'trace':
        return { value: steps }
    }
  }
  const obey = async (command: JobCommand): Promise<void> => {
    const { n } = command
    try {
      const { value, replayed, error } = await perform(command)
      answer({ n, value, ...(replayed === undefined ? {} : { replayed }), ...(error === undefined ? {} : { error }) })
    } catch (error) {
      answer({ n, error: isOnceError(error) ? error.code : String(error) })
    }
  }
  const end = async (): Promise<void> => {
    await worker?.stop()
    await pool.end()
    process.exit(0)
  }
  process.on('SIGTERM', () => void end())
  const lines = createInterface({ input: process.stdin })
  lines.on('line', (line) => void obey(JSON.parse(line) as JobCommand))
  lines.on('close', () => void end())
  void pool.query('select 1').then(() => process.stdout.write('ready\n'))
}

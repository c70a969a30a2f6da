/**
 * A process dies at every statement boundary of an operation: SIGKILL in front of each statement that it sends, also
 * when several would have left in one packet, and behind the last one, before its answer is read. Afterwards there is
 * all of it or nothing, the key is free, and a retry completes it.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Guard, openGuard, until } from '../operation/guard.ts'
import type { GuardCommand } from '../processes/guard.ts'
import { startGuardChild } from './guard-child.ts'
import type { DeathAt, StepName } from './steps.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

interface Left {
  readonly orders: number
  readonly records: number
  readonly messages: number
}

/** What is in the database for one key. */
async function left(key: string): Promise<Left> {
  const { rows } = await guard.admin.query(
    `select (select count(*)::int from orders where ref = $1) as orders,
      (select count(*)::int from effectively_once.operation where scope = $2) as records,
      (select count(*)::int from effectively_once.outbox where payload = $3) as messages`,
    [key, JSON.stringify(['torture', key]), `{"id":${await orderId(key)}}`],
  )
  return rows[0]
}

async function orderId(key: string): Promise<string> {
  const { rows } = await guard.admin.query('select min(id) as id from orders where ref = $1', [key])
  return String(rows[0].id)
}

async function sessionsOf(pid: number | undefined): Promise<number> {
  const { rows } = await guard.admin.query(
    'select count(*)::int as n from pg_stat_activity where application_name = $1',
    [`guard-${pid}`],
  )
  return rows[0].n
}

const FORMS = [
  ['gated', 'pipelined', '1'],
  ['gated', 'stock', '0'],
  ['optimistic', 'pipelined', '1'],
  ['optimistic', 'stock', '0'],
  ['statement', 'pipelined', '1'],
  ['rejected', 'pipelined', '1'],
  ['rejected', 'stock', '0'],
] as const

/** All that an operation of this form leaves. */
const wholeOf = (mode: GuardCommand['mode']): Left => ({
  orders: mode === 'rejected' ? 0 : 1,
  records: 1,
  messages: mode === 'gated' || mode === 'optimistic' ? 1 : 0,
})

describe.each(FORMS)('%s on a %s pool', (mode: GuardCommand['mode'], pool, pipeline) => {
  test('I1, I2, I6, R48: dying at each boundary leaves all or nothing, and the retry makes it exactly one', async () => {
    const tracer = await startGuardChild(guard.url, { PIPELINE: pipeline })
    await tracer.ask({ mode, keys: [`trace ${mode} ${pool}`] })
    const [traced] = await tracer.ask({ mode: 'trace', keys: [''] })
    await tracer.stop()
    // The first is the child's own; the bell for relays may or may not have rung by then.
    const all = traced?.value as readonly StepName[]
    const steps = all.slice(1).filter(({ step }) => step !== 'outbox.notify')
    expect(steps.some(({ step }) => /operation\.(record|single)/.test(step))).toBe(true)
    const deaths: DeathAt[] = [...steps, ...steps.slice(-1).map((last) => ({ ...last, after: true }))]
    const queue = deaths.map((at) => ({ at, name: `${at.after === true ? 'behind' : 'before'} ${at.step} ${at.nth}` }))
    const committed: string[] = []
    const dieAt = async ({ at, name }: { at: DeathAt; name: string }): Promise<void> => {
      const key = `${mode} ${pool} ${name}`
      const child = await startGuardChild(guard.url, { PIPELINE: pipeline, KILL_AT: JSON.stringify(at) })
      child.send({ mode, keys: [key] }, () => {})
      expect(await child.gone, name).toMatchObject({ signal: 'SIGKILL' })
      await until(async () => (await sessionsOf(child.process.pid)) === 0, 20_000)

      const there = await left(key)
      if (there.records > 0) committed.push(name)
      expect(there, name).toEqual(there.records > 0 ? wholeOf(mode) : { orders: 0, records: 0, messages: 0 })
      const retry = await startedOnce({ mode, keys: [key], persistent: true }, pipeline)
      expect(retry.error, name).toBeUndefined()
      expect(await left(key), name).toEqual(wholeOf(mode))
      expect(String(retry.value), name).toBe(mode === 'rejected' ? 'no' : await orderId(key))
      expect(retry.replayed, name).toBe(there.records === 1)
    }
    await Promise.all(
      [0, 1].map(async () => {
        for (let death = queue.shift(); death !== undefined; death = queue.shift()) await dieAt(death)
      }),
    )
    console.log(`${deaths.length} deaths: ${mode} on a ${pool} pool, ${steps.map(({ step }) => step).join(', ')}`)
    // COMMIT is the last thing that is sent: only the death behind it commits.
    expect(committed).toEqual([`behind ${steps.at(-1)?.step} ${steps.at(-1)?.nth}`])
  }, 120_000)
})

const retriers = new Map<string, ReturnType<typeof startGuardChild>>()

/** Retries in a process that lives on, one for each kind of pool. */
async function startedOnce(command: Omit<GuardCommand, 'n'>, pipeline: string) {
  const known = retriers.get(pipeline) ?? startGuardChild(guard.url, { PIPELINE: pipeline })
  retriers.set(pipeline, known)
  const [answer] = await (await known).ask(command)
  if (answer === undefined) throw new Error('no answer')
  return answer
}

afterAll(async () => {
  for (const retrier of retriers.values()) await (await retrier).stop()
})

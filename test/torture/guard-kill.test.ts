/**
 * A process dies at every statement boundary of an operation: SIGKILL before a statement leaves, and after the last
 * trip has left and before its answer is read. Afterwards there is all of it or nothing, the key is free, and a retry completes it.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Guard, openGuard, until } from '../operation/guard.ts'
import type { GuardCommand } from '../processes/guard.ts'
import { startGuardChild } from './guard-child.ts'

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

/** What is in the database for one key: the outcome is the order's id, the message holds it too. */
async function left(key: string): Promise<Left> {
  const { rows } = await guard.admin.query(
    `select o.n as orders, r.n as records, m.n as messages from
      (select count(*)::int as n, min(id) as id from orders where ref = $1) o,
      lateral (select count(*)::int as n from effectively_once.operation where outcome in (o.id::text, $2)) r,
      lateral (select count(*)::int as n from effectively_once.outbox where payload = $3 || o.id || '}') m`,
    [key, `[{"id":${await orderId(key)}}]`, '{"id":'],
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
  ['statement', 'pipelined', '1'],
] as const

describe.each(FORMS)('%s on a %s pool', (mode: GuardCommand['mode'], pool, pipeline) => {
  test('I1, I2, I6: dying at each boundary leaves all or nothing, and the retry makes it exactly one', async () => {
    const tracer = await startGuardChild(guard.url, { PIPELINE: pipeline })
    await tracer.ask({ mode, keys: [`trace ${mode} ${pool}`] })
    const [traced] = await tracer.ask({ mode: 'trace', keys: [''] })
    await tracer.stop()
    const statements = traced?.value as readonly string[]
    expect(statements.length).toBeGreaterThan(0)

    const lastTrip = statements.findLastIndex((text) => /operation\.(record|single)/.test(text)) + 1
    // Between two statements of one trip nothing is answered, so one death after the last trip stands for all.
    const boundaries = statements.map((_, index) => `${index + 1}:before`).concat(`${lastTrip}:after`)
    const queue = [...boundaries]
    const committed: string[] = []
    const dieAt = async (boundary: string): Promise<void> => {
      const key = `${mode} ${pool} ${boundary}`
      const child = await startGuardChild(guard.url, { PIPELINE: pipeline, KILL_AT: boundary })
      child.send({ mode, keys: [key] }, () => {})
      expect(await child.gone).toMatchObject({ signal: 'SIGKILL' })
      await until(async () => (await sessionsOf(child.process.pid)) === 0, 20_000)

      const there = await left(key)
      const whole = mode === 'rejected' ? 0 : 1
      const messages = mode === 'gated' || mode === 'optimistic' ? 1 : 0
      if (there.orders > 0) {
        expect(there).toEqual({ orders: whole, records: 1, messages })
        committed.push(boundary)
      } else {
        expect(there).toEqual({ orders: 0, records: 0, messages: 0 })
      }
      const retry = await startedOnce({ mode, keys: [key], persistent: true }, pipeline)
      expect(retry.error).toBeUndefined()
      const after = await left(key)
      if (mode === 'rejected') {
        expect(retry.value).toBe('no')
        expect(after.orders).toBe(0)
      } else {
        expect(after).toEqual({ orders: 1, records: 1, messages })
        expect(String(retry.value)).toBe(await orderId(key))
        expect(retry.replayed).toBe(there.orders === 1)
      }
    }
    await Promise.all(
      [0, 1].map(async () => {
        for (let boundary = queue.shift(); boundary !== undefined; boundary = queue.shift()) await dieAt(boundary)
      }),
    )
    // Dying before the last trip leaves never commits.
    expect(committed).not.toContain(`${lastTrip}:before`)
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

/**
 * Half-open owners: a process is stopped (SIGSTOP) in the middle of its work, so that its connection stays and says
 * nothing. Its key is free again when the server's bound on silence is over; when it goes on it changes nothing.
 */
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Guard, openGuard, until } from '../operation/guard.ts'
import type { GuardAnswer } from '../processes/guard.ts'
import { startGuardChild } from './guard-child.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

/** State letter of the process, as the kernel tells it: T = stopped. */
async function stateOf(pid: number | undefined): Promise<string | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
  return /\) (\w)/.exec(stat)?.[1]
}

/** Sessions of a process that are inside a transaction. */
async function open(pid: number | undefined): Promise<number> {
  const { rows } = await guard.admin.query(
    `select count(*)::int as n from pg_stat_activity where application_name = $1 and xact_start is not null`,
    [`guard-${pid}`],
  )
  return rows[0].n
}

describe.skipIf(process.platform !== 'linux').each([
  ['pipelined', '1'],
  ['stock', '0'],
])('on a %s pool', (pool, pipeline) => {
  test.each(['gated', 'optimistic'] as const)(
    'I12, B43: %s: an owner that falls silent in its work loses the key after timeoutMs; going on, it is told and commits nothing',
    async (mode) => {
      const key = `stopped ${mode} ${pool}`
      const [owner, other] = await Promise.all([
        startGuardChild(guard.url, { PIPELINE: pipeline }),
        startGuardChild(guard.url, { PIPELINE: pipeline }),
      ])
      const told = new Promise<GuardAnswer>((resolve) => {
        owner.send({ mode, keys: [key], stops: true, timeoutMs: 6_000 }, resolve)
      })
      await until(async () => (await stateOf(owner.process.pid)) === 'T')
      if (mode === 'gated') {
        expect(await open(owner.process.pid)).toBe(1)
        expect(await other.ask({ mode, keys: [key] })).toMatchObject([{ error: 'OPERATION_IN_PROGRESS' }])
      }
      const [done] = await other.ask({ mode, keys: [key], persistent: true })
      expect(done).toMatchObject({ key, replayed: false })
      await until(async () => (await open(owner.process.pid)) === 0, 20_000)

      owner.process.kill('SIGCONT')
      const answer = await told
      // It may find the outcome of the other one, never claim one of its own.
      if (answer.error === undefined) expect(answer).toMatchObject({ value: done?.value, replayed: true })
      else expect(answer.error).toMatch(/^(TOO_BUSY|STORE_UNAVAILABLE|OPERATION_IN_PROGRESS|57P05|25P03)/)
      const { rows } = await guard.admin.query('select id from orders where ref = $1', [key])
      expect(rows).toEqual([{ id: done?.value }])
      const messages = await guard.admin.query('select payload from effectively_once.outbox where payload = $1', [
        `{"id":${String(done?.value)}}`,
      ])
      expect(messages.rowCount).toBe(1)
      // The process is as good as before.
      expect(await owner.ask({ mode, keys: [key] })).toMatchObject([{ value: done?.value, replayed: true }])
      await Promise.all([owner.stop(), other.stop()])
    },
    60_000,
  )
})

/** A loser that is refused while the winner works, and looks for an outcome only when the winner has finished. */
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { type Guard, insertOrder, openGuard, POOLS } from './guard.ts'

let guard: Guard

beforeAll(async () => {
  guard = await openGuard()
})

afterAll(() => guard.close())

test.each(POOLS)(
  'SC2: %s pool: a loser whose winner finishes between refusal and look-up gets the outcome, not "in progress"',
  async (name, config) => {
    const proxy = await tcpProxy({ target: { port: Number(new URL(guard.url).port) } })
    const pool = new pg.Pool({ connectionString: proxy.through(guard.url), max: 4, ...config })
    const operation = { scope: 'loser', key: name, payload: null }
    let finish = (): void => {}
    let started = (): void => {}
    const working = new Promise<void>((resolve) => {
      started = resolve
    })
    const mayFinish = new Promise<void>((resolve) => {
      finish = resolve
    })
    const winner = guard.once().transaction(operation, async ({ tx }) => {
      const { rows } = await insertOrder(tx, name)
      started()
      await mayFinish
      return rows[0]?.id
    })
    await working
    const lookUp = proxy.hold('operation.lookup')
    const loser = createOnce({ store: postgres(pool) }).transaction(operation, ({ tx }) => insertOrder(tx, name))
    await lookUp.met
    finish()
    const { value } = await winner
    lookUp.release()
    expect(await loser).toMatchObject({ value, replayed: true })
    expect(await guard.count(name)).toBe(1)
    await pool.end()
    await proxy.close()
  },
)

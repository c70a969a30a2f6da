/** Servers in processes of their own: races between them, and deaths at the two worst moments. */
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce, found } from '../../src/index.ts'
import { postgres } from '../../src/stores/postgres/index.ts'
import { eventually } from '../eventually.ts'
import { type Guard, openGuard } from '../operation/guard.ts'
import { type Answered, send } from './client.ts'

const SCRIPT = fileURLToPath(new URL('../processes/http-server.ts', import.meta.url))
const BODY = '{"amount":1}'

let guard: Guard
const children: ChildProcess[] = []

beforeAll(async () => {
  guard = await openGuard()
})
afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await guard.close()
})

interface Server {
  readonly port: number
  readonly died: Promise<string | null>
}

function start(env: Readonly<Record<string, string>> = {}): Promise<Server> {
  const child = spawn(process.execPath, ['--import', 'tsx', SCRIPT], {
    env: { ...process.env, DATABASE_URL: guard.url, ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  children.push(child)
  const died = new Promise<string | null>((resolve) => child.once('exit', (_code, signal) => resolve(signal)))
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', (line) => resolve({ port: Number(line), died }))
    void died.then(() => reject(new Error('the server did not start')))
  })
}

const post = (port: number, key: string): Promise<Answered> => send(port, { path: '/orders', key, body: BODY })

for (const [mode, env] of [
  ['answers 409', {}],
  ['waits', { WAIT: '1' }],
] as const) {
  test(`I1, I3, R10, B13: 200 identical requests to two servers, where the loser ${mode}: one order, one fresh answer, never 500`, async () => {
    const servers = await Promise.all([start(env), start(env)])
    const key = `race-${mode.replace(' ', '-')}`
    const answers = await Promise.all(Array.from({ length: 200 }, (_, at) => post(servers[at % 2]?.port ?? 0, key)))
    const fresh = answers.filter((a) => a.status === 201 && a.headers['idempotent-replayed'] === undefined)
    const replays = answers.filter((a) => a.headers['idempotent-replayed'] === 'true')
    const busy = answers.filter((a) => a.status === 409 && a.json()['code'] === 'OPERATION_IN_PROGRESS')
    expect(fresh).toHaveLength(1)
    expect(fresh.length + replays.length + busy.length).toBe(200)
    if (mode === 'waits') expect(busy).toHaveLength(0)
    for (const { text } of replays) expect(text).toBe(fresh[0]?.text)
    expect(await guard.count(key)).toBe(1)
    const again = await post(servers[0].port, key)
    expect(again.text).toBe(fresh[0]?.text)
  })
}

test('R09, B01: a server that dies between the commit and the answer has done it: the retry is a replay', async () => {
  const [dying, other] = await Promise.all([start({ KILL_AT: 'after-commit' }), start()])
  await expect(post(dying.port, 'after')).rejects.toThrow()
  expect(await dying.died).toBe('SIGKILL')
  expect(await guard.count('after')).toBe(1)
  const again = await post(other.port, 'after')
  expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true'])
  expect(await guard.count('after')).toBe(1)
})

test('R09, B01: a server that dies before the commit has done nothing: the retry does it', async () => {
  const [dying, other] = await Promise.all([start({ KILL_AT: 'before-commit' }), start()])
  await expect(post(dying.port, 'before')).rejects.toThrow()
  expect(await dying.died).toBe('SIGKILL')
  const answers: Answered[] = []
  // The server notices the lost connection by itself; until then the key may be busy.
  do answers.push(await post(other.port, 'before'))
  while (answers.at(-1)?.status === 409 && answers.length < 1_000)
  expect(answers.at(-1)?.status).toBe(201)
  expect(answers.at(-1)?.headers['idempotent-replayed']).toBeUndefined()
  expect(await guard.count('before')).toBe(1)
})

test('B17, contract row 16: a route that is not safe to run again, killed behind its outside call: the outside is asked, never called again, and a person settles it', async () => {
  const [dying, other] = await Promise.all([start({ KILL_AT: 'after-call' }), start({ ASK: '1' })])
  const transfer = (port: number) => send(port, { path: '/transfers', key: 'withdrawal', body: BODY })
  await expect(transfer(dying.port)).rejects.toThrow()
  expect(await dying.died).toBe('SIGKILL')
  let answer = await transfer(other.port)
  await eventually('the lease has run out', async () => {
    answer = await transfer(other.port)
    return answer.json()['code'] !== 'OPERATION_IN_PROGRESS'
  })
  expect(await guard.count('withdrawal asked')).toBeGreaterThanOrEqual(1)
  for (let tries = 0; tries < 2; tries += 1) {
    const later = await transfer(other.port)
    expect([later.status, later.headers['retry-after']]).toEqual([409, undefined])
    expect(later.json()).toMatchObject({ code: 'OUTCOME_UNKNOWN', retryable: false, safe_new_key: false })
  }

  const once = createOnce({ store: postgres(guard.admin) })
  const [waiting] = await once.unfinished({ states: ['unknown'], limit: 10 })
  const reference = { id: waiting?.id ?? '', effect: 'withdraw' }
  expect(await once.resolve(reference, found(null), { actor: 'a person', reason: 'it is booked' })).toBe('resolved')
  const settled = await transfer(other.port)
  expect([settled.status, settled.text]).toEqual([201, 'withdrawn'])
  expect((await transfer(other.port)).headers['idempotent-replayed']).toBe('true')
  expect(await guard.count('withdrawal called')).toBe(1)
})

/** The example of each framework, as a process of its own, against the built package: an order, its retry, a reused key. */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase } from '../database.ts'

const LINES_MAX = 60
const examples = readdirSync('examples').filter((name) => /\.(mjs|ts)$/.test(name) && name !== 'orders.mjs')
/** Runs the one in TypeScript, with the decorators of its own settings. */
const TSX = { arguments: ['--import', 'tsx'], env: { TSX_TSCONFIG_PATH: 'examples/tsconfig.json' } }

let database: Awaited<ReturnType<typeof createDatabase>>
beforeAll(async () => {
  database = await createDatabase()
})
afterAll(() => database.drop())

test.each(examples)('R02, R03, I3: %s places an order once', async (name) => {
  expect(readFileSync(`examples/${name}`, 'utf8').split('\n').length).toBeLessThanOrEqual(LINES_MAX)
  const typed = name.endsWith('.ts')
  const child = spawn(process.execPath, [...(typed ? TSX.arguments : []), `examples/${name}`], {
    env: { ...process.env, ...(typed ? TSX.env : {}), DATABASE_URL: database.url, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const url = await new Promise<string>((resolve, reject) => {
      createInterface({ input: child.stdout }).once('line', resolve)
      child.once('exit', () => reject(new Error(`${name} did not start`)))
    })
    const post = (body: string) =>
      fetch(`${url}/orders`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': `k-${name}`, 'x-tenant': name },
        body,
      })
    const [first, retry, reused] = [await post('{"cents":42}'), await post('{"cents":42}'), await post('{"cents":43}')]
    expect(first.status).toBe(201)
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
    expect(retry.headers.get('location')).toBe(first.headers.get('location'))
    expect(await retry.text()).toBe(await first.text())
    expect(reused.status).toBe(422)
  } finally {
    child.kill('SIGKILL')
  }
})

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, inject, test } from 'vitest'

const run = promisify(execFile)
const DEMO_MS = 120_000

/** Runs the command as a user does and returns the JSON of its last line. */
async function demo(...flags: string[]): Promise<Record<string, unknown>> {
  const env = { ...process.env, DATABASE_URL: inject('postgresUrl') }
  const words = ['--import', 'tsx', 'src/cli/main.ts', 'demo', '--json', ...flags]
  const { stdout } = await run(process.execPath, words, { env, timeout: DEMO_MS })
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Record<string, unknown>
}

const promised = {
  orders: 1,
  applied: ['applied', 'duplicate'],
  projectionRows: 1,
  unroutablePending: true,
  mismatchRefused: true,
  rejectionReplayed: true,
}

test(
  'R49: the demo holds with relay and consumer killed, on RabbitMQ or whatever can be had',
  async () => {
    const result = await demo()
    expect(result).toMatchObject(promised)
    expect(result['published']).toBeGreaterThanOrEqual(2)
    if (process.env['CI'] === 'true') expect(result['broker']).toBe('rabbitmq')
  },
  DEMO_MS,
)

test(
  'R49: the demo holds on the in-process broker',
  async () => {
    const result = await demo('--memory')
    expect(result).toMatchObject({ ...promised, broker: 'memory' })
    expect(result['published']).toBeGreaterThanOrEqual(2)
  },
  DEMO_MS,
)

/**
 * RabbitMQ for test files: the run's broker, names of their own, and plain connections.
 */
import { randomBytes } from 'node:crypto'
import amqp from 'amqplib'
import { inject } from 'vitest'
import { pause } from '../src/shared/waiting.ts'
import { findRabbit } from '../src/testing/services/rabbitmq-install.ts'

/** AMQP URL of the run's broker, or null: use with `describe.skipIf(amqpUrl === null)`. */
export const amqpUrl: string | null = inject('amqpUrl')

/** Opens a connection to the run's broker. */
export function connect(): Promise<amqp.ChannelModel> {
  if (amqpUrl === null) throw new Error('this test needs RabbitMQ and must be skipped without')
  return amqp.connect(amqpUrl)
}

/** A name no other test uses. */
export function uniqueName(what: string): string {
  return `eo.test.${what}.${randomBytes(6).toString('hex')}`
}

/** Whether tests can start a node of their own, which they need for killing it. Never false in CI. */
export const canStartNode: boolean = await (async () => {
  const found = await findRabbit({ url: false })
  if (found.kind === 'server') return true
  const reason = found.kind === 'none' ? found.reason : 'only AMQP_URL is known'
  if (process.env['CI'] !== undefined) throw new Error(`tests need a RabbitMQ node of their own: ${reason}`)
  console.warn(`*** SKIPPED: tests that kill their RabbitMQ node. ${reason} ***`)
  return false
})()

/** Polls until the condition holds; fails after `timeoutMs`. */
export async function eventually(
  what: string,
  holds: () => boolean | Promise<boolean>,
  timeoutMs: number = 20_000,
): Promise<void> {
  const deadline = performance.now() + timeoutMs
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not within ${timeoutMs} ms: ${what}`)
    await pause(10)
  }
}

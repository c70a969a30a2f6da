/**
 * RabbitMQ for test files: the run's broker, names of their own, and plain connections.
 */
import { randomBytes } from 'node:crypto'
import amqp from 'amqplib'
import { inject } from 'vitest'

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

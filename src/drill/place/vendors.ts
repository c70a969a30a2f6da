/**
 * Vendors: `pg` and `amqplib`, taken from the user's project, for what the drill itself asks of database and broker.
 *
 * @module
 */

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

export interface PgClient {
  connect(): Promise<unknown>
  query(text: string, values?: unknown[]): Promise<{ readonly rows: Record<string, unknown>[] }>
  on(event: 'error', listener: () => void): unknown
  end(): Promise<void>
}

export interface Pg {
  readonly Client: new (options: { connectionString: string; connectionTimeoutMillis: number }) => PgClient
}

export interface AmqpMessage {
  readonly content: Buffer
  readonly properties: { readonly messageId?: string }
}

export interface AmqpChannel {
  assertQueue(name: string, options: { durable: boolean }): Promise<unknown>
  checkQueue(name: string): Promise<{ readonly messageCount: number }>
  deleteQueue(name: string): Promise<unknown>
  purgeQueue(name: string): Promise<unknown>
  get(name: string, options: { noAck: boolean }): Promise<AmqpMessage | false>
  publish(exchange: string, key: string, body: Buffer, options: object, done: (error: unknown) => void): boolean
}

export interface AmqpConnection {
  createConfirmChannel(): Promise<AmqpChannel>
  on(event: 'error', listener: () => void): unknown
  close(): Promise<void>
}

export interface Amqp {
  connect(url: string): Promise<AmqpConnection>
}

/** @throws {TypeError} with the command that installs it when the project at `path` has no such package. */
export async function vendor<T>(name: 'pg' | 'amqplib', path: string): Promise<T> {
  let found: string
  try {
    found = createRequire(path).resolve(name)
  } catch {
    throw new TypeError(`the drill needs the package ${name} beside ${path}; run: npm install --save-dev ${name}`)
  }
  const module = (await import(pathToFileURL(found).href)) as { readonly default: T }
  return module.default
}

/**
 * Drivers: pg and amqplib are the user's, so they are looked up in the user's project when the demo runs.
 *
 * @module
 */

import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { AmqpConnection } from '../../brokers/rabbitmq/index.ts'
import type { PgClient, PgPool, PgResult, PgStatement } from '../../stores/postgres/index.ts'
import { UsageError } from '../io.ts'

interface DemoPool extends PgPool {
  connect(): Promise<PgClient>
  query(statement: PgStatement): Promise<PgResult>
  end(): Promise<void>
}

export interface Drivers {
  readonly pg: { readonly Pool: new (options: object) => DemoPool }
  readonly amqp: { connect(url: string): Promise<AmqpConnection> } | undefined
}

/** Loads the drivers that are needed; a missing one is said with the command that installs it. */
export async function loadDrivers(withAmqp: boolean): Promise<Drivers> {
  return {
    pg: await load<Drivers['pg']>('pg'),
    amqp: withAmqp ? await load<NonNullable<Drivers['amqp']>>('amqplib') : undefined,
  }
}

/** Whether the user's project has this package. */
export function hasPackage(name: string): boolean {
  try {
    pathOf(name)
    return true
  } catch {
    return false
  }
}

function pathOf(name: string): string {
  return createRequire(join(process.cwd(), 'package.json')).resolve(name)
}

async function load<T>(name: string): Promise<T> {
  try {
    const path = pathOf(name)
    const module = (await import(pathToFileURL(path).href)) as { default: T }
    return module.default
  } catch (error) {
    throw new UsageError(`the demo needs ${name}: npm install ${name}`, { cause: error })
  }
}

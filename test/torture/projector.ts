/**
 * The consumer that dies in the torture of the inbox, and the messages it gets: one row and one message of its own for
 * each message. Nothing in its table forbids a second row.
 */
import type pg from 'pg'
import type { Source } from '../../src/broker/contract.ts'
import type { Consumer, ConsumerEvent, Once } from '../../src/index.ts'

export const SHAPES = ['each', 'eager', 'ordered', 'batch', 'ordered batch'] as const
export type Shape = (typeof SHAPES)[number]

export const PROJECTION = `create table projection
  (seq bigint generated always as identity, consumer text not null, id text not null, key text not null, n int not null)`

interface Body {
  readonly key: string
  readonly n: number
  readonly failsFirst: boolean
}

export interface Sent {
  readonly id: string
  readonly key: string
  readonly payload: string
}

/** One key in order; one message fails at its first attempt, one comes twice, one cannot be read. */
export const SENT: readonly Sent[] = [
  sent('a', 1),
  sent('a', 2, true),
  sent('a', 3),
  sent('a', 1),
  { id: 'broken', key: 'c', payload: '{"key":' },
]
/** How many settled deliveries one undisturbed run has. */
export const SETTLED: number = SENT.length
/** Rows of the projection in the end, per key in order. */
export const WANTED: Readonly<Record<string, readonly number[]>> = { a: [1, 2, 3] }

function sent(key: string, n: number, failsFirst = false): Sent {
  return { id: `${key}${n}`, key, payload: JSON.stringify({ key, n, failsFirst } satisfies Body) }
}

export function projector(
  once: Once<pg.PoolClient>,
  shape: Shape,
  options: { readonly name: string; readonly source: Source; readonly onEvent?: (event: ConsumerEvent) => void },
): Consumer {
  const { name } = options
  const project = async (
    tx: pg.PoolClient,
    outbox: { add(message: { topic: string; payload: unknown }): unknown },
    message: { readonly id: string; readonly attempt: number; readonly body: unknown },
  ): Promise<void> => {
    const { key, n, failsFirst } = message.body as Body
    await tx.query('insert into projection (consumer, id, key, n) values ($1, $2, $3, $4)', [name, message.id, key, n])
    await outbox.add({ topic: name, payload: message.id })
    if (failsFirst && message.attempt === 1) throw new Error('the first attempt fails')
  }
  return once.consumer({
    ...options,
    // One after another, so that a run of one shape always sends the same.
    concurrency: 1,
    prefetch: 10,
    leaseMs: 1_000,
    pollMs: 150,
    backoff: { minMs: 1, maxMs: 1 },
    ...(shape.includes('ordered') ? { orderBy: true } : {}),
    ...(shape.includes('batch')
      ? {
          handleBatch: async ({ tx, outbox, messages }) => {
            for (const message of messages) await project(tx, outbox, message)
          },
        }
      : { eager: shape === 'eager', handle: ({ tx, outbox, message }) => project(tx, outbox, message) }),
  })
}

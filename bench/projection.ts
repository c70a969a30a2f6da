/**
 * Projection: what the measured consumers do with a message.
 *
 * @module
 */

import type pg from 'pg'
import type { BatchContext, HandlerContext } from '../src/inbox/options.ts'

interface OrderCreated {
  readonly orderId: number
  readonly customer: string
  readonly amountCents: number
}

export const PROJECTION =
  'create table projection (order_id bigint not null, customer text not null, amount_cents integer not null)'

/** All messages of a batch in one statement. */
export async function applyBatch({ tx, messages }: BatchContext<pg.PoolClient>): Promise<void> {
  const bodies = messages.map((message) => message.body as OrderCreated)
  await tx.query({
    name: 'projection_many',
    text:
      'insert into projection (order_id, customer, amount_cents) ' +
      'select * from unnest($1::bigint[], $2::text[], $3::integer[])',
    values: [
      bodies.map((body) => body.orderId),
      bodies.map((body) => body.customer),
      bodies.map((body) => body.amountCents),
    ],
  })
}

export const insertOne = ({
  orderId,
  customer,
  amountCents,
}: OrderCreated): { name: string; text: string; values: unknown[] } => ({
  name: 'projection_one',
  text: 'insert into projection (order_id, customer, amount_cents) values ($1, $2, $3)',
  values: [orderId, customer, amountCents],
})

export async function applyOne({ tx, message }: HandlerContext<pg.PoolClient>): Promise<void> {
  await tx.query(insertOne(message.body as OrderCreated))
}

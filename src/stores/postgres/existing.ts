/**
 * Existing: a unique violation of the application's own constraint as "already done" (R06).
 *
 * A key is recognised as long as it is kept. A business constraint, `unique (merchant_id, client_order_id)`, recognises
 * an intent for ever, also under another key. Its violation says that the work was done before, so it is an answer and
 * no error.
 *
 * @module
 */

import { refuseUnknownOptions } from '../../shared/options.ts'
import { sqlState } from './classify.ts'
import type { PgResult, PgStatement } from './handle.ts'

const UNIQUE_VIOLATION = '23505'
/** How deep an error's causes are searched: query builders wrap the driver's error. */
const CAUSES_MAX = 5

/** The unique constraint that an error of the database names; undefined for any other error. */
export function uniqueViolation(error: unknown): { readonly constraint: string } | undefined {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && typeof current === 'object' && current !== null; depth++) {
    if (sqlState(current) === UNIQUE_VIOLATION) {
      return 'constraint' in current && typeof current.constraint === 'string'
        ? { constraint: current.constraint }
        : undefined
    }
    current = 'cause' in current ? current.cause : undefined
  }
  return undefined
}

/** What `madeOrExisting` takes. */
export interface MadeOrExistingOptions<M, E> {
  /** Names of the unique constraints that mean "already done". */
  readonly constraint: string | readonly string[]
  /** Makes it. */
  make(): Promise<M>
  /** Finds what is there, after a violation. Undefined = not to be seen from here: the violation is thrown. */
  existing(): Promise<E | undefined>
}

export type MadeOrExisting<M, E> =
  | { readonly kind: 'made'; readonly value: M }
  | { readonly kind: 'existing'; readonly value: E }

/**
 * Makes a resource, or finds the one that a unique constraint says is there already. A violation aborts a transaction in
 * PostgreSQL; a savepoint keeps it alive. Costs two statements more than `make` alone.
 *
 * @throws Whatever `make` throws for another reason, and the violation when `existing` finds nothing.
 * @example
 * const order = await madeOrExisting(tx, {
 *   constraint: 'orders_merchant_id_client_order_id_key',
 *   make: async () => (await tx.query(INSERT, [merchantId, clientOrderId])).rows[0],
 *   existing: async () => (await tx.query(SELECT, [merchantId, clientOrderId])).rows[0],
 * })
 * res.status(order.kind === 'made' ? 201 : 200).json(order.value)
 */
export async function madeOrExisting<M, E>(
  tx: { query(statement: PgStatement): Promise<PgResult> },
  options: MadeOrExistingOptions<M, E>,
): Promise<MadeOrExisting<M, E>> {
  refuseUnknownOptions('madeOrExisting', options, ['constraint', 'make', 'existing'])
  const constraints = typeof options.constraint === 'string' ? [options.constraint] : options.constraint
  await tx.query({ text: 'savepoint effectively_once_make' })
  try {
    const value = await options.make()
    await tx.query({ text: 'release savepoint effectively_once_make' })
    return { kind: 'made', value }
  } catch (error) {
    const violated = uniqueViolation(error)
    if (violated === undefined || !constraints.includes(violated.constraint)) throw error
    await tx.query({ text: 'rollback to savepoint effectively_once_make' })
    const value = await options.existing()
    if (value === undefined) throw error
    return { kind: 'existing', value }
  }
}

/**
 * Transaction check: is a transaction open on the handle that the caller gave us?
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'
import { sqlState, toOnceError } from './classify.ts'
import type { PgClient } from './handle.ts'

/**
 * Throws NOT_A_TRANSACTION for a pool, for a client without BEGIN and for a failed transaction. The driver's own
 * knowledge is used where it has some; otherwise the server is asked with a statement that only a transaction block
 * takes and that locks no more than the insert to come.
 */
export async function requireTransaction(tx: Pick<PgClient, 'query'>, schema: string): Promise<void> {
  if (typeof tx !== 'object' || tx === null || typeof tx.query !== 'function' || 'totalCount' in tx) {
    throw new OnceError('NOT_A_TRANSACTION', 'once.in(tx) takes a client on which BEGIN has run, not a pool')
  }
  const status = 'getTransactionStatus' in tx ? transactionStatus(tx) : undefined
  if (status === 'T') return
  if (status === 'E') throw failed()
  try {
    await tx.query({ text: `lock table ${schema}.operation in row exclusive mode` })
  } catch (error) {
    if (sqlState(error) === '25P01') {
      throw new OnceError('NOT_A_TRANSACTION', 'no transaction is open on the handle', { cause: error })
    }
    throw inYourTransaction(error, 'checking')
  }
}

/**
 * The error of a statement of ours in the caller's transaction. The driver learns that a transaction has failed a moment
 * after its caller does, so the check above may have passed all the same.
 */
export function inYourTransaction(error: unknown, doing: string): unknown {
  return sqlState(error) === '25P02' ? failed(error) : toOnceError(error, `${doing} in your transaction`)
}

function failed(cause?: unknown): OnceError {
  return new OnceError('NOT_A_TRANSACTION', 'the transaction of the handle has failed; roll it back first', { cause })
}

function transactionStatus(tx: { readonly getTransactionStatus: unknown }): unknown {
  return typeof tx.getTransactionStatus === 'function' ? tx.getTransactionStatus() : undefined
}

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
export async function requireTransaction(tx: PgClient, schema: string): Promise<void> {
  if (typeof tx !== 'object' || tx === null || typeof tx.query !== 'function' || 'totalCount' in tx) {
    throw new OnceError('NOT_A_TRANSACTION', 'once.in(tx) takes a client on which BEGIN has run, not a pool')
  }
  const status = 'getTransactionStatus' in tx ? transactionStatus(tx) : undefined
  if (status === 'T') return
  if (status === 'E') {
    throw new OnceError('NOT_A_TRANSACTION', 'the transaction of the handle has failed; roll it back first')
  }
  try {
    await tx.query({ text: `lock table ${schema}.operation in row exclusive mode` })
  } catch (error) {
    const state = sqlState(error)
    if (state === '25P01') {
      throw new OnceError('NOT_A_TRANSACTION', 'no transaction is open on the handle', { cause: error })
    }
    if (state === '25P02') {
      throw new OnceError('NOT_A_TRANSACTION', 'the transaction of the handle has failed; roll it back first', {
        cause: error,
      })
    }
    throw toOnceError(error, 'checking the transaction')
  }
}

function transactionStatus(tx: { readonly getTransactionStatus: unknown }): unknown {
  return typeof tx.getTransactionStatus === 'function' ? tx.getTransactionStatus() : undefined
}

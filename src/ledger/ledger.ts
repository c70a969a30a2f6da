/**
 * Ledger: movements that are only ever added.
 *
 * A balance is the sum of movements and is stored nowhere, so two writers cannot overwrite each other's, and a repeat of a
 * post finds its entry by id. Undoing is a further entry; the first stays readable, and what was believed at an instant can
 * be asked for ever after. The database enforces all of it (0006_ledger.sql): other programs that write there can't help it.
 *
 * @module
 */

import { OnceError } from '../shared/errors.ts'
import { quoted, SCHEMA_DEFAULT, schemaName } from '../shared/identifier.ts'
import { integerOption, refuseUnknownOptions, signalOption } from '../shared/options.ts'
import { backoffMs, pause } from '../shared/waiting.ts'
import { classify, sqlState, toOnceError } from '../stores/postgres/classify.ts'
import type { PgResult, PgStatement } from '../stores/postgres/handle.ts'
import { owned } from '../stores/postgres/own-types.ts'
import { requireTransaction } from '../stores/postgres/transaction-check.ts'
import {
  checkedCurrency,
  checkedMovements,
  checkedName,
  checkedNote,
  entryFingerprint,
  reversalFingerprint,
} from './content.ts'
import type {
  AsOf,
  Ledger,
  LedgerConnection,
  LedgerEntry,
  LedgerInTransaction,
  LedgerOptions,
  Posted,
} from './contract.ts'
import { instantText } from './instant.ts'
import { type LedgerStatements, ledgerStatements } from './statements.ts'

/** Tries of a post of our own when the server rolled it back in favour of another transaction. */
const TRIES_MAX = 5
const BETWEEN = { minMs: 5, maxMs: 100 }

/**
 * The ledger of one schema. Its tables come with `once.migrate()`.
 *
 * @param pool - Your `pg.Pool`.
 * @example
 * const ledger = createLedger(pool)
 * await ledger.post({
 *   id: 'order-7/charge',
 *   movements: [
 *     { account: 'customer:7', amount: -4_200n, currency: 'EUR' },
 *     { account: 'revenue', amount: 4_200n, currency: 'EUR' },
 *   ],
 * })
 */
export function createLedger(pool: LedgerConnection, options: LedgerOptions = {}): Ledger {
  refuseUnknownOptions('createLedger', options, ['schema', 'settleMs'])
  if (typeof pool?.query !== 'function') throw new TypeError('createLedger takes a pool: an object with query()')
  const schema = schemaName('schema', options.schema ?? SCHEMA_DEFAULT)
  const texts = ledgerStatements(schema)
  const settleMs = integerOption('settleMs', options.settleMs, { min: 0, max: 600_000, default: 10_000 })
  const own = ledgerOn(pool, texts, () => Promise.resolve())

  const settled = async ({ asOf, signal }: AsOf): Promise<string | undefined> => {
    if (asOf === undefined) return undefined
    const at = instantText('asOf', asOf)
    await settle(pool, texts, at, settleMs, signal)
    return at
  }

  return {
    post: (entry) => again(() => own.post(entry)),
    reverse: (id, reversal) => again(() => own.reverse(id, reversal)),
    entry: (id) => own.entry(id),
    async balance(account, currency, asked = {}) {
      refuseUnknownOptions('balance', asked, ['asOf', 'signal'])
      signalOption('signal', asked.signal)
      const at = await settled(asked)
      if (at === undefined) return own.balance(account, currency)
      const values = [checkedName('account', account), checkedCurrency('currency', currency), at]
      return amountOf(await ask(pool, 'ledger.balance', { text: texts.balanceAsOf, values }))
    },
    async balances(account, asked = {}) {
      refuseUnknownOptions('balances', asked, ['asOf', 'signal'])
      signalOption('signal', asked.signal)
      const at = await settled(asked)
      if (at === undefined) return own.balances(account)
      const values = [checkedName('account', account), at]
      return amountsOf(await ask(pool, 'ledger.balances', { text: texts.balancesAsOf, values }))
    },
    in: (tx) => {
      if (typeof tx?.query !== 'function') throw new TypeError('ledger.in takes the client of a transaction')
      // Asked once: a post that is alone by mistake would not vanish with the rest.
      let open: Promise<void> | undefined
      return ledgerOn(tx, texts, () => (open ??= requireTransaction(tx, quoted(schema))))
    },
  }
}

/** The ledger on one connection. `ready` is awaited before anything is written. */
function ledgerOn(tx: LedgerConnection, texts: LedgerStatements, ready: () => Promise<void>): LedgerInTransaction {
  return {
    async post(entry) {
      const movements = checkedMovements(entry)
      const id = checkedName('id', entry.id)
      const note = checkedNote(entry.note)
      const values = [
        id,
        entryFingerprint(movements, note),
        note,
        movements.map(({ account }) => account),
        movements.map(({ currency }) => currency),
        movements.map(({ amount }) => String(amount)),
      ]
      await ready()
      const { rows } = await ask(tx, 'ledger.post', { text: texts.post, values })
      return posted(id, rows[0])
    },
    async reverse(reversed, reversal) {
      refuseUnknownOptions('reverse', reversal, ['id', 'note'])
      const id = checkedName('id', reversal.id)
      const original = checkedName('the id of the entry to reverse', reversed)
      const note = checkedNote(reversal.note)
      const values = [id, reversalFingerprint(original, note), note, original]
      await ready()
      const { rows } = await ask(tx, 'ledger.reverse', { text: texts.reverse, values })
      const kind = rows[0]?.['r_kind']
      if (kind === 'missing') return { kind }
      if (kind === 'reversed') return { kind, by: String(rows[0]?.['r_by']), recordedAt: String(rows[0]?.['r_at']) }
      return posted(id, rows[0])
    },
    async balance(account, currency) {
      const values = [checkedName('account', account), checkedCurrency('currency', currency)]
      return amountOf(await ask(tx, 'ledger.balance', { text: texts.balance, values }))
    },
    async balances(account) {
      const values = [checkedName('account', account)]
      return amountsOf(await ask(tx, 'ledger.balances', { text: texts.balances, values }))
    },
    async entry(id) {
      const { rows } = await ask(tx, 'ledger.entry', { text: texts.entry, values: [checkedName('id', id)] })
      return rows[0] === undefined ? undefined : entryOf(rows[0])
    },
    async hold(...accounts) {
      const names = accounts.map((account) => checkedName('account', account))
      await ready()
      await ask(tx, 'ledger.hold', { text: texts.hold, values: [names] })
    },
  }
}

/** Waits until no open transaction can bring an entry up to `at` any more. */
async function settle(
  pool: LedgerConnection,
  texts: LedgerStatements,
  at: string,
  settleMs: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const until = performance.now() + settleMs
  for (let turn = 1; ; turn += 1) {
    signal?.throwIfAborted()
    const { rows } = await ask(pool, 'ledger.open', { text: texts.open, values: [at] })
    const open = Number(rows[0]?.['open'])
    if (open === 0) return
    if (performance.now() >= until) {
      const what = `${open} transactions that began to post up to ${at} are open after ${settleMs} ms (settleMs)`
      throw new OnceError('TOO_BUSY', `ledger: ${what}`)
    }
    await pause(backoffMs(turn, BETWEEN), signal)
  }
}

/** Repeats a statement of our own that lost against another transaction; a post is safe to repeat. */
async function again<T>(run: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await run()
    } catch (error) {
      if (tries >= TRIES_MAX || classify(error) !== 'retry') throw error
      await pause(backoffMs(tries, BETWEEN))
    }
  }
}

async function ask(connection: LedgerConnection, doing: string, statement: PgStatement): Promise<PgResult> {
  try {
    return await connection.query(owned(statement))
  } catch (error) {
    const state = sqlState(error)
    if (state === '25P02') {
      throw new OnceError('NOT_A_TRANSACTION', `${doing}: the transaction has failed; roll it back first`, {
        cause: error,
      })
    }
    if (state === 'EO009') throw new RangeError('asOf must be in the past of the database clock', { cause: error })
    if (state === '55P03') {
      throw new OnceError('TOO_BUSY', `${doing}: another transaction did not end in time (lock_timeout)`, {
        cause: error,
      })
    }
    throw toOnceError(error, doing)
  }
}

function posted(id: string, row: Record<string, unknown> | undefined): Posted {
  const kind = row?.['r_kind']
  if (kind === 'posted' || kind === 'existing') return { kind, id, recordedAt: String(row?.['r_at']) }
  throw new OnceError('IDEMPOTENCY_KEY_REUSED', `the ledger has another entry under this id (${id.length} characters)`)
}

function amountOf({ rows }: PgResult): bigint {
  return BigInt(String(rows[0]?.['amount']))
}

function amountsOf({ rows }: PgResult): ReadonlyMap<string, bigint> {
  return new Map(rows.map((row) => [String(row['currency']), BigInt(String(row['amount']))]))
}

function entryOf(row: Record<string, unknown>): LedgerEntry {
  const text = (name: string) => (typeof row[name] === 'string' ? row[name] : undefined)
  const movements = JSON.parse(String(row['movements'])) as [account: string, amount: string, currency: string][]
  return {
    id: String(row['id']),
    recordedAt: String(row['recorded_at']),
    note: text('note'),
    reverses: text('reverses'),
    reversedBy: text('reversed_by'),
    movements: movements.map(([account, amount, currency]) => ({ account, amount: BigInt(amount), currency })),
  }
}

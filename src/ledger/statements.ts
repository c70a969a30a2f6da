/**
 * Statements of the ledger. What they decide is in 0006_ledger.sql. Amounts and instants travel as text, so that no parser
 * that the application has given to its driver touches them.
 *
 * @module
 */

import { quoted } from '../shared/identifier.ts'

export interface LedgerStatements {
  /** $1 id, $2 fingerprint, $3 note, $4 accounts, $5 currencies, $6 amounts. */
  readonly post: string
  /** $1 id, $2 fingerprint, $3 note, $4 id of the entry that is undone. */
  readonly reverse: string
  /** $1 accounts. */
  readonly hold: string
  /** $1 account, $2 currency. */
  readonly balance: string
  /** $1 account, $2 currency, $3 instant. */
  readonly balanceAsOf: string
  /** $1 account. */
  readonly balances: string
  /** $1 account, $2 instant. */
  readonly balancesAsOf: string
  /** $1 instant: how many transactions can still bring an entry up to it. */
  readonly open: string
  /** $1 id. */
  readonly entry: string
}

export function ledgerStatements(schemaName: string): LedgerStatements {
  const schema = quoted(schemaName)
  const tag = (statement: string) => `/* effectively-once:ledger.${statement} */`
  const sum = 'coalesce(pg_catalog.sum(m.amount), 0)::text as amount'
  const sums = `select m.currency, pg_catalog.sum(m.amount)::text as amount from ${schema}.ledger_movement as m`
  const of = `from ${schema}.ledger_movement as m where m.account = $1::text and m.currency = $2::text`
  return {
    post:
      `${tag('post')} select r_kind, r_at, null as r_by ` +
      `from ${schema}.ledger_post($1::text, $2::bytea, $3::text, $4::text[], $5::text[], $6::bigint[])`,
    reverse:
      `${tag('reverse')} select r_kind, r_at, r_by ` +
      `from ${schema}.ledger_reverse($1::text, $2::bytea, $3::text, $4::text)`,
    hold: `${tag('hold')} select ${schema}.ledger_hold($1::text[])`,
    balance: `${tag('balance')} select ${sum} ${of}`,
    balanceAsOf: `${tag('balance_as_of')} select ${sum} ${of} and m.recorded_at <= $3::timestamptz`,
    balances: `${tag('balances')} ${sums} where m.account = $1::text group by m.currency order by m.currency`,
    balancesAsOf:
      `${tag('balances_as_of')} ${sums} where m.account = $1::text and m.recorded_at <= $2::timestamptz ` +
      'group by m.currency order by m.currency',
    open: `${tag('open')} select ${schema}.ledger_open($1::timestamptz)::text as open`,
    entry:
      `${tag('entry')} select e.id, ${schema}.ledger_instant(e.recorded_at) as recorded_at, e.note, ` +
      `(select o.id from ${schema}.ledger_entry as o where o.seq = e.reverses) as reverses, ` +
      `(select r.id from ${schema}.ledger_entry as r where r.reverses = e.seq) as reversed_by, ` +
      `(select pg_catalog.json_agg(pg_catalog.json_build_array(m.account, m.amount::text, m.currency) order by m.line)::text ` +
      `from ${schema}.ledger_movement as m where m.entry = e.seq) as movements ` +
      `from ${schema}.ledger_entry as e where e.id = $1::text`,
  }
}

/** Facts: what is in the database, at the provider and off the broker when nothing is left to be done. */
import type pg from 'pg'
import { identify } from '../../src/operation/identity.ts'
import type { FakeProvider } from '../../src/testing/provider/index.ts'
import type { Facts } from './check.ts'
import type { KeptEffect, KeptFacts } from './check-kept.ts'
import type { Entry } from './history.ts'
import { DEADLY, PROJECTION, SCOPE } from './names.ts'

const DEADLY_ID = identify(SCOPE, DEADLY.key).id
/** Default of every outcome, milliseconds. */
const RETENTION_MS = 30 * 24 * 3_600_000

/** What waits: operations without outcome, messages that are not published, not applied, or set aside. */
export async function leftOf(pool: pg.Pool): Promise<readonly string[]> {
  const { rows } = await pool.query<{ what: string }>(
    `
    select 'operation ' || id || ' is ' || state || ', ' || coalesce(reason, 'without reason') as what
      from effectively_once.operation where state not in ('succeeded', 'rejected') and (id <> $1 or state <> 'parked')
    union all select 'message ' || seq || ' is not published' from effectively_once.outbox
    union all select 'message ' || seq || ' is parked: ' || reason from effectively_once.outbox_parked
    union all select 'message ' || seq || ' is quarantined: ' || reason from effectively_once.outbox_quarantine
    union all select 'message ' || message_id || ' waits at the consumer: ' || reason from effectively_once.inbox_waiting
    union all select 'message ' || coalesce(message_id, '?') || ' is quarantined at the consumer: ' || reason
      from effectively_once.inbox_quarantine
    union all select 'messages of ' || c.key || ' are not applied' from counter c
      where c.n <> (select count(distinct p.n) from projection p where p.key = c.key)`,
    [DEADLY_ID],
  )
  return rows.map(({ what }) => what)
}

export async function factsOf(
  pool: pg.Pool,
  provider: Pick<FakeProvider, 'effects'>,
  arrivals: Facts['arrivals'],
): Promise<Facts> {
  const ask = async <Row extends pg.QueryResultRow>(sql: string) => (await pool.query<Row>(sql)).rows
  const rows = new Map<string, string[]>()
  const add = (ref: string, outcome: string) => rows.set(ref, [...(rows.get(ref) ?? []), outcome])
  for (const { ref, id } of await ask<{ ref: string; id: number }>('select ref, id from orders order by id')) {
    add(ref, String(id))
  }
  // A job was acknowledged as accepted; that it was done is the booking.
  const jobs = new Set(
    (
      await ask<{
        key: string
      }>(`select b.ref as key from bookings b join effectively_once.operation o on o.kind is not null
      and o.state = 'succeeded' and (o.outcome::json ->> 'booking')::int = b.id`)
    ).map(({ key }) => key),
  )
  for (const { ref, charge } of await ask<{ ref: string; charge: string }>(
    'select ref, charge from bookings order by id',
  )) {
    add(ref, jobs.has(ref) ? 'accepted' : charge)
  }
  const effects = new Map<string, number>()
  for (const { reference } of provider.effects()) {
    if (reference !== undefined) effects.set(reference, (effects.get(reference) ?? 0) + 1)
  }
  const counters = await ask<{ key: string; n: number }>('select key, n from counter where n > 0')
  return {
    rows,
    effects,
    stuck: await leftOf(pool),
    committed: new Map(counters.map(({ key, n }) => [key, n])),
    arrivals,
    projected: await ask<{ key: string; n: number }>('select key, n from projection order by seq'),
  }
}

/** @param from - The database's clock before anything was stored (see {@link clockOf}). */
export async function keptOf(
  pool: pg.Pool,
  provider: Pick<FakeProvider, 'effects'>,
  history: readonly Entry[],
  from: number,
): Promise<KeptFacts> {
  const ask = async <Row extends pg.QueryResultRow>(sql: string) => (await pool.query<Row>(sql)).rows
  const keys = new Map<string, string>()
  for (const entry of history) {
    if (entry.kind !== 'asked') continue
    // A job is the operation of its request and one of its own, under the same key.
    for (const scope of [[...SCOPE, entry.route], SCOPE]) keys.set(identify(scope, entry.key).id, entry.key)
  }
  const stored = await ask<{ id: string; created: string; expires: string }>(`
    select id, extract(epoch from created_at) * 1000 as created, extract(epoch from expires_at) * 1000 as expires
    from effectively_once.operation where state in ('succeeded', 'rejected')`)
  const steps = await ask<{ id: string; state: KeptEffect['state']; result: string | null; settled: boolean }>(`
    select s.operation_id as id, s.state, s.result, o.state in ('succeeded', 'rejected') as settled
    from effectively_once.step s join effectively_once.operation o on o.id = s.operation_id where s.type = 'effect'`)
  const charges = new Map<string, string[]>()
  for (const { id, reference = '' } of provider.effects())
    charges.set(reference, [...(charges.get(reference) ?? []), id])
  const [deadly] = await ask<{ state: string; claims: number }>(
    `select state, claims from effectively_once.operation where kind = '${DEADLY.kind}'`,
  )
  const unmarked = await ask<{ id: string }>(`
    select p.id from projection p where not exists
      (select from effectively_once.inbox i where i.consumer = '${PROJECTION}' and i.message_id = p.id)`)
  return {
    outcomes: stored.map(({ id, created, expires }) => ({
      key: keys.get(id) ?? id,
      createdAt: Number(created),
      expiresAt: Number(expires),
    })),
    effects: steps.map(({ id, state, result, settled }) => ({
      reference: keys.get(id) ?? id,
      state,
      charge: result === null ? undefined : (JSON.parse(result) as { readonly id?: string }).id,
      settled,
    })),
    charges,
    unmarked: unmarked.map(({ id }) => `message ${id}`),
    from,
    to: await clockOf(pool),
    retentionMs: RETENTION_MS,
    deadly: { state: deadly?.state ?? 'gone', claims: deadly?.claims ?? 0, claimsMax: DEADLY.claimsMax },
    audit: await ask<KeptFacts['audit'][number]>('select actor, act, reason from effectively_once.audit'),
  }
}

/** The database's clock, milliseconds. */
export async function clockOf(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ now: string }>('select extract(epoch from clock_timestamp()) * 1000 as now')
  return Number(rows[0]?.now)
}

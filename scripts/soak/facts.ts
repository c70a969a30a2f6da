/** Facts: what is in the database, at the provider and off the broker when nothing is left to be done. */
import type pg from 'pg'
import type { FakeProvider } from '../../src/testing/provider/index.ts'
import type { Facts } from './check.ts'

/** What waits: operations without outcome, messages that are not published, not applied, or set aside. */
export async function leftOf(pool: pg.Pool): Promise<readonly string[]> {
  const { rows } = await pool.query<{ what: string }>(`
    select 'operation ' || id || ' is ' || state || ', ' || coalesce(reason, 'without reason') as what
      from effectively_once.operation where state not in ('succeeded', 'rejected')
    union all select 'message ' || seq || ' is not published' from effectively_once.outbox
    union all select 'message ' || seq || ' is parked: ' || reason from effectively_once.outbox_parked
    union all select 'message ' || seq || ' is quarantined: ' || reason from effectively_once.outbox_quarantine
    union all select 'message ' || message_id || ' waits at the consumer: ' || reason from effectively_once.inbox_waiting
    union all select 'message ' || coalesce(message_id, '?') || ' is quarantined at the consumer: ' || reason
      from effectively_once.inbox_quarantine
    union all select 'messages of ' || c.key || ' are not applied' from counter c
      where c.n <> (select count(distinct p.n) from projection p where p.key = c.key)`)
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

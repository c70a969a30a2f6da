/**
 * The work that the tests of leased operations do: charge at a provider, then book the charge with a message.
 */
import type pg from 'pg'
import {
  type Delivery,
  type EffectOptions,
  found,
  type Kind,
  notApplied,
  type Once,
  type Op,
  type ProviderProfile,
} from '../../src/index.ts'

export const SCOPE: readonly string[] = ['acme', 'charges']
export const LEASE_MS = 1_000

/** An owner that is stopped in the middle of its last packet keeps the operation's row for as long as a step may last. */
const STEP = { timeoutMs: 8_000 }

/** The longest time from a call's start until the provider has applied it: it is on this machine. */
const SETTLE_MS = 300

export interface Charge {
  /** The provider counts what it did by this name. */
  readonly reference: string
  readonly delivery: Delivery
  readonly timeoutMs?: number
  readonly settleAfterMs?: number
}

export interface Charged {
  readonly charge: string
  readonly booking: number
}

/** Where charges are made. */
export interface At {
  readonly url: string
  readonly profile: ProviderProfile
}

interface ChargeRequest {
  readonly amount: number
  readonly currency: string
  readonly reference: string
}

/** A call as a plain client makes it; an answer that is an error is thrown with what came. */
async function post(
  at: At,
  request: ChargeRequest,
  key: string,
  signal: AbortSignal,
): Promise<{ readonly id: string }> {
  const response = await fetch(`${at.url}/charges`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify(request),
    signal,
  })
  const body = (await response.json()) as { readonly id: string }
  if (response.ok) return body
  throw Object.assign(new Error(`status ${response.status}`), {
    status: response.status,
    headers: response.headers,
    body,
  })
}

/** Asks the provider by the operation's own reference. */
async function lookUp(at: At, reference: string, signal: AbortSignal) {
  const response = await fetch(`${at.url}/charges?reference=${encodeURIComponent(reference)}`, { signal })
  if (!response.ok) throw Object.assign(new Error(`status ${response.status}`), { status: response.status })
  const { data } = (await response.json()) as { readonly data: readonly { readonly id: string }[] }
  const [first] = data
  return first === undefined ? notApplied() : found(first)
}

/** What the tests change of the effect. */
export type Change = Partial<EffectOptions<ChargeRequest, { readonly id: string }>>

export function chargeEffect(
  at: At,
  { reference, delivery, timeoutMs = 5_000, settleAfterMs = SETTLE_MS }: Charge,
  change: Change = {},
): EffectOptions<ChargeRequest, { readonly id: string }> {
  return {
    request: { amount: 100, currency: 'eur', reference },
    call: (request, { idempotencyKey, signal }) => post(at, request, idempotencyKey, signal),
    ...(delivery === 'reconciled' || delivery === 'keyed'
      ? { reconcile: (request: ChargeRequest, { signal }) => lookUp(at, request.reference, signal) }
      : {}),
    delivery,
    provider: at.profile,
    settleAfterMs,
    timeoutMs,
    patienceMs: 2_000,
    ...change,
  }
}

/** Charges, books, and says so, in two steps. */
export async function chargeAndBook(op: Op<pg.PoolClient>, at: At, charge: Charge, change?: Change): Promise<Charged> {
  const { id } = await op.effect('charge', chargeEffect(at, charge, change))
  return await op.transaction(
    'book',
    async ({ tx, outbox }) => {
      const { rows } = await tx.query<{ id: number }>(
        'insert into bookings (ref, charge) values ($1, $2) returning id',
        [charge.reference, id],
      )
      const booking = Number(rows[0]?.id)
      await outbox.add({ topic: 'charge.booked', payload: { reference: charge.reference } })
      return { charge: id, booking }
    },
    STEP,
  )
}

export type ChargeKind = Kind<pg.PoolClient, Charge, Promise<Charged>>

/** The same as a kind, so that any process can resume it. */
export function defineCharge(
  once: Once<pg.PoolClient>,
  at: At,
  options: { readonly leaseMs?: number; readonly claimsMax?: number; readonly failuresMax?: number } = {},
): ChargeKind {
  return once.define('charge.book', {
    leaseMs: LEASE_MS,
    ...options,
    handler: (op, charge: Charge) => chargeAndBook(op, at, charge),
  })
}

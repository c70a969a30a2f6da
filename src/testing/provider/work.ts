/**
 * Work of a fake provider: one request that wants an effect, from its bytes to what is sent. Nothing here waits but held
 * requests, so two requests never see each other half done.
 *
 * @module
 */

import { KEY_FITS } from '../../effect/provider/index.ts'
import { hash } from '../../shared/crypto.ts'
import type { Book, KeyRecord, ProviderEffect, StoredAnswer } from './book.ts'
import type { MetFault } from './fault.ts'
import {
  DECLINED,
  FAILED,
  IN_PROGRESS,
  invalid,
  MISMATCH,
  type Mode,
  RATE_LIMITED,
  type Refusal,
  UNAVAILABLE,
} from './mode.ts'

export interface WriteRequest {
  readonly number: number
  readonly path: string
  readonly key: string | undefined
  readonly bytes: Buffer
  readonly body: Readonly<Record<string, unknown>> | undefined
  readonly fault: MetFault | undefined
  /** Waits until the request is released. */
  hold(): Promise<void>
}

/** How a request ends on the wire. */
export type Ending =
  | { readonly kind: 'lost' }
  | { readonly kind: 'silent' }
  | {
      readonly kind: 'answer'
      readonly answer: StoredAnswer
      readonly replayed: boolean
      readonly retryAfterSeconds?: number | undefined
      /** The connection is destroyed instead of sending it, or after half of it. */
      readonly cut?: 'whole' | 'half' | undefined
    }

/** Carries out a request that wants an effect. */
export async function work(book: Book, mode: Mode, request: WriteRequest): Promise<Ending> {
  const { fault, key, body } = request
  const early = beforeKeys(fault)
  if (early !== undefined) return early
  const wanted = body === undefined ? undefined : wish(body)
  if (wanted === undefined)
    return refuse(invalid('amount takes a whole number above 0, reference and currency take text'))
  if (mode.profile.key.in === 'none' || key === undefined) return carryOut(book, mode, request, wanted, undefined)

  const { lengthMax, charset } = mode.profile.key
  if (key.length > lengthMax || !KEY_FITS[charset].test(key)) return refuse(invalid('the key is malformed or too long'))
  if (fault?.kind === 'keyForgotten') book.keys.delete(key)
  const fingerprint = hash('sha256', Buffer.concat([Buffer.from(`${request.path}\n`), request.bytes]), 'hex')
  const known = book.key(key, mode.profile.keyLifetimeMs ?? null)
  if (known !== undefined && known.fingerprint !== fingerprint) return refuse(MISMATCH)
  if (known?.running === true) return refuse(IN_PROGRESS)
  if (known?.answer !== undefined) return { kind: 'answer', answer: known.answer, replayed: true }
  const record: KeyRecord = known ?? {
    fingerprint,
    firstAt: book.now,
    running: true,
    answer: undefined,
    effect: undefined,
  }
  record.running = true
  book.keys.set(key, record)
  return carryOut(book, mode, request, wanted, record)
}

interface Wish {
  readonly amount: number
  readonly currency: string
  readonly reference: string | undefined
  readonly decline: boolean
}

async function carryOut(
  book: Book,
  mode: Mode,
  request: WriteRequest,
  wanted: Wish,
  record: KeyRecord | undefined,
): Promise<Ending> {
  const kind = request.fault?.kind
  if (kind === 'heldBefore') await request.hold()
  if (wanted.decline) return finish(mode, record, DECLINED, undefined, undefined)
  if (kind === 'failed') return finish(mode, record, FAILED, undefined, undefined)
  const { amount, currency, reference } = wanted
  const effect =
    record?.effect ??
    book.apply({
      path: request.path,
      reference,
      amount,
      currency,
      key: request.key,
      request: request.number,
      body: request.body ?? {},
    })
  if (kind === 'heldAfter') await request.hold()
  return finish(mode, record, kind === 'errorAfter' ? FAILED : undefined, effect, kind)
}

/** Stores what is stored with the key, and says how the request ends. */
function finish(
  mode: Mode,
  record: KeyRecord | undefined,
  refusal: Refusal | undefined,
  effect: ProviderEffect | undefined,
  fault: MetFault['kind'] | undefined,
): Ending {
  const answer =
    refusal === undefined && effect !== undefined ? answerWith(200, view(effect)) : problem(refusal ?? FAILED)
  if (record !== undefined) {
    record.running = false
    // A repeat that fails leaves what an earlier attempt has done.
    record.effect = effect ?? record.effect
    const failed = answer.status >= 500
    if (failed ? mode.storesFailures : mode.replaysBytes || refusal !== undefined) record.answer = answer
  }
  if (fault === 'silentAfter') return { kind: 'silent' }
  const cut = fault === 'answerLost' ? 'whole' : fault === 'answerCut' ? 'half' : undefined
  return { kind: 'answer', answer, replayed: false, cut }
}

function beforeKeys(fault: MetFault | undefined): Ending | undefined {
  switch (fault?.kind) {
    case 'connectionLost':
      return { kind: 'lost' }
    case 'silentBefore':
      return { kind: 'silent' }
    case 'rateLimited':
      return { ...refuse(RATE_LIMITED), retryAfterSeconds: fault.retryAfterSeconds }
    case 'unavailable':
      return { ...refuse(UNAVAILABLE), retryAfterSeconds: fault.retryAfterSeconds }
    case undefined:
    case 'failed':
    case 'answerLost':
    case 'answerCut':
    case 'silentAfter':
    case 'errorAfter':
    case 'heldBefore':
    case 'heldAfter':
    case 'keyForgotten':
      return undefined
  }
}

function wish(body: Readonly<Record<string, unknown>>): Wish | undefined {
  const { amount, currency = 'eur', reference, decline = false } = body
  if (typeof amount !== 'number' || !Number.isSafeInteger(amount) || amount <= 0) return undefined
  if (typeof currency !== 'string' || (reference !== undefined && typeof reference !== 'string')) return undefined
  return { amount, currency, reference, decline: decline === true }
}

/** An effect as it is shown to callers. */
export function view({ id, amount, currency, reference }: ProviderEffect): object {
  return { id, status: 'succeeded', amount, currency, reference: reference ?? null }
}

export function answerWith(status: number, content: object): StoredAnswer {
  return { status, body: Buffer.from(JSON.stringify(content)) }
}

function problem({ status, type, code, message }: Refusal): StoredAnswer {
  return answerWith(status, { error: { type, ...(code === undefined ? {} : { code }), message } })
}

export function refuse(refusal: Refusal): Ending & { readonly kind: 'answer' } {
  return { kind: 'answer', answer: problem(refusal), replayed: false }
}

/**
 * An operation: one intent with its key and its bytes, which can be sent as often as it takes.
 *
 * @module
 */

import { freezeBody } from './body.ts'
import { entryIn, pendingAs, stored } from './entry.ts'
import { frozenHeaders } from './headers.ts'
import { isKey, newKey } from './key.ts'
import { isMethod, type OperationRecord } from './record.ts'
import type { Completed, OperationResult, Refused, UnknownReason } from './result.ts'
import { Sending } from './send.ts'
import { type ClientOptions, positive, type SendCall, type Settings, settingsOf } from './settings.ts'
import { obtainTurn } from './turn.ts'

export interface OperationOptions extends ClientOptions {
  /** Absolute, or relative to the page, http or https. Resolved once. */
  readonly url: string | URL
  /** `POST` (default), `PUT`, `PATCH` or `DELETE`. */
  readonly method?: string | undefined
  /**
   * Text, bytes, `URLSearchParams`, `FormData`, `Blob`, or plain data that is sent as JSON; undefined = no body. Taken
   * as it is now: what happens to it later changes nothing. Streams are refused.
   */
  readonly body?: unknown
  /** Frozen and stored with the operation. Credentials are refused here; they belong to `attemptHeaders`. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** Names the intent: 1 to 255 visible ASCII characters. Default: a random UUID. */
  readonly key?: string | undefined
  /** Sends the key as a Structured Field String (`"k"`) always. Default false: only where it needs the quotes. */
  readonly quotedKey?: boolean | undefined
  /** Stored with the operation, for the caller to know it by after a restart. Not sent. */
  readonly label?: string | undefined
  /** Which cookies go with it. Default `same-origin`. */
  readonly credentials?: 'omit' | 'same-origin' | 'include' | undefined
  /** Bytes of a body that are accepted. Default 1 MiB. */
  readonly bodyBytesMax?: number | undefined
  /**
   * Milliseconds from the first attempt for which the service is trusted to know the key. Later the operation is not
   * sent any more, because it might be done a second time. Keep it below the service's retention. Default 24 h.
   */
  readonly lifetimeMs?: number | undefined
}

/**
 * Call it to send; call it again to go on. Calls at the same time are one, so a double click sends once, and after a
 * final answer nothing more is sent: every later call gets that answer.
 */
export interface SendOperation {
  /**
   * Sends until there is a final answer, or reason to stop. The operation is written down before it is first sent, and
   * leaves the storage only after a final answer.
   *
   * @throws {ClientError} `BODY_TOO_LARGE`, `STORAGE_FAILED`, `KEY_IN_USE`; nothing was sent by this call.
   * @throws {TypeError} when `attemptHeaders` gives what belongs to the operation; that attempt was not sent.
   */
  (call?: SendCall): Promise<OperationResult>
  readonly key: string
  readonly method: string
  readonly url: string
  readonly label: string | null
  /** Milliseconds since 1970. */
  readonly createdAt: number
  /** Why its outcome could not be learned, when it was read from a storage where that stands. */
  readonly unknown: UnknownReason | null
  /** Takes it out of the storage without an answer: after looking its fate up, or when it shall not be sent any more. */
  forget(): Promise<void>
}

const BODY_BYTES_MAX = 1_024 * 1_024
const LIFETIME_MS = 24 * 60 * 60 * 1_000

/**
 * Makes the operation: its key, its bytes, its address. Sends and stores nothing yet.
 *
 * @throws {TypeError} naming the option.
 * @throws {ClientError} `BODY_TOO_LARGE`; for `Blob` and `FormData` when it is sent.
 * @example
 * const send = createOperation({ url: '/orders', body: { customer: 'c-1', cents: 4200 }, storage })
 * const result = await send()
 */
export function createOperation(options: OperationOptions): SendOperation {
  const settings = settingsOf(options)
  const method = (options.method ?? 'POST').toUpperCase()
  if (!isMethod(method))
    throw new TypeError(`createOperation: method must be POST, PUT, PATCH or DELETE, not ${method}`)
  const key = options.key ?? newKey()
  if (!isKey(key)) throw new TypeError('createOperation: key must have 1 to 255 visible ASCII characters')
  const bytesMax = positive('bodyBytesMax', options.bodyBytesMax, BODY_BYTES_MAX)
  const base = {
    key,
    method,
    url: absolute(options.url),
    credentials: options.credentials ?? 'same-origin',
    quotedKey: options.quotedKey ?? false,
    label: options.label ?? null,
    createdAt: settings.clock.now(),
    lifetimeMs: positive('lifetimeMs', options.lifetimeMs, LIFETIME_MS),
    attempts: 0,
    firstSentAt: null,
    notBeforeAt: null,
    unknown: null,
  } as const
  const given = { ...options.headers }
  frozenHeaders(given, null)
  const frozen = freezeBody(options.body, bytesMax)
  const record = (body: Awaited<typeof frozen>): OperationRecord => ({
    ...base,
    headers: frozenHeaders(given, body.contentType),
    body: body.bytes,
  })
  if (!(frozen instanceof Promise)) return sendable(base, record(frozen), settings, 'wait')
  const later = frozen.then(record)
  // Told by the call that needs it; without one there is nobody to tell.
  later.catch(() => undefined)
  return sendable(base, later, settings, 'wait')
}

function absolute(url: string | URL): string {
  const { location } = globalThis as { readonly location?: { readonly href: string } }
  let found: URL
  try {
    found = new URL(url, location?.href)
  } catch (error) {
    throw new TypeError('createOperation: url must be absolute, or relative to a page', { cause: error })
  }
  if (!/^https?:$/.test(found.protocol)) throw new TypeError('createOperation: url must be http or https')
  if (found.username !== '' || found.password !== '') {
    throw new TypeError('createOperation: url holds credentials, which are not stored; give them by attemptHeaders')
  }
  found.hash = ''
  return found.href
}

type Facts = Pick<OperationRecord, 'key' | 'method' | 'url' | 'label' | 'createdAt' | 'unknown'>

/**
 * The operation that sends `made`. `try` is for operations found in a storage: they are left to another sender that is
 * at it, and not sent when they have left the storage.
 */
export function sendable(
  { key, method, url, label, createdAt, unknown }: Facts,
  made: OperationRecord | Promise<OperationRecord>,
  settings: Settings,
  patience: 'wait' | 'try',
): SendOperation {
  let inHand: Promise<OperationResult> | undefined
  let final: Completed | Refused | undefined
  /** The record as this object last wrote it, so that the instant of the first attempt is never forgotten. */
  let latest = made
  const sendOnce = async ({ signal, deadlineMs }: SendCall): Promise<OperationResult> => {
    const { clock } = settings
    const deadlineAt = clock.now() + positive('deadlineMs', deadlineMs, settings.deadlineMs)
    const note = (record: OperationRecord): void => {
      latest = record
    }
    const result = await sendInTurn(await latest, { settings, patience, deadlineAt, signal, note })
    if (result.state === 'completed' || result.state === 'refused') final = result
    return result
  }
  const send = async (call: SendCall = {}): Promise<OperationResult> => {
    if (final === undefined) {
      inHand ??= sendOnce(call).finally(() => {
        inHand = undefined
      })
      const result = await inHand
      if (result !== final) return result
    }
    // Each caller gets a response that nobody has read.
    return { ...final, response: final.response.clone() }
  }
  const forget = async (): Promise<void> => {
    await inHand?.catch(() => undefined)
    await settings.storage.remove(key)
  }
  return Object.assign(send, { key, method, url, label, createdAt, unknown, forget })
}

interface InTurn {
  readonly settings: Settings
  readonly patience: 'wait' | 'try'
  readonly deadlineAt: number
  readonly signal: AbortSignal | undefined
  readonly note: (record: OperationRecord) => void
}

async function sendInTurn(record: OperationRecord, call: InTurn): Promise<OperationResult> {
  const { settings, patience, deadlineAt, signal, note } = call
  const { clock, storage, attemptTimeoutMs: stepMs } = settings
  const { key } = record
  const turn = await stored(() => obtainTurn(key, { storage, clock, patience, deadlineAt, stepMs, signal }))
  try {
    const found = await pendingAs(record, storage)
    // Also what another sender wrote: when it was first sent counts, whoever did.
    if (found !== undefined) note(found)
    const current = found ?? record
    const entry = entryIn(storage, key, found !== undefined && found.attempts > 0, note)
    if (found === undefined && patience === 'try') return notSent('gone', record)
    if (turn !== undefined) return await new Sending(current, entry, turn, settings, deadlineAt, signal).run()
    // It is the other sender's to write to; only when there is nothing yet it is written down here.
    if (found === undefined) await entry.save(record)
    return notSent('held', current)
  } finally {
    await turn?.release()
  }
}

function notSent(reason: 'gone' | 'held', { key, attempts, notBeforeAt }: OperationRecord): OperationResult {
  return { state: 'gaveUp', reason, last: undefined, notBeforeAt, key, attempts }
}

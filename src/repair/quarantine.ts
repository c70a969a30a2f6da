/**
 * Quarantine, from the seat of a person: what lies there, of both kinds, and sending it back under its own id.
 *
 * The stores write the audit row in the transaction of the act (R45, R46, I16); here it is seen to that an act has an
 * author and a reason, and that what names a message is a name.
 *
 * @module
 */

import { describe, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { InboxQuarantineEntry } from '../store/inbox.ts'
import type { Act } from '../store/job.ts'
import type { QuarantinedView } from '../store/outbox.ts'
import type { Store } from '../store/store.ts'
import { checkAct } from './act.ts'

export interface QuarantineFilter {
  /** Which of the two. Default: both. */
  readonly of?: 'outbox' | 'inbox' | undefined
  /** Default 100 of each; 1 to 1_000. */
  readonly limit?: number | undefined
  /** With `of: 'inbox'`: the id of the last one of the page before. */
  readonly after?: string | undefined
}

export interface Quarantined {
  /** Messages that cannot be published, the one that lies there longest first. */
  readonly outbox: readonly QuarantinedView[]
  /** Deliveries that a consumer could not apply, in the order of their arrival there. */
  readonly inbox: readonly InboxQuarantineEntry[]
}

/** Names what is sent back: messages by their ids, or entries of the inbox's quarantine by theirs. At most 1_000. */
export type QuarantineReference =
  | { readonly outbox: readonly string[] }
  /** `override`: a mark that is past its retention does not stop the message. Default false. */
  | { readonly inbox: readonly string[]; readonly override?: boolean | undefined }

/**
 * What became of one: `redriven`; `notFound`, it is not there; `waiting`, a delivery with this id waits already;
 * `no-identity`, nothing names it, so it cannot be applied once.
 */
export interface RedrivenMessage {
  readonly id: string
  readonly answer: 'redriven' | 'notFound' | 'waiting' | 'no-identity'
}

const MAX = 1_000

export async function quarantined(store: Store<unknown>, filter: QuarantineFilter = {}): Promise<Quarantined> {
  refuseUnknownOptions('once.quarantined', filter, ['of', 'limit', 'after'])
  const { of, after } = filter
  if (of !== undefined && of !== 'outbox' && of !== 'inbox') {
    throw new TypeError(`once.quarantined of takes outbox | inbox, got ${describe(of)}`)
  }
  const limit = integerOption('limit', filter.limit, { min: 1, max: MAX, default: 100 })
  if (after !== undefined) {
    if (of !== 'inbox') throw new TypeError("once.quarantined after goes with of: 'inbox'")
    checkEntry(after)
  }
  return {
    outbox: of === 'inbox' ? [] : await store.outbox.quarantined(limit),
    inbox: of === 'outbox' ? [] : await store.inbox.listQuarantine({ limit, after }),
  }
}

export async function redriveMessages(
  store: Store<unknown>,
  reference: QuarantineReference,
  act: Act,
): Promise<readonly RedrivenMessage[]> {
  checkAct(act)
  if ('outbox' in reference) {
    const ids = checkIds(reference.outbox, checkMessage)
    const moved = new Set(ids.length === 0 ? [] : await store.outbox.redrive(ids, act))
    return ids.map((id) => ({ id, answer: moved.has(id) ? 'redriven' : 'notFound' }))
  }
  const { inbox, override = false } = reference
  if (typeof override !== 'boolean') throw new TypeError('once.redriveMessages override takes true or false')
  const ids = checkIds(inbox, checkEntry)
  const answers = await store.inbox.redrive(ids, { override, actor: act.actor, reason: act.reason })
  return ids.map((id, index) => {
    const answer = answers[index] ?? 'absent'
    return { id, answer: answer === 'absent' ? 'notFound' : answer }
  })
}

/** Each once, in the order given. */
function checkIds(ids: unknown, check: (id: unknown) => string): readonly string[] {
  if (!Array.isArray(ids) || ids.length > MAX) {
    throw new TypeError(`once.redriveMessages takes { outbox: ids } or { inbox: ids }, at most ${MAX}`)
  }
  return [...new Set(ids.map(check))]
}

function checkMessage(id: unknown): string {
  if (typeof id !== 'string' || !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) {
    throw new TypeError(`a message's id is a UUID in lower case, got ${describe(id)}`)
  }
  return id
}

function checkEntry(id: unknown): string {
  if (typeof id !== 'string' || !/^[1-9]\d{0,17}$/.test(id)) {
    throw new TypeError(`an entry of the inbox's quarantine is named by its number, as text, got ${describe(id)}`)
  }
  return id
}

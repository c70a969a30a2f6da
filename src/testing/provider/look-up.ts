/**
 * Look-ups at a fake provider: how callers ask what has happened.
 *
 * @module
 */

import type { Book, ProviderEffect } from './book.ts'
import type { MetFault } from './fault.ts'
import { invalid, notFound, RATE_LIMITED, UNAVAILABLE } from './mode.ts'
import { answerWith, type Ending, refuse, view } from './work.ts'

/** `reference`: `GET /path?reference=R`. `list`: pages only. `none`: effects cannot be asked for, except by id. */
export type ProviderLookUp = 'reference' | 'list' | 'none'

export const PROVIDER_LOOK_UPS: readonly ProviderLookUp[] = ['reference', 'list', 'none']

const PAGE_MAX = 100

export interface LookUpSettings {
  readonly lookUp: ProviderLookUp
  /** Effects are seen this long after they were applied, milliseconds of the provider's own clock. */
  readonly lookUpDelayMs: number
}

export interface ReadRequest {
  readonly path: string
  readonly query: URLSearchParams
  readonly fault: MetFault | undefined
  hold(): Promise<void>
}

/** Answers `GET /path/id`, `GET /path?reference=` and `GET /path?starting_after=&limit=`. */
export async function look(book: Book, settings: LookUpSettings, request: ReadRequest): Promise<Ending> {
  const { fault, query, path } = request
  if (fault?.kind === 'connectionLost') return { kind: 'lost' }
  if (fault?.kind === 'silentBefore') return { kind: 'silent' }
  if (fault?.kind === 'rateLimited') return { ...refuse(RATE_LIMITED), retryAfterSeconds: fault.retryAfterSeconds }
  if (fault?.kind === 'unavailable') return { ...refuse(UNAVAILABLE), retryAfterSeconds: fault.retryAfterSeconds }
  if (fault?.kind === 'heldBefore') await request.hold()

  const seen = (effect: ProviderEffect) => book.now - effect.at >= settings.lookUpDelayMs
  const id = /^(.*)\/(fx_\d+)$/.exec(path)
  if (id !== null) {
    const effect = book.effect(id[2] ?? '')
    return effect !== undefined && effect.path === id[1] && seen(effect)
      ? { kind: 'answer', answer: answerWith(200, view(effect)), replayed: false }
      : refuse(notFound('No such object.'))
  }
  const reference = query.get('reference')
  if (reference !== null) {
    if (settings.lookUp !== 'reference') return refuse(invalid('reference is no filter here'))
    return page(
      book.withReference(reference).filter((effect) => effect.path === path && seen(effect)),
      false,
    )
  }
  if (settings.lookUp === 'none') return refuse(notFound('There is no list here.'))
  const limit = Number(query.get('limit') ?? '10')
  if (!Number.isInteger(limit) || limit < 1 || limit > PAGE_MAX) return refuse(invalid('limit takes 1 to 100'))
  const after = Number(/^fx_(\d+)$/.exec(query.get('starting_after') ?? 'fx_0')?.[1] ?? 'NaN')
  if (Number.isNaN(after)) return refuse(invalid('starting_after takes an id'))
  const rest = book.effects.slice(after).filter((effect) => effect.path === path && seen(effect))
  return page(rest.slice(0, limit), rest.length > limit)
}

function page(effects: readonly ProviderEffect[], hasMore: boolean): Ending {
  return { kind: 'answer', answer: answerWith(200, { data: effects.map(view), has_more: hasMore }), replayed: false }
}

/**
 * Faults of a fake provider: what goes wrong with which request, by script or by seed.
 *
 * @module
 */

import { hash } from '../../shared/crypto.ts'
import { choiceOption, integerOption, refuseUnknownOptions } from '../../shared/options.ts'

/**
 * What goes wrong with one request.
 *
 * Nothing is applied by:
 * - `connectionLost`: the socket is destroyed as soon as the request has been read.
 * - `silentBefore`: no answer ever comes.
 * - `rateLimited`: 429 with `Retry-After`, before the key is looked at.
 * - `unavailable`: 503, before the key is looked at; nothing is stored.
 * - `failed`: the work begins and fails with a 500. What a repeat with the key gets is the mode's matter.
 *
 * The effect is applied by:
 * - `answerLost`: then the socket is destroyed.
 * - `answerCut`: the answer's head and half of its body arrive, then the socket is destroyed.
 * - `silentAfter`: no answer ever comes.
 * - `errorAfter`: the answer is a 500 all the same.
 *
 * - `heldBefore`, `heldAfter`: the call stays open before or after applying until it is released; a repeat with the key
 *   meets a call in progress. A caller that hangs up changes nothing: the work goes on at its release.
 * - `keyForgotten`: the provider has forgotten the key by now, and the request is carried out as a new one.
 */
export type ProviderFaultKind =
  | 'connectionLost'
  | 'silentBefore'
  | 'rateLimited'
  | 'unavailable'
  | 'failed'
  | 'answerLost'
  | 'answerCut'
  | 'silentAfter'
  | 'errorAfter'
  | 'heldBefore'
  | 'heldAfter'
  | 'keyForgotten'

/** All kinds, for tables of tests. */
export const PROVIDER_FAULTS: readonly ProviderFaultKind[] = [
  'connectionLost',
  'silentBefore',
  'rateLimited',
  'unavailable',
  'failed',
  'answerLost',
  'answerCut',
  'silentAfter',
  'errorAfter',
  'heldBefore',
  'heldAfter',
  'keyForgotten',
]
const FOR_LOOK_UPS: readonly ProviderFaultKind[] = [
  'connectionLost',
  'silentBefore',
  'rateLimited',
  'unavailable',
  'heldBefore',
]
const DEFAULT_SEEDED: readonly ProviderFaultKind[] = PROVIDER_FAULTS.filter(
  (kind) => !kind.startsWith('held') && kind !== 'keyForgotten',
)
const TIMES_MAX = 1_000_000

/** One line of a script: the next requests that it fits meet the fault. */
export interface ProviderFault {
  readonly kind: ProviderFaultKind
  /** Which requests: those that cause effects, or those that look them up. Default `write`. */
  readonly on?: 'write' | 'lookUp' | undefined
  /** Only requests with this reference. */
  readonly reference?: string | undefined
  /** Only requests with this key. */
  readonly key?: string | undefined
  /** How many requests meet it. Default 1; 1 to 1_000_000. */
  readonly times?: number | undefined
  /** `rateLimited`, `unavailable`: `Retry-After` in whole seconds. Default 1; 0 to 86_400. */
  readonly retryAfterSeconds?: number | undefined
}

/** Faults drawn by a seed: the same requests meet the same faults in every run, in whatever order they come. */
export interface SeededFaults {
  readonly seed: number
  /** Share of requests that meet a fault, 0 to 1. */
  readonly rate: number
  /** Default: all that end by themselves, without `keyForgotten`. */
  readonly kinds?: readonly ProviderFaultKind[] | undefined
  /** Most faults for one key (or reference), so that every operation ends. Default 3; 1 to 1_000_000. */
  readonly perKeyMax?: number | undefined
}

/** A fault that one request meets. */
export interface MetFault {
  readonly kind: ProviderFaultKind
  readonly retryAfterSeconds: number
}

/** What a fault may be chosen by. */
export interface FaultTarget {
  readonly on: 'write' | 'lookUp'
  readonly reference: string | undefined
  readonly key: string | undefined
}

interface Line {
  readonly fault: ProviderFault
  left: number
}

/** Decides which fault each request meets. The script comes first, then the seed. */
export class FaultScript {
  readonly #lines = new Set<Line>()
  readonly #seeded: SeededFaults | undefined
  /** Requests and faults so far, by key or reference. */
  readonly #seen = new Map<string, { requests: number; faults: number }>()

  constructor(seeded: SeededFaults | undefined) {
    if (seeded !== undefined) checkSeeded(seeded)
    this.#seeded = seeded
  }

  add(fault: ProviderFault): void {
    refuseUnknownOptions('fault', fault, ['kind', 'on', 'reference', 'key', 'times', 'retryAfterSeconds'])
    const on = choiceOption('fault.on', fault.on, ['write', 'lookUp'], 'write')
    choiceOption('fault.kind', fault.kind, on === 'write' ? PROVIDER_FAULTS : FOR_LOOK_UPS, 'failed')
    if (fault.kind === undefined) throw new TypeError('fault.kind is missing')
    integerOption('fault.retryAfterSeconds', fault.retryAfterSeconds, { min: 0, max: 86_400, default: 1 })
    this.#lines.add({ fault, left: integerOption('fault.times', fault.times, { min: 1, max: TIMES_MAX, default: 1 }) })
  }

  clear(): void {
    this.#lines.clear()
  }

  /** Takes the fault for a request, so that it is used up. */
  take(target: FaultTarget): MetFault | undefined {
    for (const line of this.#lines) {
      const { fault } = line
      if ((fault.on ?? 'write') !== target.on) continue
      if (fault.reference !== undefined && fault.reference !== target.reference) continue
      if (fault.key !== undefined && fault.key !== target.key) continue
      line.left -= 1
      if (line.left === 0) this.#lines.delete(line)
      return { kind: fault.kind, retryAfterSeconds: fault.retryAfterSeconds ?? 1 }
    }
    return target.on === 'write' ? this.#draw(target) : undefined
  }

  #draw({ key, reference }: FaultTarget): MetFault | undefined {
    if (this.#seeded === undefined) return undefined
    const { seed, rate, kinds = DEFAULT_SEEDED, perKeyMax = 3 } = this.#seeded
    const who = key ?? reference ?? ''
    const seen = this.#seen.get(who) ?? { requests: 0, faults: 0 }
    this.#seen.set(who, seen)
    seen.requests += 1
    if (seen.faults >= perKeyMax) return undefined
    const bytes = hash('sha256', `${seed}\n${seen.requests}\n${who}`, 'buffer')
    if (bytes.readUInt32BE(0) / 2 ** 32 >= rate) return undefined
    seen.faults += 1
    const kind = kinds[bytes.readUInt32BE(4) % kinds.length]
    return kind === undefined ? undefined : { kind, retryAfterSeconds: 0 }
  }
}

function checkSeeded(seeded: SeededFaults): void {
  refuseUnknownOptions('faults', seeded, ['seed', 'rate', 'kinds', 'perKeyMax'])
  integerOption('faults.seed', seeded.seed, { min: 0, max: 2 ** 53 - 1, default: 0 })
  integerOption('faults.perKeyMax', seeded.perKeyMax, { min: 1, max: TIMES_MAX, default: 3 })
  if (typeof seeded.rate !== 'number' || !(seeded.rate >= 0 && seeded.rate <= 1)) {
    throw new TypeError('faults.rate takes a number from 0 to 1')
  }
  for (const kind of seeded.kinds ?? []) choiceOption('faults.kinds', kind, PROVIDER_FAULTS, kind)
  if (seeded.kinds?.length === 0) throw new TypeError('faults.kinds takes at least one kind')
}

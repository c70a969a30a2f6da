/**
 * What becomes of a call: four results, and none says more than is known.
 *
 * @module
 */

import type { Problem } from './problem.ts'

/** Why the outcome cannot be learned by asking again. */
export type UnknownReason =
  /** An effect outside the service's database may or may not have happened. */
  | 'outcome-unknown'
  /** It was done, but the answer is no longer there or could not be kept. Read what it made. */
  | 'result-unavailable'
  /** It failed too often and waits for a person. */
  | 'parked'
  /** The service no longer knows keys of this age. */
  | 'key-expired'
  /** First sent longer ago than `lifetimeMs`: the service may have forgotten the key, so it is not sent again. */
  | 'lifetime'
  /** Answered with a redirect that browsers hide from programs. */
  | 'redirect'

/** Why the service did not judge the operation and retrying now is of no use. */
export type LaterReason =
  /** 401 or 407: send again when there are fresh credentials. */
  | 'login'
  /** The service says that it is set up wrongly or has a defect. */
  | 'fault'

export type GaveUpReason =
  | LaterReason
  /** `deadlineMs` is over, or the service asked to come back after it. */
  | 'deadline'
  /** The retry budget is used up. */
  | 'budget'
  /** The signal was aborted. */
  | 'aborted'
  /** Another tab or process is sending it. */
  | 'held'
  /** No longer in the storage, so not sent: another tab or process got its answer, or forgot it. */
  | 'gone'

interface Common {
  readonly key: string
  /** How often the operation was sent, in this call and before; 0 = it has certainly not been applied. */
  readonly attempts: number
  /** What the storage said when it could not write down the end of this call; the entry there is older than this. */
  readonly storageError?: unknown
}

/** The operation was done, now or by an earlier attempt. No longer in the storage. */
export interface Completed extends Common {
  readonly state: 'completed'
  /** Whether the service gave an earlier outcome again (`Idempotent-Replayed: true`). */
  readonly replayed: boolean
  /** The answer, read to its end. */
  readonly response: Response
  /** The body was over `responseBytesMax` and left out of `response`. */
  readonly bodyOmitted: boolean
}

/** A final no. No longer in the storage. */
export interface Refused extends Common {
  readonly state: 'refused'
  readonly status: number
  readonly problem: Problem | undefined
  /** Whether a (corrected) request may be sent under a new key; null = the service does not say, so first look. */
  readonly safeNewKey: boolean | null
  readonly replayed: boolean
  readonly response: Response
  readonly bodyOmitted: boolean
}

/** Neither yes nor no. Stays in the storage, is never sent again by itself, and needs a look; never a new key. */
export interface Unknown extends Common {
  readonly state: 'unknown'
  readonly reason: UnknownReason
  readonly problem: Problem | undefined
}

/** No answer yet. Stays in the storage (unless `gone`); the same operation can be sent again later. */
export interface GaveUp extends Common {
  readonly state: 'gaveUp'
  readonly reason: GaveUpReason
  /** What the last attempt of this call met; undefined when there was none. */
  readonly last: LastSeen | undefined
  /** The service asked not to come back before, milliseconds since 1970. */
  readonly notBeforeAt: number | null
}

export type LastSeen =
  | { readonly kind: 'answer'; readonly status: number; readonly problem: Problem | undefined }
  | { readonly kind: 'network'; readonly error: unknown }
  | { readonly kind: 'timeout' }

export type OperationResult = Completed | Refused | Unknown | GaveUp

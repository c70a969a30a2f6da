/**
 * Options of a guarded route, as a user writes them. What they become is in ./policy.ts.
 *
 * @module
 */

import type { LeaseOptions } from '../job/settings.ts'
import type { Scope } from '../operation/identity.ts'
import type { Isolation } from '../store/operation.ts'
import type { WholeResponse } from './response.ts'
import type { EncryptionKeys } from './stored.ts'

/**
 * Whose key it is. A function that gives the authenticated tenant or principal; when it gives nothing, the request is
 * refused. A route without authentication says so: `{ anonymous: 'signup' }` is one key space for all callers. (T1)
 */
export type RequestScope<Req> = ((request: Req) => Scope | Promise<Scope>) | { readonly anonymous: string }

/** The request's body for the `fingerprint` option. */
export interface FingerprintBody {
  /** As received; undefined when the framework kept only what it parsed. */
  readonly bytes: Uint8Array | undefined
  /** Parsed JSON; undefined when the body is none. */
  json(): unknown
}

/** What is known of a stored answer before anything of it is decrypted. */
export interface ReplayMeta {
  /** Parts of the operation's scope. */
  readonly scope: readonly string[]
  readonly state: 'succeeded' | 'rejected'
  /** Status of the stored answer. */
  readonly status: number
  /** What stands for the answer when its body is gone; from `reference`. */
  readonly reference: string | undefined
}

/**
 * What a caller may see of a stored answer: `true` all of it, `false` nothing (403), `'receipt'` that the operation
 * completed, and the reference.
 */
export type ReplayDecision = boolean | 'receipt'

export interface RouteOptions<Req> {
  /** Whose key it is. Required. */
  readonly scope: RequestScope<Req>
  /**
   * `atomic` (default): the handler works in the transaction of the claim. `run`: it works in steps under a lease, with
   * effects outside the database; a repeat resumes it behind its last finished step.
   */
  readonly mode?: 'atomic' | 'run' | undefined
  /** Lease, version and limits of a route of mode `run`. */
  readonly run?: Omit<LeaseOptions, 'retentionMs' | 'timeoutMs'> | undefined
  /**
   * Kind of operation, for instance `POST /orders/:id`. Default: method and route template, where the adapter can know
   * them; otherwise required. 1 to 255 bytes.
   */
  readonly operation?: string | undefined
  /**
   * `operation` (default): the same key on another route is another operation. `tenant`: one key space for all routes
   * of a tenant; the same key on another route is then a mismatch.
   */
  readonly uniqueWithin?: 'operation' | 'tenant' | undefined
  /** Guarded methods. Default `POST` and `PATCH`; `PUT` and `DELETE` may be added. Others pass untouched. */
  readonly methods?: readonly ('POST' | 'PATCH' | 'PUT' | 'DELETE')[] | undefined
  /** false: without a key the handler runs in a transaction that leaves no record. Default true. */
  readonly required?: boolean | undefined
  /** Only the quoted form of the header that the draft asks for. Default false. */
  readonly strictKeys?: boolean | undefined
  /**
   * What a repeat gets while the first request is worked on. `reject` (default): 409 and Retry-After. `wait`: it waits
   * up to `waitMs` and gets the first one's answer, else 409. `accept`: 202 and the Location of a status resource below
   * `statusPath`.
   */
  readonly whenInProgress?: 'reject' | 'wait' | 'accept' | undefined
  /** Longest wait, milliseconds. Default 10_000; 1 to 300_000. */
  readonly waitMs?: number | undefined
  /** Where the adapter's status handler is mounted, for instance `/operations`. Required with `accept`. */
  readonly statusPath?: string | undefined
  /** Status of a key that comes with another request. Default 422. */
  readonly mismatchStatus?: 422 | 409 | undefined
  /**
   * Whether a final refusal (400 to 499) is stored and replayed. Default: yes. Never asked for 401, 403, 407, 408, 425,
   * 429 and for 500 and above: those release the key.
   */
  readonly storeIf?: ((status: number) => boolean) | undefined
  /** Whether a stored refusal keeps the handler's writes. Default: no, from 400 on they are rolled back. */
  readonly commitOn?: ((status: number) => boolean) | undefined
  /**
   * Leaves volatile members of the body out: returns what stands for the body. Members that are not in it are not
   * protected against a reused key.
   */
  readonly fingerprint?: ((request: Req, body: FingerprintBody) => { readonly fields: unknown }) | undefined
  /** Request headers that change what the request means, for instance `api-version`. Default none. */
  readonly fingerprintHeaders?: readonly string[] | undefined
  /** Response headers that are kept besides the fixed ones. Never cookies, credentials or headers of a connection. */
  readonly keepHeaders?: readonly string[] | undefined
  /** Largest request body that is read, bytes; above: 413. Default 1_048_576; 0 to 67_108_864. */
  readonly bodyBytesMax?: number | undefined
  /** Largest response body that is kept, bytes. Default 262_144; 0 to 16_777_216. */
  readonly responseBytesMax?: number | undefined
  /**
   * An answer that is larger, an event stream, or has trailers. `refuse` (default): RESPONSE_NOT_STORABLE, rolled back.
   * `pass`: committed and sent, and a repeat gets RESULT_UNAVAILABLE or what `reconstruct` gives.
   */
  readonly unstorable?: 'refuse' | 'pass' | undefined
  /** false: no answer is kept, only its status and reference. Default true. */
  readonly keepResponse?: boolean | undefined
  /** How long an answer is kept, milliseconds. Default 24 hours; at most `retentionMs`. */
  readonly responseRetentionMs?: number | undefined
  /** How long the key stays taken, milliseconds. Default 30 days; 1_000 to ten years. */
  readonly retentionMs?: number | undefined
  /** What stands for an answer that is not kept (any longer), at most 2_048 characters. Default: its `Location`. */
  readonly reference?: ((response: WholeResponse) => string | undefined) | undefined
  /** Makes an answer for a repeat when the first one is not kept (any longer). */
  readonly reconstruct?: ((meta: ReplayMeta, request: Req) => Promise<WholeResponse | undefined>) | undefined
  /** Encrypts stored answers with AES-256-GCM. Default: stored as they are. */
  readonly encryption?: EncryptionKeys | undefined
  /** Asked before anything stored is read or decrypted. Rights may have been withdrawn since (T3). */
  readonly authorizeReplay?: ((request: Req, meta: ReplayMeta) => ReplayDecision | Promise<ReplayDecision>) | undefined
  /** `check`: a UUIDv7 or ULID older than `retentionMs` is refused with 412. Default `ignore`. */
  readonly timeOrderedKeys?: 'ignore' | 'check' | undefined
  /** The only choice: without a store the handler does not run, and the caller gets 503 with Retry-After. */
  readonly onStoreDown?: 'refuse' | undefined
  /** Start of the `type` of problems. Default `urn:effectively-once:problem:`. */
  readonly problemTypeBase?: string | undefined
  /** Where your problems are explained; `Link: rel="describedby"` of every problem. */
  readonly describedBy?: string | undefined
  /** Name of the header that marks a replay. Default `Idempotent-Replayed`. */
  readonly replayHeader?: string | undefined
  /** Longest run of a handler until its answer is complete, milliseconds; then 503, rolled back. Default 30_000; 60_000 in mode `run`. */
  readonly timeoutMs?: number | undefined
  /**
   * When the store is asked whether the handler may run. `before-handler` (default): before any of it starts.
   * `first-statement`: together with the first statement that the handler sends on `tx`, which saves a trip. The handler
   * of a repeat then starts as well and gets an error from that statement; nothing of it is in the database, and what it
   * answers is not sent. For handlers that do nothing outside of `tx` before their first statement, and leave its error to
   * the framework. A handler that has started cannot be started again: where a repeat waits for another process's
   * attempt and that one comes to nothing, it gets 503 with Retry-After.
   */
  readonly gate?: 'before-handler' | 'first-statement' | undefined
  /** Isolation level of the transaction. Default: what the database is set to. */
  readonly isolation?: Isolation | undefined
  /** Told of errors that the caller does not see. Default: a process warning. */
  readonly onError?: ((error: unknown, request: Req) => void) | undefined
}

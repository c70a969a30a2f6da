/**
 * Status: the resource that `whenInProgress: 'accept'` points to. It tells what became of an operation to callers of the
 * operation's own scope, and to nobody else that there is a record. While an operation runs there is no record to compare
 * scopes with: whoever can make the reference, which takes its scope and its key, learns that it runs.
 *
 * @module
 */

import type { Once } from '../once.ts'
import { type Engine, engineOf } from '../operation/engine.ts'
import { isOnceError } from '../shared/errors.ts'
import { type FoundRecord, isFinished, type UnfinishedRecord } from '../store/operation.ts'
import type { RouteOptions } from './options.ts'
import { type Policy, readPolicy } from './policy.ts'
import { jsonResponse, plainProblem, problemOf } from './problem.ts'
import { idOf } from './ref.ts'
import { storedAnswer } from './replay.ts'
import type { HeaderList, WholeResponse } from './response.ts'

/** Give the same values as to the routes whose operations are asked for. */
export type StatusOptions<Req> = Pick<
  RouteOptions<Req>,
  'scope' | 'encryption' | 'authorizeReplay' | 'reconstruct' | 'problemTypeBase' | 'describedBy' | 'onError'
>

/** The stored answer inside a status. */
interface StatusResult {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Parsed JSON; otherwise `body_base64` has the bytes. */
  readonly body?: unknown
  readonly body_base64?: string
}

const RETRY_AFTER: HeaderList = [['retry-after', '1']]

export class StatusResource<Tx, Req> {
  readonly policy: Policy<Req>
  readonly #engine: Engine<Tx>

  constructor(where: string, once: Once<Tx>, options: StatusOptions<Req>) {
    this.#engine = engineOf(where, once)
    this.policy = readPolicy(where, options)
  }

  /**
   * The answer for a path that ends in a reference: 200 with `in-progress` or `completed`, else 404 with `not-found`.
   * Rejects with an error of a hook.
   */
  async answer(request: Req, path: string): Promise<WholeResponse> {
    try {
      return await this.#answer(request, path)
    } catch (error) {
      if (!isOnceError(error)) throw error
      if (error.status === null || error.status === 500) this.policy.onError(error, request)
      return problemOf(error, this.policy.problems)
    }
  }

  async #answer(request: Req, path: string): Promise<WholeResponse> {
    const tenant = await this.policy.scopeOf(request)
    const ref = lastSegment(path)
    const id = idOf(ref)
    if (id === undefined || tenant === undefined || tenant === null || tenant.length === 0) return notFound(ref, id)
    const record = await this.#engine.store.operations.lookup(id)
    if (record === undefined) {
      const running = this.#engine.inFlight.get(id) !== undefined || (await this.#engine.store.operations.running(id))
      return running ? jsonResponse(200, { operation_ref: ref, state: 'in-progress' }, RETRY_AFTER) : notFound(ref, id)
    }
    if (!belongsTo(record, typeof tenant === 'string' ? [tenant] : tenant)) return notFound(ref, id)
    if (!isFinished(record)) return unfinishedAnswer(ref, record)
    const found = await storedAnswer(this.policy, request, record)
    switch (found.kind) {
      case 'forbidden':
        return plainProblem(this.policy.problems, 403, 'Forbidden', 'You may not see the answer to this request.')
      case 'unavailable':
        return jsonResponse(200, {
          operation_ref: ref,
          state: 'completed',
          ...(found.reference === undefined ? {} : { resource: found.reference }),
        })
      case 'answer':
        return jsonResponse(200, { operation_ref: ref, state: 'completed', result: resultOf(found.response) })
    }
  }
}

/** Before the query, without a slash at its end. Linear: callers choose the path. */
function lastSegment(path: string): string {
  const end = path.search(/[?#]/)
  const local = end === -1 ? path : path.slice(0, end)
  const named = local.endsWith('/') ? local.slice(0, -1) : local
  return named.slice(named.lastIndexOf('/') + 1)
}

function notFound(ref: string, id: string | undefined): WholeResponse {
  return jsonResponse(404, { ...(id === undefined ? {} : { operation_ref: ref }), state: 'not-found' })
}

/** A leased operation without an outcome: running, or in front of reconcile or a person. */
function unfinishedAnswer(ref: string, { state, leaseLeftMs }: UnfinishedRecord): WholeResponse {
  if (state !== 'processing') return jsonResponse(200, { operation_ref: ref, state: 'unknown' })
  const seconds = Math.max(1, Math.ceil((leaseLeftMs ?? 0) / 1000))
  return jsonResponse(200, { operation_ref: ref, state: 'in-progress' }, [['retry-after', String(seconds)]])
}

/** The operation's scope is the tenant's, alone or followed by the route. */
function belongsTo(record: FoundRecord, tenant: readonly string[]): boolean {
  const scope: unknown = JSON.parse(record.scope)
  if (!Array.isArray(scope) || scope.length < tenant.length || scope.length > tenant.length + 1) return false
  return tenant.every((part, at) => scope[at] === part)
}

function resultOf({ status, headers, body }: WholeResponse): StatusResult {
  const named = { status, headers: Object.fromEntries(headers) }
  const type = named.headers['content-type'] ?? ''
  if (body.byteLength === 0) return named
  if (/^application\/(?:[\w.+-]+\+)?json\b/i.test(type) && named.headers['content-encoding'] === undefined) {
    try {
      return { ...named, body: JSON.parse(Buffer.from(body).toString('utf8')) }
    } catch {
      // Then it is told as bytes.
    }
  }
  return { ...named, body_base64: Buffer.from(body).toString('base64') }
}

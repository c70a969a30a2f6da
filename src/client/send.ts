/**
 * Sending one operation: written down first, tried until there is an answer, taken out of the storage after it.
 *
 * The loop knows the instant before which it must not try (`nextAt`) and looks at it again after every wait, because
 * timers may end early. Nothing is decided here: answers by ./decide.ts, waits by ./backoff.ts.
 *
 * @module
 */

import { answerOf, statusOf, statusUrlOf } from './accepted.ts'
import { type Answer, type Attempted, attempt, responseOf } from './attempt.ts'
import { backoffMs } from './backoff.ts'
import { hostBudget, type RetryBudget, type RetryCause } from './budget.ts'
import { type Decision, decide, type Seen } from './decide.ts'
import type { Entry } from './entry.ts'
import { headersOfAttempt } from './headers.ts'
import { keyHeader } from './key.ts'
import { problemOf } from './problem.ts'
import type { OperationRecord } from './record.ts'
import type { GaveUpReason, LastSeen, OperationResult, UnknownReason } from './result.ts'
import { retryAfterMs } from './retry-after.ts'
import type { Settings } from './settings.ts'
import type { HeldTurn } from './turn.ts'

interface Accepted {
  readonly answer: Answer
  readonly statusUrl: string
  /** Whether the 202 said itself that the operation goes on there. */
  readonly ours: boolean
}

/** A status resource that says nothing about it is asked again after this time. */
const ASK_MS = 1_000

export class Sending {
  #record: OperationRecord
  readonly #entry: Entry
  readonly #turn: HeldTurn
  readonly #settings: Settings
  #deadlineAt: number
  readonly #signal: AbortSignal | undefined
  readonly #budget: RetryBudget
  #nextAt: number
  /** The latest instant that the clock has told. */
  #seenAt = 0
  #retries = 0
  #paid: RetryCause | undefined
  #last: LastSeen | undefined
  /** The 202 whose status resource is asked instead of sending again. */
  #accepted: Accepted | undefined

  constructor(
    record: OperationRecord,
    entry: Entry,
    turn: HeldTurn,
    settings: Settings,
    deadlineAt: number,
    signal: AbortSignal | undefined,
  ) {
    this.#record = record
    this.#entry = entry
    this.#turn = turn
    this.#settings = settings
    this.#deadlineAt = deadlineAt
    this.#signal = signal
    this.#budget = settings.budget ?? hostBudget(new URL(record.url).host)
    this.#nextAt = record.notBeforeAt ?? 0
  }

  async run(): Promise<OperationResult> {
    const { clock } = this.#settings
    for (;;) {
      const now = this.#now()
      const { firstSentAt, lifetimeMs } = this.#record
      // A clock that is off by more than that cannot tell how old it is.
      if (firstSentAt !== null && Math.abs(now - firstSentAt) >= lifetimeMs) return this.#unknown('lifetime')
      if (this.#signal?.aborted === true) return this.#gaveUp('aborted')
      if (now >= this.#deadlineAt || this.#nextAt >= this.#deadlineAt) return this.#gaveUp('deadline')
      if (now < this.#nextAt) {
        await this.#turn.extend(this.#nextAt)
        const wait = this.#nextAt - now
        await clock.sleep(wait, this.#signal)
        if (this.#now() < now) this.#setBack(wait)
        continue
      }
      const result = this.#accepted === undefined ? await this.#send() : await this.#ask(this.#accepted)
      if (result !== undefined) return result
    }
  }

  /**
   * The clock may be set back while a call runs. Its deadline and its next attempt move with it, so that the call does not
   * last longer by that.
   */
  #now(): number {
    const now = this.#settings.clock.now()
    const back = this.#seenAt - now
    this.#seenAt = now
    if (back > 0) this.#setBack(back)
    return now
  }

  #setBack(ms: number): void {
    this.#deadlineAt -= ms
    this.#nextAt -= ms
  }

  /** One attempt of the operation; undefined = another one is needed. */
  async #send(): Promise<OperationResult | undefined> {
    const { key, url, method, headers, body, quotedKey } = this.#record
    const extra = await this.#attemptHeaders(url)
    if (extra === undefined) return this.#again(null, 'failure')
    const all = headersOfAttempt(headers, keyHeader(key, quotedKey), extra)
    await this.#turn.extend(this.#now())
    const attempts = this.#record.attempts + 1
    const firstSentAt = this.#record.firstSentAt ?? this.#now()
    this.#record = { ...this.#record, attempts, firstSentAt, notBeforeAt: null, unknown: null }
    await this.#entry.save(this.#record)
    if (this.#now() >= this.#deadlineAt) return this.#gaveUp('deadline')

    const attempted = await this.#attempt(method, url, all, body)
    if (attempted.kind !== 'answer') return this.#failed(attempted)
    const { answer } = attempted
    const seen = this.#seen(answer)
    this.#last = { kind: 'answer', status: answer.status, problem: seen.problem }
    return this.#follow(decide(seen), answer, seen)
  }

  async #follow(decision: Decision, answer: Answer, seen: Seen): Promise<OperationResult | undefined> {
    switch (decision.kind) {
      case 'again': {
        const { floorMs } = decision
        if (answer.status === 409 || answer.status === 202) return this.#again(floorMs, 'progress')
        return this.#again(floorMs, floorMs === null ? 'failure' : 'paced')
      }
      case 'ask':
        this.#accepted = { answer, statusUrl: decision.statusUrl, ours: seen.accepted }
        return this.#again(decision.floorMs ?? 0, 'progress')
      case 'later':
        return this.#gaveUp(decision.reason)
      case 'unknown':
        this.#budget.refund(this.#paid)
        return this.#unknown(decision.reason)
      case 'completed':
        return this.#completed(answer)
      case 'refused': {
        const { safeNewKey } = decision
        const { status } = answer
        return this.#answered({ state: 'refused', status, problem: seen.problem, safeNewKey, ...this.#parts(answer) })
      }
    }
  }

  /** Asks the status resource once; undefined = go on. */
  async #ask(accepted: Accepted): Promise<OperationResult | undefined> {
    const { statusUrl, ours } = accepted
    const extra = await this.#attemptHeaders(statusUrl)
    if (extra === undefined) return this.#again(ASK_MS, 'failure')
    await this.#turn.extend(this.#now())
    const attempted = await this.#attempt('GET', statusUrl, new Headers(extra), null)
    if (attempted.kind !== 'answer') return this.#failed(attempted)
    const { answer } = attempted
    const seen = this.#seen(answer)
    this.#last = { kind: 'answer', status: answer.status, problem: seen.problem }
    const status = statusOf(answer.body)
    switch (status?.state) {
      case 'in-progress':
        return this.#again(seen.retryAfterMs ?? ASK_MS, 'progress')
      case 'unknown':
        return this.#unknown('outcome-unknown')
      case 'completed':
        if (status.result !== undefined) {
          const stored = answerOf(status.result, answer.headers)
          const told = this.#seen(stored)
          this.#last = { kind: 'answer', status: stored.status, problem: told.problem }
          return this.#follow(decide(told), stored, told)
        }
        break
      case 'not-found':
        break
      case undefined: {
        if (answer.status === 401 || answer.status === 407) return this.#gaveUp('login')
        const decision = answer.status >= 400 ? decide(seen) : undefined
        if (decision?.kind === 'again') return this.#again(decision.floorMs ?? ASK_MS, 'failure')
        // A resource of the service's own: then the 202 was its answer, and this place is for the caller to look at.
        if (!ours) return this.#completed(accepted.answer)
      }
    }
    // Completed without its result, or not known there: the operation itself, sent again, tells.
    this.#accepted = undefined
    return this.#again(0, 'paced')
  }

  #attempt(method: string, url: string, headers: Headers, body: Uint8Array<ArrayBuffer> | null): Promise<Attempted> {
    const { attemptTimeoutMs, fetch, redirect, responseBytesMax } = this.#settings
    const { credentials } = this.#record
    const timeoutMs = Math.min(attemptTimeoutMs, this.#deadlineAt - this.#now())
    const signal = this.#signal
    return attempt({ fetch, url, method, headers, body, credentials, redirect, timeoutMs, responseBytesMax, signal })
  }

  async #attemptHeaders(url: string): Promise<Readonly<Record<string, string>> | undefined> {
    try {
      return await this.#settings.attemptHeaders({ key: this.#record.key, url })
    } catch (error) {
      this.#last = { kind: 'network', error }
      return undefined
    }
  }

  #failed(attempted: Exclude<Attempted, { kind: 'answer' }>): Promise<OperationResult | undefined> {
    if (attempted.kind === 'aborted') return this.#gaveUp('aborted')
    this.#last = attempted
    return this.#again(null, attempted.kind === 'timeout' ? 'timeout' : 'failure')
  }

  #seen(answer: Answer): Seen {
    const { status, headers, opaque, body } = answer
    return {
      status,
      opaque,
      retryAfterMs: retryAfterMs(headers.get('retry-after'), this.#now()),
      statusUrl: statusUrlOf(this.#record.url, headers.get('location')),
      accepted: status === 202 && statusOf(body)?.state === 'in-progress',
      problem: problemOf(headers.get('content-type'), body),
    }
  }

  /**
   * Sets the time of the next attempt, or ends the call when there will be none. `progress`: the service works on it,
   * so looking again is no retry and costs nothing of the budget.
   */
  async #again(floorMs: number | null, cause: RetryCause | 'progress'): Promise<OperationResult | undefined> {
    const { backoff, random } = this.#settings
    const now = this.#now()
    const notBeforeAt = floorMs === null || floorMs === 0 ? null : now + floorMs
    if (cause === 'progress') {
      this.#budget.refund(this.#paid)
      this.#paid = undefined
      // It says when to look again, so earlier failures no longer stretch the wait.
      if (notBeforeAt !== null) this.#retries = 0
    }
    this.#nextAt = now + backoffMs(this.#retries, floorMs, random, backoff)
    this.#record = { ...this.#record, notBeforeAt }
    if (this.#nextAt >= this.#deadlineAt) return this.#gaveUp('deadline')
    if (cause !== 'progress') {
      if (!this.#budget.take(cause)) return this.#gaveUp('budget')
      this.#paid = cause
    }
    this.#retries += 1
    if (notBeforeAt !== null) await this.#entry.save(this.#record)
    return undefined
  }

  #completed(answer: Answer): Promise<OperationResult> {
    return this.#answered({ state: 'completed', ...this.#parts(answer) })
  }

  #parts(answer: Answer) {
    const { key, attempts } = this.#record
    const replayed = answer.headers.get('idempotent-replayed')?.toLowerCase() === 'true'
    return { key, attempts, replayed, response: responseOf(answer), bodyOmitted: answer.bodyOmitted }
  }

  async #answered(result: Extract<OperationResult, { state: 'completed' | 'refused' }>): Promise<OperationResult> {
    this.#budget.refund(this.#paid)
    // The receiver may read the body; the caller gets one that is not read yet.
    await this.#settings.onAnswer({ ...result, response: result.response.clone() })
    await this.#entry.remove()
    return this.#ended(result)
  }

  async #unknown(reason: UnknownReason): Promise<OperationResult> {
    this.#record = { ...this.#record, unknown: reason }
    await this.#entry.save(this.#record)
    const { key, attempts } = this.#record
    const problem = this.#last?.kind === 'answer' ? this.#last.problem : undefined
    return this.#ended({ state: 'unknown', reason, problem, key, attempts })
  }

  async #gaveUp(reason: GaveUpReason): Promise<OperationResult> {
    await this.#entry.save(this.#record)
    const { key, attempts, notBeforeAt } = this.#record
    return this.#ended({ state: 'gaveUp', reason, last: this.#last, notBeforeAt, key, attempts })
  }

  #ended<T extends OperationResult>(result: T): T {
    return this.#entry.error === undefined ? result : { ...result, storageError: this.#entry.error }
  }
}

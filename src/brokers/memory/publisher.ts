/**
 * Publisher of the in-process broker: routes at once, answers later, settles everything when the link goes down.
 *
 * @module
 */

import type {
  ConnectionState,
  OutgoingMessage,
  Publisher,
  PublisherOptions,
  PublishResult,
} from '../../broker/contract.ts'
import { Gate } from '../../broker/gate.ts'
import type { MemoryLink } from './link.ts'

interface Pending {
  readonly settled: (result: PublishResult) => void
  readonly deadlineMs: number
}

export class MemoryPublisher implements Publisher {
  readonly #link: MemoryLink
  readonly #route: (message: OutgoingMessage) => PublishResult
  readonly #options: PublisherOptions
  readonly #unwatch: () => void
  /** In publish order, so the first has the earliest deadline. */
  readonly #pending = new Set<Pending>()
  readonly #gate = new Gate()
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(link: MemoryLink, route: (message: OutgoingMessage) => PublishResult, options: PublisherOptions) {
    this.#link = link
    this.#route = route
    this.#options = options
    this.#unwatch = link.watch((state) => this.#onState(state))
  }

  get state(): ConnectionState {
    return this.#closed ? { kind: 'closed', reason: 'closed by its user' } : this.#link.state
  }

  publish(message: OutgoingMessage, settled: (result: PublishResult) => void): void {
    const { state } = this
    if (state.kind !== 'open') {
      queueMicrotask(() => settled({ kind: 'disconnected', reason: state.reason }))
      return
    }
    const pending = { settled, deadlineMs: performance.now() + this.#options.publishTimeoutMs }
    this.#pending.add(pending)
    const result = this.#route(message)
    this.#link.answer(() => this.#settle(pending, result))
    this.#watchDeadline()
  }

  ready(signal: AbortSignal): Promise<void> {
    return this.#gate.until(() => {
      if (this.#closed) throw new Error('the publisher is closed')
      return this.#link.state.kind === 'open'
    }, signal)
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.#gate.until(() => this.#pending.size === 0)
    this.#unwatch()
    this.#gate.wake()
  }

  #onState(state: ConnectionState): void {
    if (state.kind === 'closed') this.#settleAll(state.reason)
    this.#options.onState?.(state)
    this.#gate.wake()
  }

  #settle(pending: Pending, result: PublishResult): void {
    if (!this.#pending.delete(pending)) return
    if (this.#pending.size === 0) {
      clearTimeout(this.#timer)
      this.#timer = undefined
    }
    pending.settled(result)
    if (this.#closed) this.#gate.wake()
  }

  #settleAll(reason: string): void {
    for (const pending of this.#pending) this.#settle(pending, { kind: 'disconnected', reason })
  }

  /** One timer for the earliest deadline. */
  #watchDeadline(): void {
    const [first] = this.#pending
    if (first === undefined || this.#timer !== undefined) return
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined
        const now = performance.now()
        for (const pending of this.#pending) {
          if (pending.deadlineMs > now) break
          this.#settle(pending, {
            kind: 'disconnected',
            reason: `no answer within ${this.#options.publishTimeoutMs} ms`,
          })
        }
        this.#watchDeadline()
      },
      Math.max(1, Math.ceil(first.deadlineMs - performance.now())),
    )
  }
}

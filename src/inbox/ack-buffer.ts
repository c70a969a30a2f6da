/**
 * Ack buffer: acknowledgements leave together. A write to the socket costs more than an acknowledgement in it, and a
 * broker settles many at once for the price of one. Holding one back costs nothing but a recognised duplicate when
 * the process dies in the meantime.
 *
 * @module
 */

import type { Delivery } from '../broker/contract.ts'

/** Longest time that one is held back, milliseconds. */
const HOLD_MS = 5

export class AckBuffer {
  readonly #max: number
  readonly #send: (deliveries: readonly Delivery[]) => void
  #deliveries: Delivery[] = []
  #timer: NodeJS.Timeout | undefined

  /** @param max - Sent at once when so many are held. */
  constructor(max: number, send: (deliveries: readonly Delivery[]) => void) {
    this.#max = max
    this.#send = send
  }

  /** What is given together leaves together. */
  add(deliveries: readonly Delivery[]): void {
    for (const delivery of deliveries) this.#deliveries.push(delivery)
    if (this.#deliveries.length >= this.#max) this.flush()
    else if (deliveries.length > 0) this.#timer ??= setTimeout(() => this.flush(), HOLD_MS)
  }

  flush(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#deliveries.length === 0) return
    const deliveries = this.#deliveries
    this.#deliveries = []
    this.#send(deliveries)
  }
}

/**
 * Ending: what a work came to, as it will be stored.
 *
 * Works of users return a value or `rejected(...)`. Flows of ours (HTTP) return an ending, which can also hold bytes
 * that are kept beside the outcome for a time of their own.
 *
 * @module
 */

import { Rejected } from './rejected.ts'

/** Bytes beside the outcome, and for how long they are given out, milliseconds. */
export interface KeptResponse {
  readonly bytes: Uint8Array
  readonly retentionMs: number
}

export class Ending {
  readonly state: 'succeeded' | 'rejected'
  readonly value: unknown
  readonly response: KeptResponse | undefined

  constructor(state: 'succeeded' | 'rejected', value: unknown, response?: KeptResponse) {
    this.state = state
    this.value = value
    this.response = response
  }
}

/** The ending that a work's return value stands for. */
export function endingOf(value: unknown): Ending {
  if (value instanceof Ending) return value
  return value instanceof Rejected ? new Ending('rejected', value.rejection) : new Ending('succeeded', value)
}

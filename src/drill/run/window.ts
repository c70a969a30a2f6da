/**
 * Window: one place and one way in which a handler is hurt, with its name and its token.
 *
 * @module
 */

import type { Side } from '../process/link.ts'
import { type BoundaryName, boundaryText } from './boundary.ts'

/** What is done at a boundary. */
export type BoundaryFault =
  /** SIGKILL. */
  | 'kill'
  /** The connection is reset and the server never hears of the step. */
  | 'reset'
  /** The server does it, and the connection is reset instead of its answer. */
  | 'lost'
  /** The server does it, and its answer comes later than anybody waits. */
  | 'timeout'
  /** The server refuses it: SQLSTATE 40001. */
  | 'serialization'
  /** The server refuses it: SQLSTATE 40P01. */
  | 'deadlock'
  /** The same is delivered to another process while this one stands here. */
  | 'during'
  /** SIGSTOP for longer than the lease; the same is delivered to another process; SIGCONT. */
  | 'pause'
  /** PostgreSQL is restarted. */
  | 'restart'

/** What is done with deliveries. */
export type DeliveryFault =
  | 'none'
  /** The same three times at once. */
  | 'at-once'
  /** The same again when it is settled, to the same process and to a new one. */
  | 'again'
  /** The same again when `expire` has run. */
  | 'retention'
  /** Another payload under the same key. */
  | 'other-payload'
  /** The deliveries in the opposite order. */
  | 'reorder'
  /** One of several deliveries without the others. */
  | 'alone'
  /** One delivery behind another, which may leave nothing of either out. */
  | 'behind'

export type Fault = BoundaryFault | DeliveryFault

/** A boundary and the side of it at which the fault strikes. */
export interface At extends BoundaryName {
  readonly position: number
  readonly side: Side
}

export interface Strike {
  readonly fault: BoundaryFault
  readonly at: At
}

export interface Window {
  readonly fault: Fault
  readonly at?: At | undefined
  /** For `alone` and `behind`: which of the drill's deliveries, in their order, from 0. */
  readonly deliveries?: readonly number[] | undefined
  /** A second fault, for whoever recovers from the first. */
  readonly second?: (Strike & { /** Process that it strikes, from 1. */ readonly actor: number }) | undefined
}

const WORDS: Readonly<Record<Fault, string>> = {
  kill: 'kill',
  reset: 'connection reset',
  lost: 'answer lost',
  timeout: 'time-out',
  serialization: 'serialization failure',
  deadlock: 'deadlock',
  during: 'delivered twice',
  pause: 'paused beyond the lease',
  restart: 'PostgreSQL restart',
  none: 'no fault',
  'at-once': 'delivered three times at once',
  again: 'delivered again',
  retention: 'delivered again after retention',
  'other-payload': 'other payload under the same key',
  reorder: 'delivered in another order',
  alone: 'alone',
  behind: 'behind',
}

/** The fault in words: `answer lost`. */
export const faultText = (fault: Fault): string => WORDS[fault]

/** `kill before sql:3:insert into orders`. */
export function windowName({ fault, at, second, deliveries = [] }: Window): string {
  if (deliveries.length > 0) {
    const [first = '', behind] = deliveries.map((delivery) => `delivery ${delivery + 1}`)
    return behind === undefined ? `${first} alone` : `${behind} behind ${first}`
  }
  const first = strikeName(WORDS[fault], at)
  return second === undefined
    ? first
    : `${first}, then ${strikeName(WORDS[second.fault], second.at)} in process ${second.actor}`
}

const strikeName = (words: string, at: At | undefined): string =>
  at === undefined ? words : `${words} ${at.side} ${boundaryText(at)}`

const TOKEN = /^d1\.([\w-]+)$/

/** Names a window and its file for `drill replay`. @param path - As the user would write it. */
export function tokenOf(path: string, window: Window): string {
  return `d1.${Buffer.from(JSON.stringify([path, window])).toString('base64url')}`
}

/** @throws {TypeError} for what is no token. */
export function readToken(token: string): { readonly path: string; readonly window: Window } {
  try {
    const [, text = ''] = TOKEN.exec(token) ?? []
    const [path, window] = JSON.parse(Buffer.from(text, 'base64url').toString()) as [string, Window]
    if (typeof path === 'string' && window.fault in WORDS) return { path, window }
  } catch {
    // Told below.
  }
  throw new TypeError('this is no token of a drill; it stands in the story of a failed window, behind `drill replay`')
}

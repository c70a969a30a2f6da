/**
 * Boundary: a step of the handler as a place where things can go wrong, with a name that is the same in every run.
 *
 * @module
 */

import type { Answer, Step } from '../wire/codec.ts'

/** The n-th step of this kind and label that one process takes. */
export interface BoundaryName {
  readonly kind: Step['kind']
  readonly label: string
  /** From 1. */
  readonly nth: number
}

/** A boundary as a run has met it. */
export interface Boundary extends BoundaryName {
  /** Its place among those of its kind in the trace, from 1. */
  readonly position: number
  /** Undefined as long as it was not answered. */
  answer?: Answer | undefined
  /** How many deliveries had been told their end when it was asked for. */
  readonly toldBefore: number
  /** How many when it was answered. */
  toldAfter?: number | undefined
}

/** `sql:3:insert into orders`. */
export function boundaryText({ kind, position, label }: Pick<Boundary, 'kind' | 'position' | 'label'>): string {
  return kind === 'http' ? `${kind}:${label}` : `${kind}:${position}:${label}`
}

export const sameBoundary = (a: BoundaryName, b: BoundaryName): boolean =>
  a.kind === b.kind && a.label === b.label && a.nth === b.nth

/**
 * Instants as callers give them.
 *
 * @module
 */

import { describe } from '../shared/options.ts'

/** A Date, or ISO 8601 with a zone and at most microseconds: `2026-11-30T14:02:00.123456Z`. */
export type Instant = Date | string

const ISO = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}:\d{2})$/

/** Text that the server reads as this instant, whatever its settings of zone and style are. */
export function instantText(where: string, instant: Instant): string {
  if (instant instanceof Date && !Number.isNaN(instant.getTime())) return instant.toISOString()
  if (typeof instant === 'string' && ISO.test(instant) && !Number.isNaN(Date.parse(instant))) return instant
  throw new TypeError(`${where} takes a Date, or an ISO 8601 instant with its zone, got ${describe(instant)}`)
}

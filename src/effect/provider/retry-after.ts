/**
 * `Retry-After` of an answer, without a clock: a date is compared with the answer's own `Date`, which comes from the
 * same clock. (RFC 9110, sections 6.6.1 and 10.2.3)
 *
 * @module
 */

const HTTP_DATE = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/
/** A day. Longer waits are not followed: the provider's clock or units are off. */
const WAIT_MAX_MS = 86_400_000

/** Milliseconds to wait; undefined when the answer does not say. */
export function retryAfterOf(header: (name: string) => string | undefined): number | undefined {
  const text = header('retry-after')?.trim() ?? ''
  if (/^\d{1,9}$/.test(text)) return Math.min(Number(text) * 1_000, WAIT_MAX_MS)
  const until = instant(text)
  const from = instant(header('date')?.trim() ?? '')
  if (until === undefined || from === undefined) return undefined
  return Math.min(Math.max(0, until - from), WAIT_MAX_MS)
}

function instant(text: string): number | undefined {
  if (!HTTP_DATE.test(text)) return undefined
  const at = Date.parse(text)
  return Number.isNaN(at) ? undefined : at
}

/**
 * An act of a person or of a program for one: nothing is repaired without saying who does it and why. (I16)
 *
 * @module
 */

import type { Act } from '../store/job.ts'

const TEXT_MAX = 1_000

/** @throws {TypeError} An act without an author or a reason, or with text that a database cannot keep. */
export function checkAct(act: Act): void {
  for (const name of ['actor', 'reason'] as const) {
    const text: unknown = act?.[name]
    if (typeof text !== 'string' || text === '' || text.length > TEXT_MAX) {
      throw new TypeError(`an act takes ${name}: 1 to ${TEXT_MAX} characters that say who and why`)
    }
    // U+0000 and lone surrogates: PostgreSQL refuses the one, and UTF-8 cannot say the other.
    if (/\0|\p{Cs}/u.test(text)) throw new TypeError(`an act takes ${name} as text that UTF-8 can say, without U+0000`)
  }
}

/**
 * JSON strings in canonical spelling (RFC 8785, section 3.2.2.2): only what must be escaped is escaped.
 *
 * Code that is ready to hash must never meet a lone surrogate: UTF-8 has no spelling for it, encoders
 * replace it by U+FFFD, and then two different texts are equal.
 *
 * @module
 */

/** Longer strings are looked at by regular expressions, which are faster than a loop from about here. */
const SHORT_CHARS_MAX = 12

/** Anything but the units that stand for themselves: U+0020 and up, without quote, backslash and surrogates. */
const ESCAPED_OR_SURROGATE = /[^ !#-[\]-\ud7ff\ue000-\uffff]/

/** Whether every surrogate of `text` is half of a pair, so that UTF-8 can spell it. */
export function isWellFormed(text: string): boolean {
  return text.isWellFormed()
}

/** `text` between quotes, canonically escaped; undefined when it holds a lone surrogate. */
export function quoted(text: string): string | undefined {
  const { length } = text
  if (length <= SHORT_CHARS_MAX) {
    for (let at = 0; at < length; at++) {
      const unit = text.charCodeAt(at)
      if (unit < 0x20 || unit === 0x22 || unit === 0x5c || (unit >= 0xd800 && unit <= 0xdfff)) return escaped(text)
    }
    return `"${text}"`
  }
  return ESCAPED_OR_SURROGATE.test(text) ? escaped(text) : `"${text}"`
}

// For well-formed text JSON.stringify escapes exactly what RFC 8785 asks for: quote, backslash, \b \t \n \f \r,
// and the other units below U+0020 as \u00xx in lower case.
function escaped(text: string): string | undefined {
  return isWellFormed(text) ? JSON.stringify(text) : undefined
}

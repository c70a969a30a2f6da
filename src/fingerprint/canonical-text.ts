/**
 * Canonical JSON of JSON text as it came over the wire (RFC 8785), or the reason why it would lose something.
 *
 * An own scanner instead of JSON.parse, because parsing already loses: it keeps the last of two equal
 * members, rounds 64-bit integers, and the decoder before it turns every bad byte into U+FFFD. Two bodies that
 * differ only in what was lost would then be equal, and the second would get the outcome of the first.
 *
 * Work is linear in the size (n log n in the members of one object) for any input: depth is bounded, members
 * are compared by sorting instead of a hash table whose collisions a sender may choose, and no expression here
 * backtracks.
 *
 * @module
 */

import { CANONICAL_DEPTH_MAX } from './canonical-value.ts'
import { canonicalNumber } from './decimal.ts'
import { quoted } from './json-string.ts'

/** Why a text has no canonical form that says the same. */
export type LossReason =
  | 'invalid-utf8'
  | 'bom'
  | 'syntax'
  | 'depth'
  | 'duplicate-key'
  | 'lone-surrogate'
  | 'number-range'
  | 'number-precision'

/** `json` is well-formed text; its UTF-8 bytes are the canonical bytes. */
export type CanonicalText =
  | { readonly lossless: true; readonly json: string }
  | { readonly lossless: false; readonly reason: LossReason }

/**
 * Canonicalises JSON text, or says why that would lose something: invalid UTF-8, a byte order mark, a repeated
 * member, a lone surrogate, nesting deeper than 128, a number that a double cannot keep digit by digit, no JSON.
 * Never throws for any bytes. When lossless, `json` is `canonicalJson(JSON.parse(text))`.
 *
 * @see RFC 8785 (canonical form), RFC 7493 (what survives every parser)
 */
export function canonicalText(bytes: Uint8Array): CanonicalText {
  if (bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf) return { lossless: false, reason: 'bom' }
  let text: string
  try {
    text = UTF8.decode(bytes)
  } catch {
    return { lossless: false, reason: 'invalid-utf8' }
  }
  const scanner = new Scanner(text)
  const json = scanner.document()
  return json === undefined ? { lossless: false, reason: scanner.reason } : { lossless: true, json }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

const TAB = 0x09
const LINE_FEED = 0x0a
const CARRIAGE_RETURN = 0x0d
const SPACE = 0x20
const QUOTE = 0x22
const PLUS = 0x2b
const COMMA = 0x2c
const MINUS = 0x2d
const POINT = 0x2e
const ZERO = 0x30
const NINE = 0x39
const COLON = 0x3a
const BACKSLASH = 0x5c
const ARRAY_OPEN = 0x5b
const ARRAY_CLOSE = 0x5d
const LETTER_E = 0x65
const LETTER_F = 0x66
const LETTER_N = 0x6e
const LETTER_T = 0x74
const OBJECT_OPEN = 0x7b
const OBJECT_CLOSE = 0x7d
/** The bit that makes an ASCII letter lower case. */
const LOWER_CASE = 0x20

/** The units that end a plain run inside a string: quote, backslash, and what is below U+0020. */
const RUN_END = /["\\]|[^ -\uffff]/g
/** Runs are looked at by a loop up to here, then by the expression, which is faster on long ones. */
const RUN_LOOP_MAX = 16

const HEX4 = /[0-9a-fA-F]{4}/y
const SHORT_ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  '\\': '\\',
  '/': '/',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
}

interface Member {
  readonly name: string
  /** `"name":value`, canonical. */
  readonly json: string
}

/** Every method returns undefined when the text has no canonical form; `reason` then says why. */
class Scanner {
  reason: LossReason = 'syntax'
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  document(): string | undefined {
    const json = this.#value(0)
    if (json === undefined) return undefined
    this.#skipBlank()
    return this.#at === this.#text.length ? json : this.#fail('syntax')
  }

  /** `depth` = arrays and objects around this value. */
  #value(depth: number): string | undefined {
    this.#skipBlank()
    switch (this.#text.charCodeAt(this.#at)) {
      case OBJECT_OPEN:
        return depth < CANONICAL_DEPTH_MAX ? this.#object(depth + 1) : this.#fail('depth')
      case ARRAY_OPEN:
        return depth < CANONICAL_DEPTH_MAX ? this.#array(depth + 1) : this.#fail('depth')
      case QUOTE:
        return this.#string()?.json
      case LETTER_T:
        return this.#word('true')
      case LETTER_F:
        return this.#word('false')
      case LETTER_N:
        return this.#word('null')
      default:
        return this.#number()
    }
  }

  #array(depth: number): string | undefined {
    this.#at++
    if (this.#takes(ARRAY_CLOSE)) return '[]'
    let json = '['
    for (;;) {
      const element = this.#value(depth)
      if (element === undefined) return undefined
      json += element
      if (this.#takes(ARRAY_CLOSE)) return `${json}]`
      if (!this.#takes(COMMA)) return this.#fail('syntax')
      json += ','
    }
  }

  #object(depth: number): string | undefined {
    this.#at++
    if (this.#takes(OBJECT_CLOSE)) return '{}'
    const members: Member[] = []
    for (;;) {
      const member = this.#member(depth)
      if (member === undefined) return undefined
      members.push(member)
      if (this.#takes(OBJECT_CLOSE)) return this.#sorted(members)
      if (!this.#takes(COMMA)) return this.#fail('syntax')
    }
  }

  #member(depth: number): Member | undefined {
    this.#skipBlank()
    if (this.#text.charCodeAt(this.#at) !== QUOTE) return this.#fail('syntax')
    const name = this.#string()
    if (name === undefined) return undefined
    if (!this.#takes(COLON)) return this.#fail('syntax')
    const json = this.#value(depth)
    return json === undefined ? undefined : { name: name.text, json: `${name.json}:${json}` }
  }

  #sorted(members: Member[]): string | undefined {
    members.sort(byName)
    let json = '{'
    for (const [index, member] of members.entries()) {
      if (index > 0) {
        if (members[index - 1]?.name === member.name) return this.#fail('duplicate-key')
        json += ','
      }
      json += member.json
    }
    return `${json}}`
  }

  /** The string that starts here: what it says, and its canonical spelling. */
  #string(): { readonly text: string; readonly json: string } | undefined {
    const start = this.#at + 1
    let end = this.#runEnd(start)
    if (this.#text.charCodeAt(end) === QUOTE) {
      // No escapes: the spelling is canonical already, and valid UTF-8 holds no lone surrogates.
      this.#at = end + 1
      return { text: this.#text.slice(start, end), json: this.#text.slice(start - 1, end + 1) }
    }
    let text = this.#text.slice(start, end)
    while (this.#text.charCodeAt(end) === BACKSLASH) {
      const unit = this.#escape(end + 1)
      if (unit === undefined) return undefined
      const next = this.#runEnd(this.#at)
      text += unit + this.#text.slice(this.#at, next)
      end = next
    }
    if (this.#text.charCodeAt(end) !== QUOTE) return this.#fail('syntax')
    this.#at = end + 1
    const json = quoted(text)
    return json === undefined ? this.#fail('lone-surrogate') : { text, json }
  }

  /** Index of the first unit at or after `from` that is not plain string content; the text's length if there is none. */
  #runEnd(from: number): number {
    const loopEnd = Math.min(from + RUN_LOOP_MAX, this.#text.length)
    for (let at = from; at < loopEnd; at++) {
      const unit = this.#text.charCodeAt(at)
      if (unit === QUOTE || unit === BACKSLASH || unit < 0x20) return at
    }
    RUN_END.lastIndex = loopEnd
    return RUN_END.test(this.#text) ? RUN_END.lastIndex - 1 : this.#text.length
  }

  /** The unit that an escape stands for; `at` is behind its backslash. Leaves the position behind the escape. */
  #escape(at: number): string | undefined {
    const letter = this.#text.charAt(at)
    if (letter === 'u') {
      HEX4.lastIndex = at + 1
      if (!HEX4.test(this.#text)) return this.#fail('syntax')
      this.#at = at + 5
      return String.fromCharCode(Number.parseInt(this.#text.slice(at + 1, at + 5), 16))
    }
    this.#at = at + 1
    return (Object.hasOwn(SHORT_ESCAPES, letter) ? SHORT_ESCAPES[letter] : undefined) ?? this.#fail('syntax')
  }

  #number(): string | undefined {
    const start = this.#at
    if (!this.#skipNumber()) return this.#fail('syntax')
    const json = canonicalNumber(this.#text.slice(start, this.#at))
    return json === 'number-range' || json === 'number-precision' ? this.#fail(json) : json
  }

  // Loops, because an expression keeps a place to return to for each digit, and that store overflows.
  #skipNumber(): boolean {
    if (this.#text.charCodeAt(this.#at) === MINUS) this.#at++
    if (this.#text.charCodeAt(this.#at) === ZERO) this.#at++
    else if (!this.#skipDigits()) return false
    if (this.#text.charCodeAt(this.#at) === POINT) {
      this.#at++
      if (!this.#skipDigits()) return false
    }
    if ((this.#text.charCodeAt(this.#at) | LOWER_CASE) !== LETTER_E) return true
    this.#at++
    const sign = this.#text.charCodeAt(this.#at)
    if (sign === PLUS || sign === MINUS) this.#at++
    return this.#skipDigits()
  }

  /** Whether there was at least one. */
  #skipDigits(): boolean {
    const start = this.#at
    for (;;) {
      const unit = this.#text.charCodeAt(this.#at)
      if (!(unit >= ZERO && unit <= NINE)) return this.#at > start
      this.#at++
    }
  }

  #word(word: string): string | undefined {
    if (!this.#text.startsWith(word, this.#at)) return this.#fail('syntax')
    this.#at += word.length
    return word
  }

  /** Skips white space; steps over `mark` and answers true if it comes next. */
  #takes(mark: number): boolean {
    this.#skipBlank()
    if (this.#text.charCodeAt(this.#at) !== mark) return false
    this.#at++
    return true
  }

  #skipBlank(): void {
    for (;;) {
      const unit = this.#text.charCodeAt(this.#at)
      if (unit !== SPACE && unit !== LINE_FEED && unit !== CARRIAGE_RETURN && unit !== TAB) return
      this.#at++
    }
  }

  #fail(reason: LossReason): undefined {
    this.reason = reason
    return undefined
  }
}

function byName(a: Member, b: Member): number {
  return a.name < b.name ? -1 : a.name > b.name ? 1 : 0
}

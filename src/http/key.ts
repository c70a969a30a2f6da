/**
 * Key: the `Idempotency-Key` header, from its field lines to the key.
 *
 * The draft asks for a Structured Field String (`"k"`); most clients send the key bare (`k`), and a bare UUID is no
 * structured field at all. Both name the same key here. What can be read in two ways is refused: a server that
 * guesses would take two intents for one.
 *
 * @see draft-ietf-httpapi-idempotency-key-header-07; RFC 9651, section 4.2
 * @module
 */

/** Longest key, characters after unescaping. */
export const KEY_LENGTH_MAX = 255

/** Longest field line that is looked at: a key of escaped characters in quotes, and room for parameters. */
const LINE_LENGTH_MAX = 2_048

/** Why a header is refused. `missing`: there is none. */
export type KeyError = 'missing' | 'multiple' | 'malformed' | 'too_long'

export type ParsedKey =
  | { readonly key: string; readonly error?: undefined }
  | { readonly key?: undefined; readonly error: KeyError }

/**
 * Reads the key. Linear in the length of the header; never throws.
 *
 * @param lines - The field lines as received, not joined: two lines are an error even when they are equal.
 * @param strict - Only the quoted form.
 */
export function parseKey(lines: readonly string[], strict: boolean): ParsedKey {
  const [line] = lines
  if (line === undefined) return { error: 'missing' }
  if (lines.length > 1) return { error: 'multiple' }
  if (line.length > LINE_LENGTH_MAX) return { error: 'too_long' }
  const value = withoutOuterSpace(line)
  const key = value.startsWith('"') ? quotedKey(value) : strict ? undefined : bareKey(value)
  if (key === undefined || key === '') return { error: 'malformed' }
  return key.length > KEY_LENGTH_MAX ? { error: 'too_long' } : { key }
}

/** Spaces and tabs around the value are not part of it. */
function withoutOuterSpace(line: string): string {
  let start = 0
  let end = line.length
  while (start < end && isSpace(line.charCodeAt(start))) start += 1
  while (end > start && isSpace(line.charCodeAt(end - 1))) end -= 1
  return line.slice(start, end)
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x09
}

/** Visible ASCII without the characters that make lists, parameters and strings. */
const BARE = /^[!#-+\--:<-~]+$/

function bareKey(value: string): string | undefined {
  return BARE.test(value) ? value : undefined
}

/** One String, with parameters that are checked and ignored. */
function quotedKey(value: string): string | undefined {
  const reader = new FieldReader(value)
  const key = reader.string()
  return key !== undefined && reader.parameters() && reader.atEnd ? key : undefined
}

const PARAMETER_KEY = /[a-z*][a-z0-9_.*-]*/y
const TOKEN = /[A-Za-z*][A-Za-z0-9:/!#$%&'*+\-.^_`|~]*/y
const NUMBER = /-?(?:\d{1,12}\.\d{1,3}(?!\d)|\d{1,15}(?![\d.]))/y
const BYTES = /:[A-Za-z0-9+/]*={0,2}:/y
const BOOLEAN = /\?[01]/y
const DATE = /@-?\d{1,15}(?![\d.])/y
const DISPLAY_STRING = /%"(?:[\x20\x21\x23\x24\x26-\x7e]|%[0-9a-f]{2})*"/y

/** Reads what RFC 9651 calls an Item, from left to right, each character once. */
class FieldReader {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  get atEnd(): boolean {
    return this.#at === this.#text.length
  }

  /** A String; undefined when there is none here. */
  string(): string | undefined {
    if (!this.#take('"')) return undefined
    let unescaped = ''
    while (!this.atEnd) {
      const character = this.#next()
      if (character === '"') return unescaped
      if (character === '\\') {
        const escaped = this.atEnd ? '' : this.#next()
        if (escaped !== '"' && escaped !== '\\') return undefined
        unescaped += escaped
      } else if (character >= ' ' && character <= '~') {
        unescaped += character
      } else {
        return undefined
      }
    }
    return undefined
  }

  /** Skips parameters; false when one of them is broken. */
  parameters(): boolean {
    while (this.#take(';')) {
      while (this.#take(' '));
      if (!this.#match(PARAMETER_KEY)) return false
      if (this.#take('=') && !this.#bareItem()) return false
    }
    return true
  }

  #bareItem(): boolean {
    if (this.#text[this.#at] === '"') return this.string() !== undefined
    return [NUMBER, TOKEN, BYTES, BOOLEAN, DATE, DISPLAY_STRING].some((kind) => this.#match(kind))
  }

  #take(character: string): boolean {
    if (this.#text[this.#at] !== character) return false
    this.#at += 1
    return true
  }

  #next(): string {
    this.#at += 1
    return this.#text[this.#at - 1] ?? ''
  }

  #match(pattern: RegExp): boolean {
    pattern.lastIndex = this.#at
    if (!pattern.test(this.#text)) return false
    this.#at = pattern.lastIndex
    return true
  }
}

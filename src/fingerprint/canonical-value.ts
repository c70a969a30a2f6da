/**
 * Canonical JSON of a value in this process (RFC 8785: members sorted by UTF-16 code units, ECMAScript
 * number text, minimal escapes, no Unicode normalisation).
 *
 * Equal text must mean equal payload, so everything that JSON would drop, shorten or confuse is refused
 * instead: a Map and a Set are both `{}` to JSON.stringify, NaN is null, a hole in an array is null too.
 * What is left out silently is only what JSON itself leaves out: members that are undefined.
 *
 * @module
 */

import { quoted } from './json-string.ts'

/** Deepest nesting of arrays and objects, the outermost counted as 1. Deeper values are refused, and so are cycles. */
export const CANONICAL_DEPTH_MAX = 128

/** Longest canonical text, in UTF-16 code units. It also bounds values that refer to one part many times. */
export const CANONICAL_CHARS_MAX = 67_108_864

/** How many members an insertion sort takes; more go to the built-in sort. */
const INSERTION_SORT_MAX = 12

const PATH_PARTS_SHOWN_MAX = 16
const KEY_CHARS_SHOWN_MAX = 64

/**
 * Canonical JSON text of `value`. Members that are undefined are dropped, and `toJSON` (Date, URL, decimals) is
 * honoured, as in JSON.stringify.
 *
 * @throws {TypeError} naming the path, never the value: functions, symbols, BigInt, NaN and infinities, lone
 *   surrogates, undefined at the top or in an array, holes, Map, Set, RegExp, Error, boxed values, bytes, class
 *   instances without `toJSON`, invalid dates, members under symbols, nesting deeper than 128 (or a cycle).
 * @see RFC 8785; docs/fingerprint.md
 * @example
 * canonicalJson({ b: 2, a: 1.0 }) // {"a":1,"b":2}
 */
export function canonicalJson(value: unknown): string {
  return wholeText(value, { where: 'payload', path: [], parsed: false })
}

/**
 * The same for a value that some parser made from wire JSON. The text is that of the wire form when the wire form
 * lost nothing in parsing; where a loss shows (whole numbers beyond 2^53 - 1, U+FFFD in text) the value is refused.
 * Losses that leave no trace (repeated members, surplus digits of a fraction) cannot be seen any more.
 *
 * @throws {TypeError} as `canonicalJson`, and for the visible losses, saying how to keep the raw body.
 */
export function canonicalParsedJson(value: unknown): string {
  return wholeText(value, { where: 'parsed body', path: [], parsed: true })
}

interface Walk {
  /** What the path in a message starts with. */
  readonly where: string
  /** Keys and indexes of the arrays and objects that are open; the outermost has none. */
  readonly path: (string | number)[]
  readonly parsed: boolean
}

type Key = string | number | undefined

function wholeText(value: unknown, walk: Walk): string {
  return textOf(value, undefined, walk) ?? refuse(walk, undefined, 'is undefined, which JSON cannot say')
}

/** Undefined means: JSON leaves this out. */
function textOf(value: unknown, key: Key, walk: Walk): string | undefined {
  if (typeof value !== 'object' || value === null) return leafText(value, key, walk)
  const { toJSON } = value as { readonly toJSON?: unknown }
  if (typeof toJSON === 'function') return convertedText(value, toJSON, key, walk)
  return compositeText(value, key, walk)
}

function leafText(value: unknown, key: Key, walk: Walk): string | undefined {
  switch (typeof value) {
    case 'string':
      return stringText(value, key, walk)
    case 'number':
      return numberText(value, key, walk)
    case 'boolean':
      return value ? 'true' : 'false'
    case 'object':
      return 'null'
    case 'undefined':
      return undefined
    case 'bigint':
      return refuse(walk, key, 'is a BigInt; give it as text')
    case 'function':
    case 'symbol':
      return refuse(walk, key, `is a ${typeof value}`)
  }
}

function stringText(value: string, key: Key, walk: Walk): string {
  if (walk.parsed && value.includes('\ufffd')) {
    refuse(walk, key, `holds U+FFFD, which stands where bytes were not UTF-8. ${KEEP_RAW}`)
  }
  return quoted(value) ?? refuse(walk, key, 'holds a lone surrogate, which UTF-8 cannot say')
}

function numberText(value: number, key: Key, walk: Walk): string {
  if (!Number.isFinite(value)) refuse(walk, key, 'is not a finite number')
  if (walk.parsed && Number.isInteger(value) && !Number.isSafeInteger(value)) {
    refuse(walk, key, `is a whole number beyond 2^53 - 1, whose last digits may be lost. ${KEEP_RAW}`)
  }
  return String(value) // -0 gives "0", as RFC 8785 wants
}

const KEEP_RAW =
  'Give the raw body instead (Express: express.json({ verify }); Fastify: preParsing; Hono: c.req.raw.clone())'

/** One conversion, as in JSON.stringify: what comes out is not asked for its own `toJSON`. */
function convertedText(value: object, toJSON: Function, key: Key, walk: Walk): string | undefined {
  if (ArrayBuffer.isView(value)) return refuse(walk, key, BYTES)
  if (value instanceof Date && Number.isNaN(value.getTime())) return refuse(walk, key, 'is an invalid Date')
  const converted: unknown = Reflect.apply(toJSON, value, [key === undefined ? '' : String(key)])
  if (typeof converted !== 'object' || converted === null) return leafText(converted, key, walk)
  return compositeText(converted, key, walk)
}

const BYTES = 'holds bytes; give them as base64 text'

function compositeText(value: object, key: Key, walk: Walk): string {
  const isRoot = key === undefined
  if (!isRoot) walk.path.push(key)
  if (walk.path.length >= CANONICAL_DEPTH_MAX) {
    refuse(walk, undefined, `is nested deeper than ${CANONICAL_DEPTH_MAX}, or refers to itself`)
  }
  const text = Array.isArray(value) ? arrayText(value, walk) : objectText(value, walk)
  if (text.length > CANONICAL_CHARS_MAX) {
    refuse(walk, undefined, `makes canonical text of more than ${CANONICAL_CHARS_MAX} characters`)
  }
  if (!isRoot) walk.path.pop()
  return text
}

function arrayText(array: readonly unknown[], walk: Walk): string {
  const prototype: unknown = Object.getPrototypeOf(array)
  // Array.prototype is itself an array, in every realm; the prototype of a subclass is not.
  if (prototype !== Array.prototype && !Array.isArray(prototype)) refuse(walk, undefined, NO_PLAIN)
  let text = '['
  for (let index = 0; index < array.length; index++) {
    const element =
      textOf(array[index], index, walk) ??
      refuse(walk, index, 'is undefined or a hole, which an array in JSON cannot say')
    text += index === 0 ? element : `,${element}`
  }
  return `${text}]`
}

function objectText(object: object, walk: Walk): string {
  if (!isPlain(object)) refuse(walk, undefined, ArrayBuffer.isView(object) ? BYTES : NO_PLAIN)
  refuseSymbolMembers(object, walk)
  const members = object as Readonly<Record<string, unknown>>
  const names = sorted(Object.keys(object))
  let text = '{'
  for (const name of names) {
    const member = textOf(members[name], name, walk)
    if (member === undefined) continue
    text +=
      text.length === 1 ? `${stringText(name, name, walk)}:${member}` : `,${stringText(name, name, walk)}:${member}`
  }
  return `${text}}`
}

const NO_PLAIN =
  'is neither plain object, array nor anything with toJSON (a Map, Set, RegExp, Error, Promise, boxed value or class instance?)'

function isPlain(object: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(object)
  if (prototype === Object.prototype || prototype === null) return true
  // Object.prototype of another realm (a vm context, a test runner's sandbox).
  return (
    typeof prototype === 'object' &&
    Object.getPrototypeOf(prototype) === null &&
    Object.hasOwn(prototype, 'isPrototypeOf')
  )
}

function refuseSymbolMembers(object: object, walk: Walk): void {
  for (const symbol of Object.getOwnPropertySymbols(object)) {
    if (Object.prototype.propertyIsEnumerable.call(object, symbol)) {
      refuse(walk, undefined, 'has a member under a symbol, which JSON would drop')
    }
  }
}

/** Sorts in place by UTF-16 code units, which is what `<` and the built-in sort compare. */
function sorted(names: string[]): string[] {
  if (names.length > INSERTION_SORT_MAX) return names.sort()
  for (let next = 1; next < names.length; next++) {
    const name = names[next] as string
    let at = next
    while (at > 0 && name < (names[at - 1] as string)) {
      names[at] = names[at - 1] as string
      at--
    }
    names[at] = name
  }
  return names
}

/** Throws with the path of the member at fault: keys are shown, cut to a bound, values never. */
function refuse(walk: Walk, key: Key, why: string): never {
  const parts = key === undefined ? walk.path : [...walk.path, key]
  const shown = parts.slice(0, PATH_PARTS_SHOWN_MAX).map(pathPart).join('')
  const cut = parts.length > PATH_PARTS_SHOWN_MAX ? '...' : ''
  throw new TypeError(`${walk.where} at $${shown}${cut} ${why}`)
}

function pathPart(part: string | number): string {
  if (typeof part === 'number') return `[${part}]`
  if (/^[A-Za-z_$][\w$]{0,63}$/.test(part)) return `.${part}`
  return `[${JSON.stringify(part.slice(0, KEY_CHARS_SHOWN_MAX))}]`
}

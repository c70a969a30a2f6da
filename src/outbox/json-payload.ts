/**
 * JSON payload: a value as the text that goes on the wire, or a TypeError that names the place.
 *
 * What JSON.stringify would drop, shorten or confuse without a word is refused before it can reach anybody's queue:
 * a Map becomes `{}`, NaN becomes null, a BigInt throws without saying where. Members that are undefined are left
 * out and `toJSON` (Date, URL, decimals) is honoured, as everywhere in JavaScript. U+0000 leaves as an escape.
 *
 * @module
 */

/** Deepest nesting; also what stops a cycle. */
export const PAYLOAD_DEPTH_MAX = 128

const PATH_PARTS_SHOWN_MAX = 16
const NAME_CHARS_SHOWN_MAX = 64

/** JSON text of `value`. @throws {TypeError} naming the path, never the value. */
export function jsonPayload(value: unknown): string {
  if (value === undefined) throw new TypeError('message.payload is missing; give null when there is nothing to say')
  check(value, undefined, [])
  return JSON.stringify(value)
}

function check(value: unknown, key: string | number | undefined, path: (string | number)[]): void {
  switch (typeof value) {
    case 'string':
      if (!value.isWellFormed()) refuse(path, key, 'holds a lone surrogate')
      return
    case 'number':
      if (!Number.isFinite(value)) refuse(path, key, 'is not a finite number')
      return
    case 'boolean':
      return
    case 'undefined':
      if (typeof key === 'number') refuse(path, key, 'is undefined or a hole')
      return
    case 'bigint':
      return refuse(path, key, 'is a BigInt; give it as text')
    case 'function':
    case 'symbol':
      return refuse(path, key, `is a ${typeof value}`)
    case 'object':
      if (value !== null) checkObject(value, key, path)
  }
}

function checkObject(value: object, key: string | number | undefined, path: (string | number)[]): void {
  if (ArrayBuffer.isView(value)) refuse(path, key, 'holds bytes; give them as base64 text, or as the whole payload')
  const { toJSON } = value as { readonly toJSON?: unknown }
  const converted: unknown = typeof toJSON === 'function' ? Reflect.apply(toJSON, value, [String(key ?? '')]) : value
  if (value instanceof Date && converted === null) refuse(path, key, 'is an invalid Date')
  if (typeof converted !== 'object' || converted === null) return check(converted, key, path)
  if (key !== undefined) path.push(key)
  if (path.length >= PAYLOAD_DEPTH_MAX)
    refuse(path, undefined, `is nested deeper than ${PAYLOAD_DEPTH_MAX}, or a cycle`)
  if (Array.isArray(converted)) {
    for (let index = 0; index < converted.length; index++) check(converted[index], index, path)
  } else {
    checkMembers(converted, path)
  }
  if (key !== undefined) path.pop()
}

function checkMembers(object: object, path: (string | number)[]): void {
  const prototype: unknown = Object.getPrototypeOf(object)
  // The prototype of another realm's plain object has no prototype of its own either.
  if (prototype !== Object.prototype && prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    refuse(path, undefined, 'is neither plain object, array nor anything with toJSON (a Map, Set, class instance?)')
  }
  for (const name of Object.keys(object)) {
    if (!name.isWellFormed()) refuse(path, undefined, 'has a member name with a lone surrogate')
    check((object as Record<string, unknown>)[name], name, path)
  }
}

function refuse(path: readonly (string | number)[], key: string | number | undefined, why: string): never {
  const parts = key === undefined ? path : [...path, key]
  const shown = parts.slice(0, PATH_PARTS_SHOWN_MAX).map(pathPart).join('')
  throw new TypeError(`message.payload at $${shown}${parts.length > PATH_PARTS_SHOWN_MAX ? '...' : ''} ${why}`)
}

function pathPart(part: string | number): string {
  if (typeof part === 'number') return `[${part}]`
  if (/^[A-Za-z_$][\w$]{0,63}$/.test(part)) return `.${part}`
  return `[${JSON.stringify(part.slice(0, NAME_CHARS_SHOWN_MAX))}]`
}

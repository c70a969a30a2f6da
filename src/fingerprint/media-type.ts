/**
 * Media types as far as a fingerprint needs them (RFC 9110, section 8.3.1): what must be read the same way, and
 * which spellings make no difference.
 *
 * @module
 */

export interface MediaType {
  /** `type/subtype` in lower case. */
  readonly essence: string
  /** Lower-case names, in the order they came in; no name twice. Values as sent, charset in lower case. */
  readonly parameters: ReadonlyMap<string, string>
}

/** Undefined for anything that two readers could understand differently: no grammar, a parameter twice, two lines. */
export function parseMediaType(field: string): MediaType | undefined {
  const [head = '', ...rest] = splitOutsideQuotes(field)
  const kind = trimmed(head)
  if (!ESSENCE.test(kind)) return undefined
  const parameters = new Map<string, string>()
  for (const piece of rest) {
    if (trimmed(piece) === '') continue
    const mark = piece.indexOf('=')
    if (mark === -1) return undefined
    const spelling = trimmed(piece.slice(0, mark))
    const name = spelling.toLowerCase()
    const value = parameterValue(trimmed(piece.slice(mark + 1)))
    if (!isToken(spelling) || value === undefined || parameters.has(name)) return undefined
    parameters.set(name, name === 'charset' ? value.toLowerCase() : value)
  }
  return { essence: kind.toLowerCase(), parameters }
}

export function isJson(type: MediaType): boolean {
  return type.essence === 'application/json' || type.essence.endsWith('+json')
}

/** Whether text in this type is UTF-8: said, or not said at all. `utf8` is a common misspelling. */
export function isUtf8(type: MediaType): boolean {
  const charset = type.parameters.get('charset')
  return charset === undefined || charset === 'utf-8' || charset === 'utf8'
}

const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
const ESSENCE = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+\/[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

/** A name in the sense of HTTP: method, header name, parameter name. */
export function isToken(text: string): boolean {
  return TOKEN.test(text)
}

/** Without the spaces and tabs around it. Not `trim`: that also drops characters that HTTP does not call blank. */
export function trimmed(text: string): string {
  let start = 0
  let end = text.length
  while (start < end && isBlank(text[start])) start++
  while (end > start && isBlank(text[end - 1])) end--
  return text.slice(start, end)
}

function isBlank(character: string | undefined): boolean {
  return character === ' ' || character === '\t'
}

/** Pieces between semicolons; those inside a quoted string do not count. */
function splitOutsideQuotes(field: string): string[] {
  const pieces: string[] = []
  let start = 0
  let inQuotes = false
  for (let at = 0; at < field.length; at++) {
    const character = field[at]
    if (character === '"') inQuotes = !inQuotes
    else if (character === '\\' && inQuotes) at++
    else if (character === ';' && !inQuotes) {
      pieces.push(field.slice(start, at))
      start = at + 1
    }
  }
  pieces.push(field.slice(start))
  return pieces
}

function parameterValue(text: string): string | undefined {
  if (isToken(text)) return text
  if (text.length < 2 || !text.startsWith('"') || !text.endsWith('"')) return undefined
  let value = ''
  for (let at = 1; at < text.length - 1; at++) {
    if (text[at] === '"') return undefined
    if (text[at] === '\\') at++
    if (at === text.length - 1) return undefined // the closing quote was escaped
    value += text[at]
  }
  return value
}

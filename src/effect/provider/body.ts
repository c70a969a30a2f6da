/**
 * Bodies of answers: the codes in them, wherever a provider puts these.
 *
 * @module
 */

/** Longer text is not read: an error that is this long tells nothing more. */
const READ_MAX = 1_048_576
const CODES_MAX = 64
/** No code of a provider comes near; what is kept of an answer has to be storable whatever stands there. Characters. */
const CODE_CHARS_MAX = 128
const XML_CODE = /<Code>([^<>]{1,128})<\/Code>/g

/** Bodies come as text, as bytes, or already parsed. What cannot be read is undefined. */
export function readBody(body: unknown): unknown {
  if (body instanceof Uint8Array) {
    return body.length > READ_MAX ? undefined : readBody(new TextDecoder().decode(body))
  }
  if (typeof body !== 'string') return body
  if (body.length > READ_MAX) return undefined
  try {
    return JSON.parse(body) as unknown
  } catch {
    return body
  }
}

/** What stands at a path of names and `*`, in a body that {@link readBody} gave. */
export function valuesAt(body: unknown, path: string): readonly unknown[] {
  let found: unknown[] = [body]
  for (const name of path.split('.')) {
    found = found.flatMap((value) => {
      if (typeof value !== 'object' || value === null) return []
      if (name === '*') return Object.values(value).slice(0, CODES_MAX) as unknown[]
      return Object.hasOwn(value, name) ? [Reflect.get(value, name) as unknown] : []
    })
  }
  return found.filter((value) => value !== undefined && value !== null).slice(0, CODES_MAX)
}

/** The codes in a body, at most 64 of at most 128 characters: texts and numbers at `paths`; in XML, the content of `<Code>`. */
export function codesIn(body: unknown, paths: readonly string[]): readonly string[] {
  if (typeof body === 'string') return [...body.matchAll(XML_CODE)].map((match) => match[1] ?? '').slice(0, CODES_MAX)
  return paths
    .flatMap((path) => valuesAt(body, path))
    .flatMap((value) => (typeof value === 'string' || typeof value === 'number' ? [String(value)] : []))
    .slice(0, CODES_MAX)
    .map((code) => code.slice(0, CODE_CHARS_MAX))
}

/**
 * Which headers are frozen with the operation, and which may differ between attempts.
 *
 * Credentials expire and must not lie in a storage, so they are asked for before each attempt. Everything that can
 * change what the request means is frozen.
 *
 * @module
 */

/** Pairs in the order given, names in lower case. */
export type HeaderPairs = readonly (readonly [name: string, value: string])[]

/** Never stored: credentials. */
const SECRET = new Set(['authorization', 'proxy-authorization', 'cookie', 'dpop'])
/** Made by us from the key and the body. */
const OURS = new Set(['idempotency-key', 'content-length', 'transfer-encoding', 'host'])
/** Part of what the body means, hence of the payload. */
const MEANING = new Set(['content-type', 'content-encoding', 'content-language'])

/** @throws {TypeError} for names that may not be frozen and for what is no header. */
export function frozenHeaders(given: Readonly<Record<string, string>>, contentType: string | null): HeaderPairs {
  const pairs = pairsOf(given, 'headers')
  for (const [name] of pairs) {
    const reason = unfrozen(name)
    if (reason !== undefined) throw new TypeError(`createOperation: headers.${name} ${reason}`)
  }
  if (contentType === null || pairs.some(([name]) => name === 'content-type')) return pairs
  return [...pairs, ['content-type', contentType]]
}

/** Why a header may not be part of an operation; undefined when it may. */
export function unfrozen(name: string): string | undefined {
  if (SECRET.has(name)) return 'is a credential and is not stored; give it by attemptHeaders'
  if (OURS.has(name)) return 'is set by the client'
  return undefined
}

/** The headers of one attempt. @throws {TypeError} when `attemptHeaders` changes what the request means. */
export function headersOfAttempt(
  frozen: HeaderPairs,
  keyValue: string,
  extra: Readonly<Record<string, string>>,
): Headers {
  const all = new Headers(frozen.map(([name, value]): [string, string] => [name, value]))
  for (const [name, value] of pairsOf(extra, 'attemptHeaders')) {
    if (all.has(name) || OURS.has(name) || MEANING.has(name)) {
      throw new TypeError(`attemptHeaders: ${name} belongs to the operation and cannot differ between attempts`)
    }
    all.set(name, value)
  }
  all.set('idempotency-key', keyValue)
  return all
}

function pairsOf(given: Readonly<Record<string, string>>, option: string): HeaderPairs {
  try {
    return [...new Headers(given)]
  } catch (error) {
    throw new TypeError(`${option} holds what is no header: ${String(error)}`, { cause: error })
  }
}

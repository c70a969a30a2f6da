/**
 * Request: Hono's view of a request whose body the guard has read.
 *
 * A whole `Request` with these bytes costs as much as the rest of the guard's work on it. Handlers hardly need one: they
 * read `json()` or `text()`, headers and the URL, and those are answered from what is there. `raw` makes it.
 *
 * @module
 */

/** The part of Hono's request that is used. */
export interface LentRequest {
  raw: Request
  readonly url: string
  json: () => Promise<unknown>
  text: () => Promise<string>
  arrayBuffer: () => Promise<ArrayBuffer>
  header: (...name: never[]) => unknown
  readonly bodyCache?: object
}

const decoder = new TextDecoder()

/** Lays the body before the handlers, as if nobody had read it. `make` gives the request that has it. */
export function lendRequest(req: LentRequest, bytes: Uint8Array, make: () => Request): void {
  const original = req.raw
  const { json, text, arrayBuffer, header } = req
  let made: Request | undefined
  let replaced = false
  const raw = () => {
    made ??= make()
    return made
  }
  // A layer behind us may lay in a body, or a request, of its own; that is Hono's business then.
  const untouched = () => {
    if (replaced) return false
    for (const _name in req.bodyCache) return false
    return true
  }
  req.json = async () => (untouched() ? JSON.parse(decoder.decode(bytes)) : await Reflect.apply(json, req, []))
  req.text = async () => (untouched() ? decoder.decode(bytes) : await Reflect.apply(text, req, []))
  req.arrayBuffer = async () => (untouched() ? new Uint8Array(bytes).buffer : await Reflect.apply(arrayBuffer, req, []))
  req.header = (...name) => Reflect.apply(header, made === undefined ? { raw: original } : req, name)
  Object.defineProperties(req, {
    raw: {
      configurable: true,
      enumerable: true,
      get: raw,
      set: (request: Request) => {
        made = request
        replaced = true
      },
    },
    url: { configurable: true, get: () => (made ?? original).url },
    method: { configurable: true, get: () => (made ?? original).method },
  })
}

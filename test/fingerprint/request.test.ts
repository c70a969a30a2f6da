import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  type FingerprintRequest,
  type RequestFingerprintOptions,
  requestFingerprint,
} from '../../src/fingerprint/request.ts'
import { json } from './spelling.ts'
import { vectorCases } from './vectors.ts'

interface Vector {
  readonly method: string
  readonly target: string
  readonly headers: Record<string, string>
  readonly body: string
  readonly body_hex?: string
  readonly extra?: readonly string[]
}

function ofVector(vector: Vector): string {
  const { method, target, headers } = vector
  const body = vector.body_hex === undefined ? Buffer.from(vector.body, 'utf8') : Buffer.from(vector.body_hex, 'hex')
  return hexOf({ method, target, headers, body }, { headers: vector.extra })
}

function hexOf(request: FingerprintRequest, options?: RequestFingerprintOptions): string {
  return Buffer.from(requestFingerprint(request, options).value).toString('hex')
}

/** A POST with JSON, changed as said. */
function post(changes: Partial<FingerprintRequest> & { readonly text?: string } = {}): FingerprintRequest {
  const { text = '{"a":1}', ...rest } = changes
  const body = [rest.bodySha256, rest.parsed, rest.fields].every((kind) => kind === undefined)
  return {
    method: 'POST',
    target: '/orders',
    headers: { 'content-type': 'application/json' },
    ...(body ? { body: Buffer.from(text, 'latin1') } : {}),
    ...rest,
  }
}

function typed(contentType: string, text = '{"a":1}'): FingerprintRequest {
  return post({ headers: { 'content-type': contentType }, text })
}

interface Pair {
  readonly name: string
  readonly a: Vector
  readonly b: Vector
  readonly same: boolean
}

describe('pairs of requests (R03, R04, SC11, SC12)', () => {
  test.each(vectorCases<Pair>('fingerprint/pairs.json'))('$name: same = $same', ({ a, b, same }) => {
    expect(ofVector(a) === ofVector(b)).toBe(same)
  })
})

test('the form of the hash input is pinned: stored fingerprints stay valid', () => {
  expect(hexOf(post({ target: '/orders/7?b=2&a=1' }), { headers: ['api-version'] })).toBe(
    '8a5a4365837465ff36e47b45eb98643540d1bf20a647ae119aed40aadc618395',
  )
})

describe('path and query', () => {
  test('a full URL counts without its origin', () => {
    const own = hexOf(post({ target: '/orders?x=1' }))
    expect(hexOf(post({ target: 'https://shop.example:8443/orders?x=1' }))).toBe(own)
    expect(hexOf(post({ target: 'http://x?x=1' }))).toBe(hexOf(post({ target: '/?x=1' })))
    expect(hexOf(post({ target: '//shop.example/orders?x=1' }))).not.toBe(own)
  })

  test.each([
    ['/o?a=%ff', '/o?a=%fe'],
    ['/o?a=%ff', '/o?a=%EF%BF%BD'],
    ['/o?a=1', '/o%3Fa=1'],
    ['/o?a=%31%', '/o?a=1%25%'],
    ['/o?a=1&b', '/o?a=1'],
    ['/o?a=1;b=2', '/o?a=1&b=2'],
    ['/o?a=b=c', '/o?a=b&=c'],
    ['/o?a=b=c', '/o?a%3Db=c'],
    ['/o?aa=b', '/o?a=ab'],
    ['/a%2Fb', '/a/b'],
  ])('SC12: %s is not %s', (a, b) => {
    expect(hexOf(post({ target: a }))).not.toBe(hexOf(post({ target: b })))
  })

  test.each([
    ['/o?a', '/o?a='],
    ['/o?&a=1&&', '/o?a=1'],
    ['/o?%61=%2b', '/o?a=%2B'],
    ['/o?a=%zz', '/o?a=%25zz'],
    ['/o?b=2&a=2&a=1', '/o?a=2&b=2&a=1'],
  ])('%s is %s', (a, b) => {
    expect(hexOf(post({ target: a }))).toBe(hexOf(post({ target: b })))
  })

  test('SC12: pairs put in other places are never the same query', () => {
    const pair = fc.tuple(fc.string({ unit: 'binary', maxLength: 3 }), fc.string({ unit: 'binary', maxLength: 3 }))
    const pairs = fc.array(pair, { maxLength: 3 })
    fc.assert(
      fc.property(pairs, pairs, (a, b) => {
        const same = said(a) === said(b)
        expect(
          hexOf(post({ target: `/o?${new URLSearchParams(a).toString()}` })) ===
            hexOf(post({ target: `/o?${new URLSearchParams(b).toString()}` })),
        ).toBe(same)
      }),
      { numRuns: 1_000 },
    )
    function said(list: readonly (readonly [string, string])[]): string {
      return JSON.stringify(list.toSorted(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b))))
    }
  })
})

describe('content type', () => {
  test.each([
    ['application/json; charset="UTF-8"', 'application/json'],
    ['application/json ;CHARSET=utf8;', 'application/json'],
    ['application/json; a=1; b=2', 'application/json;B=2;A="1"'],
    ['multipart/form-data; boundary=X', 'multipart/form-data; boundary="X"'],
  ])('%s is %s', (a, b) => {
    expect(hexOf(typed(a))).toBe(hexOf(typed(b)))
  })

  test.each([
    ['application/json; charset=utf-16', 'application/json'],
    ['application/json; profile=a', 'application/json; profile=A'],
    ['application/json, text/plain', 'application/json'],
    ['application/json; charset=utf-8; charset=utf-16', 'application/json; charset=utf-16'],
    ['application/json; foo="a\\"', 'application/json; foo="a'],
    ['application/json; foo="a\\"', 'application/json; foo="a\\""'],
    ['application/json; x="a;y=b"', 'application/json; x=a;y=b'],
    ['unread', 'application/json'],
  ])('%s is not %s', (a, b) => {
    expect(hexOf(typed(a))).not.toBe(hexOf(typed(b)))
  })

  test('several lines are not one type with parameters', () => {
    const headers = ['application/json', 'a', '1'].map((line) => ['content-type', line] as const)
    const lines = post({ headers, text: '[' })
    expect(requestFingerprint(lines).mode).toBe('raw')
    expect(hexOf(lines)).not.toBe(hexOf(typed('application/json; a=1', '[')))
  })

  test('a body without type, or in another charset, is compared by its bytes', () => {
    for (const headers of [{}, { 'content-type': '' }, { 'content-type': 'application/json; charset=latin1' }]) {
      expect(requestFingerprint(post({ headers })).mode).toBe('raw')
      expect(hexOf(post({ headers, text: '{"a":1}' }))).not.toBe(hexOf(post({ headers, text: '{"a": 1}' })))
    }
  })

  test('in latin1 an escape and the bytes that UTF-8 has for it are not the same', () => {
    const type = 'application/json; charset=iso-8859-1'
    expect(hexOf(typed(type, '["\\u00e9"]'))).not.toBe(hexOf(typed(type, '["\u00c3\u00a9"]')))
  })

  test.each(['application/json', 'application/merge-patch+json', 'Application/Problem+JSON'])(
    '%s is canonical',
    (type) => {
      expect(requestFingerprint(typed(type)).mode).toBe('canonical')
      expect(hexOf(typed(type, '{"b":1, "a":2}'))).toBe(hexOf(typed(type, '{"a":2,"b":1}')))
    },
  )

  test.each(['text/json', 'application/jsonl', 'application/x+jsonx', 'text/plain', 'application/octet-stream'])(
    '%s is raw',
    (type) => {
      expect(requestFingerprint(typed(type)).mode).toBe('raw')
    },
  )
})

describe('content encoding', () => {
  const encoded = (value: string, rest: Partial<FingerprintRequest> = {}): FingerprintRequest =>
    post({ headers: { 'content-type': 'application/json', 'content-encoding': value }, ...rest })

  test('identity and spelling make no difference, an encoded body is compared by its bytes', () => {
    expect(hexOf(encoded('identity'))).toBe(hexOf(post()))
    expect(hexOf(encoded('GZIP'))).toBe(hexOf(encoded(' gzip ')))
    expect(hexOf(encoded('gzip, br'))).not.toBe(hexOf(encoded('br, gzip')))
    expect(requestFingerprint(encoded('gzip')).mode).toBe('raw')
  })

  test('a body that the framework has decoded equals one that was sent plain', () => {
    expect(hexOf(encoded('gzip', { contentDecoded: true }))).toBe(hexOf(post()))
    expect(hexOf(encoded('gzip', { parsed: { a: 1 } }))).toBe(hexOf(post()))
  })
})

describe('headers', () => {
  test('names in any case, lists and fetch Headers are read alike', () => {
    const own = hexOf(post({ headers: { 'content-type': 'application/json', prefer: 'a, b' } }), {
      headers: ['Prefer'],
    })
    const others = [
      { 'Content-Type': 'application/json', Prefer: ['a', 'b'] },
      { 'content-type': ' application/json\t', prefer: 'a, b', 'x-other': undefined },
      new Headers([
        ['content-type', 'application/json'],
        ['prefer', 'a'],
        ['prefer', 'b'],
      ]),
    ]
    for (const headers of others) expect(hexOf(post({ headers }), { headers: ['prefer', 'PREFER'] })).toBe(own)
  })

  test('choosing a header that a request does not have changes nothing; an empty one counts', () => {
    expect(hexOf(post(), { headers: ['api-version', 'prefer'] })).toBe(hexOf(post()))
    const empty = post({ headers: { 'content-type': 'application/json', prefer: '' } })
    expect(hexOf(empty, { headers: ['prefer'] })).not.toBe(hexOf(post()))
  })

  test('a value cannot move into the next header', () => {
    const both = { headers: ['x-a', 'x-b'] }
    const headers = (a: string, b: string): FingerprintRequest => post({ headers: { 'x-a': a, 'x-b': b } })
    expect(hexOf(headers('1x-b2', ''), both)).not.toBe(hexOf(headers('1', '2'), both))
    expect(hexOf(headers('1', '2'), both)).not.toBe(hexOf(headers('2', '1'), both))
  })

  test.each(['authorization', 'Cookie', 'idempotency-key', 'date', 'traceparent', 'X-Request-Id', 'signature'])(
    '%s cannot be chosen, no retry would match',
    (name) => {
      expect(() => requestFingerprint(post(), { headers: [name] })).toThrow(`headers: ${name.toLowerCase()} differs`)
    },
  )
})

describe('JSON bodies', () => {
  test('lossy ones are compared by their bytes', () => {
    expect(requestFingerprint(post({ text: '{"id":9007199254740993}' })).mode).toBe('raw')
    expect(requestFingerprint(post({ text: '{"a":1,"a":2}' })).mode).toBe('raw')
  })

  test('above the limit they are compared by their bytes', () => {
    const text = `{"a":"${'x'.repeat(262_137)}"}`
    expect(requestFingerprint(post({ text })).mode).toBe('raw')
    expect(requestFingerprint(post({ text: text.replace('xx', 'x') })).mode).toBe('canonical')
    expect(requestFingerprint(post(), { canonicalBytesMax: 6 }).mode).toBe('raw')
  })

  test('a parsed body equals the bytes it came from, and says that it was parsed', () => {
    fc.assert(
      fc.property(json, (value) => {
        const text = JSON.stringify(value)
        let parsed: ReturnType<typeof requestFingerprint>
        try {
          parsed = requestFingerprint(post({ parsed: JSON.parse(text) }))
        } catch {
          return // a visible loss
        }
        expect(parsed).toEqual({ mode: 'parsed', value: requestFingerprint(post({ body: Buffer.from(text) })).value })
      }),
    )
  })

  test('no body, an empty one and a parser that gave undefined are the same, null is not', () => {
    const none = hexOf({ ...post(), body: undefined })
    expect(hexOf(post({ text: '' }))).toBe(none)
    expect(hexOf(post({ parsed: undefined, body: undefined }))).toBe(none)
    expect(hexOf(post({ text: 'null' }))).toBe(hexOf(post({ parsed: null, body: undefined })))
    expect(hexOf(post({ text: 'null' }))).not.toBe(none)
  })

  test('a visible loss in a parsed body is refused', () => {
    expect(() => requestFingerprint(post({ parsed: { id: 2 ** 60 } }))).toThrow('parsed body at $.id')
  })
})

describe('chosen fields', () => {
  test('stand for the body: what is not in them makes no difference', () => {
    const of = (body: { amount: number; sentAt: number }): string => hexOf(post({ fields: { amount: body.amount } }))
    expect(of({ amount: 5, sentAt: 1 })).toBe(of({ amount: 5, sentAt: 2 }))
    expect(of({ amount: 5, sentAt: 1 })).not.toBe(of({ amount: 6, sentAt: 1 }))
  })

  test('are never the same as a body that happens to look like them', () => {
    expect(hexOf(post({ fields: { a: 1 } }))).not.toBe(hexOf(post({ text: '{"a":1}' })))
  })
})

describe('streamed bodies', () => {
  test('their SHA-256 equals the bytes held as a whole, for types that are compared by bytes', () => {
    const headers = { 'content-type': 'video/mp4' }
    const body = Buffer.from('0011', 'hex')
    const bodySha256 = createHash('sha256').update(body).digest()
    expect(requestFingerprint(post({ headers, bodySha256 }))).toEqual(requestFingerprint(post({ headers, body })))
  })
})

describe('forms', () => {
  const form = (text: string): FingerprintRequest => typed('application/x-www-form-urlencoded', text)

  test('by their bytes, or on request by their decoded pairs in order', () => {
    const pairs: RequestFingerprintOptions = { forms: 'pairs' }
    expect(hexOf(form('a=%20'))).not.toBe(hexOf(form('a=+')))
    expect(hexOf(form('a=%20'), pairs)).toBe(hexOf(form('a=+'), pairs))
    expect(hexOf(form('a=1&b=2'), pairs)).not.toBe(hexOf(form('b=2&a=1'), pairs))
    expect(hexOf(form('a=1%26b=2'), pairs)).not.toBe(hexOf(form('a=1&b=2'), pairs))
    expect(hexOf(form('a=%ff'), pairs)).not.toBe(hexOf(form('a=%fe'), pairs))
    expect(requestFingerprint(form('a=1'), pairs).mode).toBe('canonical')
    expect(hexOf(form('a=1'), pairs)).not.toBe(hexOf(form('a=1')))
  })
})

describe('multipart', () => {
  const multipart = (text: string, boundary = 'X'): FingerprintRequest =>
    typed(`multipart/form-data; boundary=${boundary}`, text)
  const part = (content: string, head = 'Content-Disposition: form-data; name="a"\r\n'): string =>
    `--X\r\n${head}\r\n${content}\r\n`

  test('the boundary of each attempt makes no difference, nor do case and order of part headers', () => {
    const a = multipart(
      '--X\r\nContent-Disposition: form-data; name="a"\r\nContent-Type: text/plain\r\n\r\n1\r\n--X--\r\n',
    )
    const b = multipart(
      '--Yy\r\ncontent-type:text/plain\r\ncontent-disposition:form-data; name="a" \r\n\r\n1\r\n--Yy--',
      'Yy',
    )
    expect(requestFingerprint(a).mode).toBe('canonical')
    expect(hexOf(a)).toBe(hexOf(b))
  })

  test('real FormData bodies of two attempts are equal', async () => {
    const attempt = async (text: string): Promise<FingerprintRequest> => {
      const data = new FormData()
      data.append('order', text)
      data.append('file', new Blob([new Uint8Array([0, 255, 13, 10, 45, 45])], { type: 'image/png' }), 'a "b".png')
      const request = new Request('http://x/orders', { method: 'POST', body: data })
      const body = new Uint8Array(await request.arrayBuffer())
      return { method: 'POST', target: request.url, headers: request.headers, body }
    }
    const [first, second, other] = [await attempt('é\r\n--'), await attempt('é\r\n--'), await attempt('é\r\n-')]
    expect(Buffer.from(first.body as Uint8Array).equals(second.body as Uint8Array)).toBe(false)
    expect(requestFingerprint(first).mode).toBe('canonical')
    expect(hexOf(first)).toBe(hexOf(second))
    expect(hexOf(first)).not.toBe(hexOf(other))
  })

  test('every header of a part counts, not only the two that browsers send', () => {
    const head = 'Content-Disposition: form-data; name="a"\r\n'
    const plain = hexOf(multipart(`${part('MQ==', head)}--X--\r\n`))
    expect(hexOf(multipart(`${part('MQ==', `${head}Content-Transfer-Encoding: base64\r\n`)}--X--\r\n`))).not.toBe(plain)
  })

  test('parts without headers or content are read', () => {
    const request = multipart('--X\r\n\r\n\r\n--X\r\n\r\n1\r\n--X--\r\n')
    expect(requestFingerprint(request).mode).toBe('canonical')
    expect(hexOf(request)).not.toBe(hexOf(multipart('--X\r\n\r\n1\r\n--X\r\n\r\n\r\n--X--\r\n')))
  })

  test('SC12: content cannot move into a header or into the next part', () => {
    const bodies = [
      part('1') + part('2'),
      part('1\r\n') + part('2'),
      part('12'),
      part('1', 'A: 1\r\nB: 2\r\n'),
      part('1', 'A: 1B: 2\r\n'),
      part('B: 2\r\n\r\n1', 'A: 1\r\n'),
    ]
    const prints = bodies.map((body) => hexOf(multipart(`${body}--X--\r\n`)))
    expect(new Set(prints).size).toBe(bodies.length)
  })

  test.each([
    ['no boundary', typed('multipart/form-data', `${part('1')}--X--\r\n`)],
    ['an empty boundary', typed('multipart/form-data; boundary=""', '--\r\n\r\n1\r\n----\r\n')],
    ['a boundary of 71 characters', multipart('', 'x'.repeat(71))],
    ['another boundary', multipart(`${part('1')}--X--\r\n`, 'Y')],
    ['another first delimiter', multipart('--Z\r\n\r\n1\r\n--X--\r\n')],
    ['a preamble', multipart(`hello\r\n${part('1')}--X--\r\n`)],
    ['an epilogue', multipart(`${part('1')}--X--\r\nbye`)],
    ['no closing delimiter', multipart(part('1'))],
    ['no part', multipart('--X--\r\n')],
    ['a cut body', multipart('--X\r\nContent-Disposition: form-data; name="a"\r\n\r\n1')],
    ['a header without colon', multipart(`${part('1', 'Content-Disposition\r\n')}--X--\r\n`)],
    ['a folded header', multipart(`${part('1', 'A: 1;\r\n b=2\r\n')}--X--\r\n`)],
    ['a bare line feed in the head', multipart(`${part('1', 'A: 1\nB: 2\r\n')}--X--\r\n`)],
    ['line feeds only', multipart('--X\nA: 1\n\n1\n--X--\n')],
    ['padding behind a delimiter', multipart(`--X \r\n\r\n1\r\n--X--\r\n`)],
    ['a longer delimiter inside', multipart(`${part('1\r\n--XY')}--X--\r\n`)],
    ['a head that never ends', multipart('--X\r\nA: 1\r\n--X--\r\n')],
  ])('%s is compared by its bytes', (_, request) => {
    expect(requestFingerprint(request).mode).toBe('raw')
  })

  test('of two unreadable bodies with the same bytes, the boundary tells how a lenient reader takes them apart', () => {
    const text = 'preamble\r\n--X\r\n\r\n1\r\n--X--\r\n--Y\r\n\r\n2\r\n--Y--\r\n'
    expect(hexOf(multipart(text, 'X'))).not.toBe(hexOf(multipart(text, 'Y')))
  })

  test('T6: 50,000 parts and bodies full of almost-delimiters take linear time', () => {
    expect(requestFingerprint(multipart(`${part('1').repeat(50_000)}--X--`)).mode).toBe('canonical')
    const boundary = `${'-'.repeat(60)}X`
    expect(requestFingerprint(multipart(`--${boundary}\r\n\r\n${'\r\n------'.repeat(500_000)}`, boundary)).mode).toBe(
      'raw',
    )
    expect(requestFingerprint(multipart(`--X\r\n${'A: 1\r\n'.repeat(200_000)}`)).mode).toBe('raw')
  })
})

describe('wrong arguments are a TypeError that names them', () => {
  const options =
    (value: unknown): (() => unknown) =>
    () =>
      requestFingerprint(post(), value as RequestFingerprintOptions)
  const request =
    (value: unknown): (() => unknown) =>
    () =>
      requestFingerprint({ ...post(), ...(value as Partial<FingerprintRequest>) })

  test.each<[string, () => unknown]>([
    ['request.method takes', request({ method: undefined })],
    ['request.method takes', request({ method: 'POST /x' })],
    ['request.target takes', request({ target: '' })],
    ['request.headers takes', request({ headers: undefined })],
    ['request.body takes the bytes', request({ body: '{"a":"hunter2"}' })],
    ['request.body takes the bytes', request({ body: { a: 'hunter2' } })],
    ['request.bodySha256 takes 32 bytes', request({ body: undefined, bodySha256: new Uint8Array(16) })],
    ['request takes one of', request({ parsed: {} })],
    ['request: text with a lone surrogate', request({ target: '/\ud800' })],
    ['unknown option "header"', options({ header: ['x'] })],
    ['headers takes a list', options({ headers: 'prefer' })],
    ['headers takes header names', options({ headers: ['a b'] })],
    ['forms takes raw | pairs', options({ forms: 'sorted' })],
    ['canonicalBytesMax takes', options({ canonicalBytesMax: 1.5 })],
  ])('%s', (message, run) => {
    expect(run).toThrow(TypeError)
    expect(run).toThrow(message)
    expect(run).not.toThrow('hunter2')
  })
})

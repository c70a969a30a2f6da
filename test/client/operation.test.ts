import { afterEach, describe, expect, test } from 'vitest'
import { createOperation, memoryStorage, type OperationOptions } from '../../src/client/index.ts'
import { answer, jumpingClock, repeatable, reset, type Scripted, scripted } from './scripted.ts'

const open: Scripted[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close()))
})

/** Sends over a connection that breaks twice; what arrived the three times. */
async function arrivals(options: Partial<OperationOptions>, meanwhile: () => void = () => undefined) {
  const server = await scripted([reset, answer(500), answer(201)])
  open.push(server)
  const send = createOperation({ url: `${server.url}/orders`, ...repeatable(jumpingClock()), ...options })
  meanwhile()
  const result = await send()
  expect(result).toMatchObject({ state: 'completed', attempts: 3 })
  return server.arrived
}

const at = 'https://shop.example/orders'

describe('what is frozen', () => {
  const form = new FormData()
  form.set('customer', 'c-1')
  form.set('file', new Blob([Uint8Array.from([0, 255, 10])]), 'a.bin')

  test.each([
    ['text', 'plain ü', 'text/plain;charset=UTF-8'],
    ['plain data', { a: [1, null, 'ü'] }, 'application/json'],
    ['a list', [1, 2], 'application/json'],
    ['null', null, 'application/json'],
    ['a Buffer', Buffer.from([0, 255, 128, 10]), undefined],
    ['a part of a buffer', new Uint8Array([1, 2, 3, 4]).subarray(1, 3), undefined],
    ['an ArrayBuffer', new Uint8Array([1, 2]).buffer, undefined],
    ['URLSearchParams', new URLSearchParams({ a: 'b c' }), 'application/x-www-form-urlencoded;charset=UTF-8'],
    ['a Blob', new Blob(['x'], { type: 'text/csv' }), 'text/csv'],
    ['FormData', form, /^multipart\/form-data; boundary=/],
    ['no body', undefined, undefined],
  ])('B126: %s is sent with identical bytes and the same content type each time', async (_name, body, contentType) => {
    const arrived = await arrivals({ body })
    expect(new Set(arrived.map((one) => one.body.toString('hex'))).size).toBe(1)
    expect(new Set(arrived.map(({ headers }) => headers['content-type'])).size).toBe(1)
    const [first] = arrived
    if (contentType instanceof RegExp) expect(first?.headers['content-type']).toMatch(contentType)
    else expect(first?.headers['content-type']).toBe(contentType)
    const expected =
      body === undefined ? Buffer.alloc(0) : Buffer.from(await new Response(body as string).arrayBuffer())
    if (body instanceof FormData) expect(first?.body.toString('latin1')).toContain('filename="a.bin"')
    else if (contentType === 'application/json') expect(JSON.parse(first?.body.toString() ?? '')).toEqual(body)
    else expect(first?.body).toEqual(expected)
  })

  test('B126: what happens to body and headers after createOperation changes nothing', async () => {
    const bytes = new Uint8Array([1, 2, 3])
    const headers = { 'x-version': '1' }
    const [first] = await arrivals({ body: bytes, headers }, () => {
      bytes.fill(9)
      headers['x-version'] = '2'
    })
    expect([...(first?.body ?? [])]).toEqual([1, 2, 3])
    expect(first?.headers['x-version']).toBe('1')

    const form = new FormData()
    form.set('a', 'before')
    const [sent] = await arrivals({ body: form }, () => form.set('a', 'after'))
    expect(sent?.body.toString()).toContain('before')
    expect(sent?.body.toString()).not.toContain('after')
  })

  test('B126: bodies that can be read once, or that JSON would change, are refused at once', () => {
    async function* lines() {
      yield 'x'
    }
    for (const body of [new ReadableStream(), lines(), new Response('x').body]) {
      expect(() => createOperation({ url: at, body })).toThrow(/body is a stream/)
    }
    for (const body of [new Map(), new Set(), () => 1, 1n, Number.NaN, Symbol('x'), /x/]) {
      expect(() => createOperation({ url: at, body })).toThrow(TypeError)
    }
  })

  test('a body over bodyBytesMax is neither stored nor sent', async () => {
    const storage = memoryStorage()
    const bodyBytesMax = 10
    expect(() => createOperation({ url: at, body: 'x'.repeat(11), bodyBytesMax })).toThrow(
      expect.objectContaining({ code: 'BODY_TOO_LARGE' }),
    )
    expect(() => createOperation({ url: at, body: 'ü'.repeat(6), bodyBytesMax })).toThrow(/12 bytes/)
    const blob = createOperation({ url: at, body: new Blob(['x'.repeat(11)]), bodyBytesMax, storage })
    await expect(blob()).rejects.toMatchObject({ code: 'BODY_TOO_LARGE' })
    expect(await storage.entries()).toEqual([])
  })

  test('a content type that is given stands, and every method that changes something goes', async () => {
    for (const method of ['POST', 'put', 'PATCH', 'DELETE']) {
      const [first] = await arrivals({ method, body: '{}', headers: { 'Content-Type': 'application/json' } })
      expect(first?.method).toBe(method.toUpperCase())
      expect(first?.headers['content-type']).toBe('application/json')
    }
  })
})

describe('the key', () => {
  test('a key of the caller is sent as it is, quoted where it has to be or where that is asked for', async () => {
    const sent = async (options: Partial<OperationOptions>) =>
      (await arrivals(options)).map(({ headers }) => headers['idempotency-key'])
    expect(await sent({ key: 'invoice-create:4711' })).toEqual(Array(3).fill('invoice-create:4711'))
    expect(await sent({ key: 'a,b;"c"\\' })).toEqual(Array(3).fill('"a,b;\\"c\\"\\\\"'))
    expect(await sent({ key: 'k-1', quotedKey: true })).toEqual(Array(3).fill('"k-1"'))
  })

  test.each(['', ' ', 'a b', 'ü', 'a\n', 'x'.repeat(256)])('a key %j is refused', (key) => {
    expect(() => createOperation({ url: at, key })).toThrow(/key must have 1 to 255/)
  })
})

describe('wrong use is told at once', () => {
  test.each([
    [{ url: '/orders' }, /url must be absolute/],
    [{ url: 'ftp://a/b' }, /http or https/],
    [{ url: 'https://me:pw@a/b' }, /credentials/],
    [{ url: at, method: 'GET' }, /method must be/],
    [{ url: at, headers: { Authorization: 'x' } }, /authorization is a credential/],
    [{ url: at, headers: { Cookie: 'x' } }, /cookie is a credential/],
    [{ url: at, headers: { 'Idempotency-Key': 'x' } }, /idempotency-key is set by the client/],
    [{ url: at, headers: { 'a b': 'x' } }, /headers holds what is no header/],
    [{ url: at, deadlineMs: 0 }, /deadlineMs must be/],
    [{ url: at, attemptTimeoutMs: Number.NaN }, /attemptTimeoutMs must be/],
    [{ url: at, lifetimeMs: -1 }, /lifetimeMs must be/],
    [{ url: at, backoff: { baseMs: 0 } }, /backoff.baseMs must be/],
  ])('%o', (options, message) => {
    expect(() => createOperation(options)).toThrow(TypeError)
    expect(() => createOperation(options)).toThrow(message)
  })

  test.each(['idempotency-key', 'content-type', 'content-encoding', 'x-version'])(
    'attemptHeaders cannot change %s between attempts',
    async (name) => {
      const server = await scripted([answer(201)])
      open.push(server)
      const send = createOperation({
        url: server.url,
        headers: { 'X-Version': '1' },
        attemptHeaders: () => ({ [name]: 'other' }),
      })
      await expect(send()).rejects.toThrow(`attemptHeaders: ${name} belongs to the operation`)
      expect(server.arrived).toEqual([])
    },
  )
})

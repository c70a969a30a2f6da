import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterEach, describe, expect, test } from 'vitest'
import { type AnswerKind, classifyAnswer } from '../../src/effect/provider/index.ts'
import {
  type FakeProvider,
  type FakeProviderOptions,
  fakeProvider,
  PROVIDER_FAULTS,
  type ProviderFaultKind,
  type ProviderKeys,
  remoteProvider,
} from '../../src/testing/provider/index.ts'
import { attempt, lookUp } from './client.ts'

const started: FakeProvider[] = []

async function start(options: FakeProviderOptions): Promise<FakeProvider> {
  const provider = await fakeProvider(options)
  started.push(provider)
  return provider
}

afterEach(async () => {
  await Promise.all(started.splice(0).map((provider) => provider.stop()))
})

/** What the first attempt and its repeat (same key, same body) mean, and how many effects there are after each. */
interface Row {
  readonly first: AnswerKind
  readonly after: number
  readonly repeat: AnswerKind
  readonly end: number
}

const row = (first: AnswerKind, after: number, repeat: AnswerKind, end: number): Row => ({ first, after, repeat, end })

/** Faults that end by themselves. Held requests and forgotten keys have tests of their own. */
type Ending = Exclude<ProviderFaultKind, 'heldBefore' | 'heldAfter' | 'keyForgotten'>

const WITHOUT_KEYS: Readonly<Record<Ending, Row>> = {
  connectionLost: row('ambiguous', 0, 'applied', 1),
  silentBefore: row('ambiguous', 0, 'applied', 1),
  rateLimited: row('transient', 0, 'applied', 1),
  unavailable: row('ambiguous', 0, 'applied', 1),
  failed: row('ambiguous', 0, 'applied', 1),
  answerLost: row('ambiguous', 1, 'applied', 2),
  answerCut: row('ambiguous', 1, 'applied', 2),
  silentAfter: row('ambiguous', 1, 'applied', 2),
  errorAfter: row('ambiguous', 1, 'applied', 2),
}

/** With keys, nothing is applied twice; what a stored failure does differs. */
const KEYED: Readonly<Record<Ending, Row>> = {
  ...WITHOUT_KEYS,
  answerLost: row('ambiguous', 1, 'applied', 1),
  answerCut: row('ambiguous', 1, 'applied', 1),
  silentAfter: row('ambiguous', 1, 'applied', 1),
  errorAfter: row('ambiguous', 1, 'applied', 1),
}

const TABLE: Readonly<Record<ProviderKeys, Readonly<Record<Ending, Row>>>> = {
  none: WITHOUT_KEYS,
  'stripe-v1': {
    ...KEYED,
    failed: row('ambiguous', 0, 'storedFailure', 0),
    errorAfter: row('ambiguous', 1, 'storedFailure', 1),
  },
  'stripe-v2': KEYED,
  '24h': KEYED,
}

const MODES = Object.keys(TABLE) as ProviderKeys[]

describe('each mode and each fault', () => {
  test.each(
    MODES.flatMap((keys) =>
      (Object.keys(TABLE[keys]) as Ending[]).map((kind) => ({ keys, kind, ...TABLE[keys][kind] })),
    ),
  )(
    '$keys, $kind: $first with $after effects, then $repeat with $end',
    async ({ keys, kind, first, after, repeat, end }) => {
      const provider = await start({ keys })
      provider.fault({ kind })
      const abort = new AbortController()
      const pending = attempt(provider, { reference: 'order-7', key: 'key-7', signal: abort.signal })
      if (kind.startsWith('silent')) {
        await provider.waitFor(({ requests }) => requests[0]?.answer === 'silent')
        abort.abort()
      }
      expect((await pending).classified).toMatchObject({ kind: first, replayed: false })
      expect(provider.count('order-7')).toBe(after)

      const again = await attempt(provider, { reference: 'order-7', key: 'key-7' })
      expect(again.classified.kind).toBe(repeat)
      expect(provider.count('order-7')).toBe(end)
      expect(provider.effects().every((effect) => effect.amount === 700 && effect.key === 'key-7')).toBe(true)
      expect(provider.requests().map((request) => request.fault)).toEqual([kind, undefined])
    },
  )

  test('the table has every fault that ends by itself', () => {
    const named = new Set([...Object.keys(KEYED), 'heldBefore', 'heldAfter', 'keyForgotten'])
    expect([...named].sort()).toEqual([...PROVIDER_FAULTS].sort())
  })
})

describe('keys', () => {
  test('a naive client that tries again charges twice, one with a key does not', async () => {
    const provider = await start({ keys: 'stripe-v1' })
    provider.fault({ kind: 'answerLost', reference: 'naive' }, { kind: 'answerLost', reference: 'keyed' })
    for (const key of [undefined, 'key-1']) {
      const reference = key === undefined ? 'naive' : 'keyed'
      expect((await attempt(provider, { reference, key })).classified.kind).toBe('ambiguous')
      expect((await attempt(provider, { reference, key })).classified.kind).toBe('applied')
    }
    expect(provider.count('naive')).toBe(2)
    expect(provider.count('keyed')).toBe(1)
    expect(provider.count()).toBe(3)
  })

  test('B86: stripe-v1 repeats a stored 500 for ever, whatever was applied, until the key has lapsed', async () => {
    const provider = await start({ keys: 'stripe-v1' })
    provider.fault({ kind: 'errorAfter' })
    await attempt(provider, { reference: 'order-7', key: 'key-7' })
    for (let turn = 0; turn < 3; turn += 1) {
      const { classified } = await attempt(provider, { reference: 'order-7', key: 'key-7' })
      expect(classified).toMatchObject({ kind: 'storedFailure', decides: 'effect', replayed: true, status: 500 })
      provider.advance(7 * 3_600_000)
    }
    expect(provider.count('order-7')).toBe(1)
    provider.advance(3 * 3_600_000)
    expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe('applied')
    expect(provider.count('order-7')).toBe(2)
  })

  test.each([
    ['stripe-v1', 24],
    ['24h', 24],
    ['stripe-v2', 30 * 24],
  ] as const)('B90: %s forgets a key after %i hours, and the repeat is a second effect', async (keys, hours) => {
    const provider = await start({ keys })
    const charge = { reference: 'order-7', key: 'key-7' }
    await attempt(provider, charge)
    provider.advance(hours * 3_600_000 - 1)
    expect((await attempt(provider, charge)).classified.kind).toBe('applied')
    expect(provider.count('order-7')).toBe(1)
    provider.advance(1)
    expect((await attempt(provider, charge)).classified.replayed).toBe(false)
    expect(provider.count('order-7')).toBe(2)
  })

  test.each(['stripe-v1', 'stripe-v2', '24h'] as const)(
    '%s: a key that is forgotten early is a second effect',
    async (keys) => {
      const provider = await start({ keys })
      await attempt(provider, { reference: 'order-7', key: 'key-7' })
      provider.fault({ kind: 'keyForgotten' })
      expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe('applied')
      expect(provider.count('order-7')).toBe(2)
      provider.forget('key-7')
      await attempt(provider, { reference: 'order-7', key: 'key-7' })
      expect(provider.count('order-7')).toBe(3)
    },
  )

  test.each(['stripe-v1', 'stripe-v2', '24h'] as const)(
    '%s: the same key with another body changes nothing',
    async (keys) => {
      const provider = await start({ keys })
      await attempt(provider, { reference: 'order-7', key: 'key-7' })
      const other = await attempt(provider, { reference: 'order-7', key: 'key-7', amount: 900 })
      expect(other.classified).toMatchObject({ kind: 'mismatch', status: 400 })
      expect(provider.count('order-7')).toBe(1)
    },
  )

  test.each(['stripe-v1', 'stripe-v2', '24h'] as const)(
    '%s: a refusal is an outcome that a repeat gets again',
    async (keys) => {
      const provider = await start({ keys })
      for (const replayed of [false, true]) {
        const { classified } = await attempt(provider, { reference: 'order-7', key: 'key-7', decline: true })
        expect(classified.kind).toBe('refused')
        if (provider.profile.replayMarker !== undefined) expect(classified.replayed).toBe(replayed)
      }
      expect(provider.count('order-7')).toBe(0)
    },
  )

  test('a repeat that fails does not undo what an earlier attempt has applied', async () => {
    const provider = await start({ keys: 'stripe-v2' })
    provider.fault({ kind: 'errorAfter' }, { kind: 'failed' })
    for (const kind of ['ambiguous', 'ambiguous', 'applied']) {
      expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe(kind)
    }
    expect(provider.count('order-7')).toBe(1)
  })

  test('what is invalid is refused before the key is used', async () => {
    const provider = await start({ keys: 'stripe-v1' })
    expect((await attempt(provider, { reference: 'order-7', key: 'key-7', amount: 0 })).classified.kind).toBe('refused')
    expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe('applied')
    expect((await attempt(provider, { reference: 'order-8', key: 'x'.repeat(256) })).classified.kind).toBe('refused')
    expect(provider.count()).toBe(1)
  })
})

describe('held requests', () => {
  test.each(
    (['heldBefore', 'heldAfter'] as const).flatMap((kind) =>
      (['stripe-v1', 'stripe-v2', '24h'] as const).map((keys) => ({ kind, keys })),
    ),
  )(
    'B87: $keys, $kind: a repeat meets a call in progress, and gets its result when that has ended',
    async ({ kind, keys }) => {
      const provider = await start({ keys })
      provider.fault({ kind })
      const first = attempt(provider, { reference: 'order-7', key: 'key-7' })
      await provider.waitFor(({ held }) => held.length === 1)
      expect(provider.count('order-7')).toBe(kind === 'heldBefore' ? 0 : 1)
      const meanwhile = await attempt(provider, { reference: 'order-7', key: 'key-7' })
      expect(meanwhile.classified).toMatchObject({ kind: 'inProgress', decides: 'attempt', status: 409 })
      expect(provider.release({ key: 'other' })).toBe(0)
      expect(provider.release({ key: 'key-7' })).toBe(1)
      const { body } = await first
      const again = await attempt(provider, { reference: 'order-7', key: 'key-7' })
      expect(again).toMatchObject({ classified: { kind: 'applied' }, body })
      expect(provider.count('order-7')).toBe(1)
    },
  )

  test('a caller that has hung up is charged all the same once the request goes on', async () => {
    const provider = await start({ keys: 'none' })
    provider.fault({ kind: 'heldBefore' })
    const abort = new AbortController()
    const call = attempt(provider, { reference: 'order-7', signal: abort.signal })
    await provider.waitFor(({ held }) => held.length === 1)
    abort.abort()
    expect((await call).classified.kind).toBe('ambiguous')
    expect(await (await lookUp(provider, '?reference=order-7')).json()).toMatchObject({ data: [] })
    provider.release()
    await provider.waitFor(({ effects }) => effects.length === 1)
    expect(provider.count('order-7')).toBe(1)
  })
})

describe('look-ups', () => {
  test('effects are found by reference and by id, once their delay has passed', async () => {
    const provider = await start({ lookUpDelayMs: 2_000 })
    await attempt(provider, { reference: 'order-7', key: 'key-7' })
    await attempt(provider, { reference: 'order-8', key: 'key-8' })
    expect(await (await lookUp(provider, '?reference=order-7')).json()).toMatchObject({ data: [] })
    expect((await lookUp(provider, '/fx_1')).status).toBe(404)
    provider.advance(2_000)
    const found = { id: 'fx_1', reference: 'order-7', amount: 700, currency: 'eur', status: 'succeeded' }
    expect(await (await lookUp(provider, '?reference=order-7')).json()).toEqual({ data: [found], has_more: false })
    expect(await (await lookUp(provider, '/fx_1')).json()).toEqual(found)
  })

  test('a list is given in pages; without look-ups there is only the id', async () => {
    const listed = await start({ lookUp: 'list' })
    for (let index = 1; index <= 5; index += 1)
      await attempt(listed, { reference: `order-${index}`, key: `key-${index}` })
    expect((await lookUp(listed, '?reference=order-1')).status).toBe(400)
    const ids: string[] = []
    for (let more = true; more; ) {
      const response = await lookUp(listed, `?limit=2&starting_after=${ids.at(-1) ?? 'fx_0'}`)
      const page = (await response.json()) as { data: { id: string }[]; has_more: boolean }
      ids.push(...page.data.map(({ id }) => id))
      more = page.has_more
    }
    expect(ids).toEqual(['fx_1', 'fx_2', 'fx_3', 'fx_4', 'fx_5'])
    const unlisted = await start({ lookUp: 'none' })
    await attempt(unlisted, { reference: 'order-1' })
    expect((await lookUp(unlisted, '')).status).toBe(404)
    expect((await lookUp(unlisted, '/fx_1')).status).toBe(200)
  })

  test('look-ups meet faults of their own', async () => {
    const provider = await start({})
    provider.fault(
      { kind: 'unavailable', on: 'lookUp' },
      { kind: 'connectionLost', on: 'lookUp', reference: 'order-7' },
    )
    await attempt(provider, { reference: 'order-7', key: 'key-7' })
    const unavailable = await lookUp(provider, '?reference=order-7')
    expect(classifyAnswer(provider.profile, unavailable).kind).toBe('ambiguous')
    await expect(lookUp(provider, '?reference=order-7')).rejects.toThrow('fetch failed')
    expect((await lookUp(provider, '?reference=order-7')).status).toBe(200)
  })
})

describe('load and control', () => {
  test('the same seed makes the same faults in whatever order requests come, and keyed retries end with one effect each', async () => {
    const faults = async (order: (keys: string[]) => string[]) => {
      const provider = await start({
        keys: 'stripe-v2',
        faults: { seed: 7, rate: 0.5, kinds: ['answerLost', 'errorAfter', 'rateLimited', 'unavailable', 'failed'] },
      })
      const keys = order(Array.from({ length: 200 }, (_, index) => `key-${index}`))
      await Promise.all(
        keys.map(async (key) => {
          for (let turn = 0; turn < 10; turn += 1) {
            if ((await attempt(provider, { reference: key, key })).classified.kind === 'applied') return
          }
        }),
      )
      for (const key of keys) expect(provider.count(key)).toBe(1)
      const met = provider.requests().map(({ key, fault }) => `${key} ${fault}`)
      return [...met].sort()
    }
    const one = await faults((keys) => keys)
    const other = await faults((keys) => keys.toReversed())
    expect(other).toEqual(one)
    expect(new Set(one.map((line) => line.split(' ')[1])).size).toBe(6)
  })

  test('thousands of requests by callers at once are counted exactly', async () => {
    const provider = await start({ keys: '24h' })
    const callers = Array.from({ length: 32 }, async (_, caller) => {
      for (let index = 0; index < 150; index += 1)
        await attempt(provider, { reference: `r-${caller}-${index % 75}`, key: `k-${caller}-${index % 75}` })
    })
    await Promise.all(callers)
    expect(provider.requests()).toHaveLength(4_800)
    expect(provider.count()).toBe(2_400)
  }, 60_000)

  test('a caller that is killed in the middle of its request leaves the provider in order', async () => {
    const provider = await start({})
    provider.fault({ kind: 'heldBefore' })
    const child = spawn(process.execPath, [
      '-e',
      `fetch(${JSON.stringify(`${provider.url}/charges`)}, { method: 'POST', body: '{"amount":7,"reference":"order-7"}' })`,
    ])
    await provider.waitFor(({ held }) => held.length === 1)
    child.kill('SIGKILL')
    await once(child, 'exit')
    provider.release()
    await provider.waitFor(({ effects }) => effects.length === 1)
    expect((await attempt(provider, { reference: 'order-8' })).classified.kind).toBe('applied')
  })

  test('another process scripts faults, reads the ledger, moves the clock and waits', async () => {
    const provider = await start({ keys: 'stripe-v1' })
    const remote = remoteProvider(provider.controlUrl)
    await remote.fault({ kind: 'answerLost', reference: 'order-7' }, { kind: 'heldAfter', reference: 'order-8' })
    expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe('ambiguous')
    const waiting = remote.waitFor(({ held }) => held.length === 1)
    const held = attempt(provider, { reference: 'order-8', key: 'key-8' })
    expect((await waiting).held).toEqual([{ request: 2, reference: 'order-8', key: 'key-8' }])
    expect(await remote.release({ reference: 'order-8' })).toBe(1)
    await held
    expect(await remote.count()).toBe(2)
    expect(await remote.count('order-7')).toBe(1)
    expect(await remote.effects()).toEqual(provider.effects())
    expect((await remote.requests()).map(({ answer }) => answer)).toEqual(['lost', 200])
    await remote.advance(86_400_000)
    await attempt(provider, { reference: 'order-7', key: 'key-7' })
    expect(await remote.count('order-7')).toBe(2)
    await remote.forget()
    await remote.fault({ kind: 'failed' })
    await remote.clearFaults()
    expect((await attempt(provider, { reference: 'order-7', key: 'key-7' })).classified.kind).toBe('applied')
    expect(await remote.held()).toEqual([])
    await expect(remote.waitFor(() => false, { timeoutMs: 20 })).rejects.toThrow('not reached within 20 ms')
    await expect(remote.fault({ kind: 'nonsense' as 'failed' })).rejects.toThrow('fault.kind takes')
  })

  test('waitFor says what the state was, and ends with its signal', async () => {
    const provider = await start({})
    await attempt(provider, { reference: 'order-7' })
    await expect(provider.waitFor(({ effects }) => effects.length === 2, { timeoutMs: 20 })).rejects.toThrow(
      /not reached within 20 ms: 1 effects, 0 held, last requests: POST \/charges 200/,
    )
    await expect(provider.waitFor(() => false, { signal: AbortSignal.abort(new Error('enough')) })).rejects.toThrow(
      'enough',
    )
  })

  test('stop ends held and silent calls', async () => {
    const provider = await fakeProvider({ keys: 'none' })
    provider.fault({ kind: 'heldBefore' }, { kind: 'silentAfter' })
    const calls = ['a', 'b'].map((reference) => attempt(provider, { reference }))
    await provider.waitFor(
      ({ held, requests }) => held.length === 1 && requests.some(({ answer }) => answer === 'silent'),
    )
    await provider.stop()
    for (const { classified } of await Promise.all(calls)) expect(classified.kind).toBe('ambiguous')
  })

  test.each([
    [{ keys: 'v1' }, 'keys takes'],
    [{ lookUp: 'all' }, 'lookUp takes'],
    [{ lookUpDelayMs: -1 }, 'lookUpDelayMs takes'],
    [{ faults: { seed: 1, rate: 2 } }, 'faults.rate takes'],
    [{ faults: { seed: 1, rate: 1, kinds: [] } }, 'faults.kinds takes'],
    [{ modes: 1 }, 'unknown option'],
  ])('%j is refused: %s', async (options, message) => {
    await expect(fakeProvider(options as FakeProviderOptions)).rejects.toThrow(message)
  })

  test.each([
    [{ kind: 'nonsense' }, 'fault.kind takes'],
    [{}, 'fault.kind is missing'],
    [{ kind: 'failed', on: 'lookUp' }, 'fault.kind takes'],
    [{ kind: 'failed', times: 0 }, 'fault.times takes'],
    [{ kind: 'failed', who: 'me' }, 'unknown option'],
  ])('fault %j is refused: %s', async (fault, message) => {
    const provider = await start({})
    expect(() => provider.fault(fault as { kind: 'failed' })).toThrow(message)
  })
})

import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { eventually } from '../eventually.ts'
import { type Chromium, chromiumMissing, startChromium } from '../services/chromium.ts'
import { type Shop, startShop } from './shop.ts'
import { storageCases } from './storage-cases.ts'

describe.skipIf(chromiumMissing !== undefined)(
  'in Chromium, with the built files as they are',
  { timeout: 90_000 },
  () => {
    let shop: Shop
    let browser: Chromium
    let profile: string

    beforeAll(async () => {
      if (!existsSync('dist/client/index.js')) throw new Error('the package is not built: npm run build')
      shop = await startShop()
    })
    afterAll(() => shop.close())
    beforeEach(async () => {
      profile = await mkdtemp(join(tmpdir(), 'effectively-once-chromium-'))
      browser = await startChromium(profile)
    })
    afterEach(async () => {
      await browser.kill()
      await rm(profile, { recursive: true, force: true, maxRetries: 5 })
    })

    const STORAGES = { indexedDB: 'indexedDbStorage', localStorage: 'localStorageStorage' } as const
    type Kind = keyof typeof STORAGES

    /** What a page does, with the client imported and its storage open. */
    const page = (kind: Kind, work: string): string => `(async () => {
    const client = await import('/client/index.js')
    const storage = client.${STORAGES[kind]}()
    ${work}
  })()`
    const submit = (kind: Kind, customer: string): string =>
      page(
        kind,
        `const send = client.createOperation({ url: '/orders', body: { customer: '${customer}', cents: 4200 }, storage, label: 'cart' })
       return (await send()).state`,
      )
    const resume = (kind: Kind, options = ''): string =>
      page(
        kind,
        `const report = await client.resumeOperations({ storage, origins: [location.origin], ${options} })
       const results = []
       for (const { operation, result } of report.results) {
         const { state, replayed, attempts, reason } = result
         const body = result.response && (await result.response.json())
         results.push({ key: operation.key, label: operation.label, state, replayed, attempts, reason, body })
       }
       return { results, others: [report.failed.map(String), report.unreadable], left: (await storage.entries()).length }`,
      )
    const customerOf = (name: string) => `${name}-${Math.random().toString(36).slice(2)}`
    const ordersOf = async (customer: string) => (await shop.orders()).filter((order) => order.customer === customer)
    const requestsOf = (customer: string) => shop.requests.filter(({ body }) => body.includes(customer))

    describe.each<[Kind, 'the page' | 'the browser', 'before' | 'after']>([
      ['indexedDB', 'the page', 'after'],
      ['indexedDB', 'the page', 'before'],
      ['indexedDB', 'the browser', 'after'],
      ['indexedDB', 'the browser', 'before'],
      ['localStorage', 'the page', 'after'],
      ['localStorage', 'the page', 'before'],
    ])('%s, %s killed, %s the commit', (kind, killed, phase) => {
      test('R01, B123: submit, kill between send and answer, load again, resume: one order, one key, the same bytes', async () => {
        const customer = customerOf('kill')
        const held = shop.hold(phase)
        const first = await browser.open(shop.url)
        await first.start(submit(kind, customer))
        await held.reached
        if (killed === 'the page') await first.crash()
        else {
          await browser.kill()
          browser = await startChromium(profile)
        }
        held.release()

        const second = await browser.open(shop.url)
        const report = await second.evaluate(resume(kind))
        const [order, ...more] = await ordersOf(customer)
        expect(more).toEqual([])
        expect(report).toMatchObject({
          results: [{ label: 'cart', state: 'completed', body: { orderId: order?.id } }],
          others: [[], []],
          left: 0,
        })
        if (phase === 'after') expect(report).toMatchObject({ results: [{ replayed: true }] })
        const requests = requestsOf(customer)
        expect(requests.length).toBeGreaterThanOrEqual(2)
        expect(new Set(requests.map(({ key }) => key)).size).toBe(1)
        expect(new Set(requests.map(({ body }) => body)).size).toBe(1)
        expect(await second.evaluate(resume(kind))).toMatchObject({ results: [], left: 0 })
      })
    })

    test.each<Kind>(['indexedDB', 'localStorage'])(
      '%s: of two tabs one sends; the other leaves it alone, and goes on when the first has been closed',
      async (kind) => {
        const customer = customerOf('tabs')
        const held = shop.hold('after')
        const one = await browser.open(shop.url)
        await one.start(submit(kind, customer))
        await held.reached
        const two = await browser.open(shop.url)
        expect(await two.evaluate(resume(kind))).toMatchObject({
          results: [{ state: 'gaveUp', reason: 'held' }],
          left: 1,
        })
        expect(requestsOf(customer)).toHaveLength(1)
        await one.close()
        const seen: unknown[] = []
        await eventually('the lock of the closed tab is free', async () => {
          const report = await two.evaluate(resume(kind))
          seen.push(report)
          return !JSON.stringify(report).includes('"held"')
        })
        expect(seen.at(-1)).toMatchObject({ results: [{ state: 'completed', replayed: true }], left: 0 })
        held.release()
        expect(await ordersOf(customer)).toHaveLength(1)
      },
    )

    test.each<Kind>(['indexedDB', 'localStorage'])(
      '%s: without Web Locks a tab that died is waited for, for one step and no longer',
      async (kind) => {
        const customer = customerOf('leases')
        const noLocks = `void Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })`
        // Waiting moves this clock instead of taking time.
        const clock = `clock: (() => {
        let ahead = 0
        return { now: () => Date.now() + ahead, sleep: async (ms) => { globalThis.slept = (globalThis.slept ?? 0) + ms; ahead += ms } }
      })()`
        const held = shop.hold('after')
        const one = await browser.open(shop.url)
        await one.evaluate(noLocks)
        await one.start(submit(kind, customer))
        await held.reached
        await one.crash()
        held.release()
        const two = await browser.open(shop.url)
        await two.evaluate(noLocks)
        const report = await two.evaluate(resume(kind, clock))
        expect(report).toMatchObject({ results: [{ state: 'completed', replayed: true }], left: 0 })
        expect(await two.evaluate('slept')).toBeLessThanOrEqual(35_000)
        expect(await two.evaluate('slept')).toBeGreaterThan(0)
        expect(await ordersOf(customer)).toHaveLength(1)
      },
    )

    test.each<Kind>(['indexedDB', 'localStorage'])('storage %s: every case', async (kind) => {
      const tab = await browser.open(shop.url)
      const run = `(async () => {
      const client = await import('/client/index.js')
      const { storageCases } = await import('/storage-cases.js')
      const told = []
      for (const { name, run } of storageCases) {
        told.push(await run(() => client.${STORAGES[kind]}({ name: 'cases' })).then(() => name, (error) => name + ': ' + error))
      }
      return told
    })()`
      expect(await tab.evaluate(run)).toEqual(storageCases.map(({ name }) => name))
    })

    test('entries of a page’s own making are reported and not sent', async () => {
      const tab = await browser.open(shop.url)
      const before = shop.requests.length
      const put = page(
        'localStorage',
        `localStorage.setItem('effectively-once:operations:operation:k', '{"url":"/orders","body":"x"}')
       localStorage.setItem('mine', 'text')
       return (await client.pendingOperations({ storage })).unreadable`,
      )
      const entry = { id: 'k', reason: 'foreign', text: '{"url":"/orders","body":"x"}' }
      expect(await tab.evaluate(put)).toEqual([entry])
      expect(await tab.evaluate(resume('localStorage'))).toEqual({ results: [], others: [[], [entry]], left: 1 })
      expect(shop.requests).toHaveLength(before)
    })

    test('B127: on another origin a fresh answer, a replay, a mismatch and a no are told apart', async () => {
      const tab = await browser.open(shop.url)
      const customer = customerOf('cors')
      const call = (key: string, cents: number) =>
        page(
          'indexedDB',
          `const send = client.createOperation({ url: '${shop.otherUrl}/orders', key: '${key}', body: { customer: '${customer}', cents: ${cents} }, storage })
         const { state, replayed, problem, status, safeNewKey } = await send()
         return { state, replayed, code: problem?.code, status, safeNewKey }`,
        )
      const key = customer
      expect(await tab.evaluate(call(key, 1))).toMatchObject({ state: 'completed', replayed: false })
      expect(await tab.evaluate(call(key, 1))).toMatchObject({ state: 'completed', replayed: true })
      expect(await tab.evaluate(call(key, 2))).toMatchObject({
        state: 'refused',
        code: 'IDEMPOTENCY_KEY_REUSED',
        safeNewKey: false,
      })
      expect(await tab.evaluate(call(`${key}-2`, 20_000))).toMatchObject({ state: 'refused', status: 402 })
      expect(await ordersOf(customer)).toHaveLength(1)
    })

    test('a redirect that the browser hides is unknown, and stays in the storage', async () => {
      const tab = await browser.open(shop.url)
      const work = `const send = client.createOperation({ url: '/orders/moved', storage })
      const { state, reason } = await send()
      return { state, reason, left: (await storage.entries()).length }`
      expect(await tab.evaluate(page('indexedDB', work))).toEqual({ state: 'unknown', reason: 'redirect', left: 1 })
    })
  },
)

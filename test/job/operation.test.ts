/** One leased operation as its caller sees it: one run, one outcome, steps that are done once. */
import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { EffectRefused, type Op, rejected } from '../../src/index.ts'
import { identify } from '../../src/operation/identity.ts'
import { eventually } from '../eventually.ts'
import { type Charge, chargeAndBook, chargeEffect, defineCharge, LEASE_MS, SCOPE } from './charge.ts'
import { type JobSetup, openJobs } from './setup.ts'

let setup: JobSetup

beforeAll(async () => {
  setup = await openJobs()
})

afterAll(() => setup.close())

const chargeOf = (parts: Partial<Charge> = {}): Charge => ({ reference: randomUUID(), delivery: 'keyed', ...parts })
const operationOf = (charge: Charge) => ({ scope: SCOPE, key: charge.reference, payload: charge })
const posts = (reference: string) =>
  setup.provider.requests().filter((request) => request.method === 'POST' && request.reference === reference)

describe('once.run', () => {
  test('SC49: a second run gets the first outcome without running, and with another input it is a mismatch', async () => {
    const once = setup.once()
    const charge = chargeOf()
    let runs = 0
    const handler = (op: Op<pg.PoolClient>) => {
      runs += 1
      return chargeAndBook(op, setup.at, charge)
    }
    const first = await once.run(operationOf(charge), handler)
    expect(first).toMatchObject({ state: 'succeeded', replayed: false })
    expect(await once.run(operationOf(charge), handler)).toEqual({ ...first, replayed: true })
    await expect(once.run({ ...operationOf(charge), payload: 'other' }, handler)).rejects.toMatchObject({
      code: 'IDEMPOTENCY_KEY_REUSED',
    })
    expect(runs).toBe(1)
    expect(setup.provider.count(charge.reference)).toBe(1)
    expect(await setup.booked(charge.reference)).toHaveLength(1)
    expect(await setup.messages(charge.reference)).toBe(1)
  })

  test('SC49: a transaction under the key of a leased operation gets its outcome, and the other way round', async () => {
    const once = setup.once()
    const operation = { scope: SCOPE, key: randomUUID(), payload: 1 }
    await once.run(operation, () => 'leased')
    expect(await once.transaction(operation, () => 'never')).toMatchObject({ value: 'leased', replayed: true })
    const other = { scope: SCOPE, key: randomUUID(), payload: 1 }
    await once.transaction(other, () => 'in a transaction')
    expect(await once.run(other, () => 'never')).toMatchObject({ value: 'in a transaction', replayed: true })
  })

  test('PROTOCOL C12, B107: a step inside a step is refused at once, and an operation of its own is not', async () => {
    const once = setup.once()
    const nested = { code: 'NESTED_OPERATION' }
    const run = (handler: (op: Op<pg.PoolClient>) => unknown) =>
      once.run({ scope: SCOPE, key: randomUUID(), payload: null }, handler)
    await expect(run((op) => op.memo('out', () => op.memo('in', () => 1)))).rejects.toMatchObject(nested)
    let inside: unknown
    const effect = { request: null, delivery: 'at-most-once' } as const
    const calls = (op: Op<pg.PoolClient>) =>
      op.effect('out', {
        ...effect,
        call: () => op.memo('in', () => 1).catch((error: unknown) => void (inside = error)),
      })
    await run(calls)
    expect(inside).toMatchObject(nested)
    const other = (op: Op<pg.PoolClient>) =>
      op.effect('out', { ...effect, call: async () => (await run((inner) => inner.memo('in', () => 7))).value })
    expect(await run(other)).toMatchObject({ value: 7 })
    const after: Promise<number>[] = []
    const later = (op: Op<pg.PoolClient>) =>
      op
        .memo('out', () => void setImmediate(() => after.push(op.memo('in', () => 8))))
        .then(() => eventually('the second is started', () => after.length > 0))
        .then(() => after[0])
    expect(await run(later)).toMatchObject({ value: 8 })
  })

  test('I4: while it runs, the same payload is told that it is in progress, and another one that it is a mismatch', async () => {
    const once = setup.once()
    const charge = chargeOf()
    setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
    const running = once.run(operationOf(charge), (op) => chargeAndBook(op, setup.at, charge))
    await setup.provider.waitFor(({ held }) => held.some(({ reference }) => reference === charge.reference))
    const others = setup.once()
    await expect(others.run(operationOf(charge), () => 'never')).rejects.toMatchObject({
      code: 'OPERATION_IN_PROGRESS',
    })
    await expect(others.transaction(operationOf(charge), () => 'never')).rejects.toMatchObject({
      code: 'OPERATION_IN_PROGRESS',
    })
    await expect(others.run({ ...operationOf(charge), payload: 'other' }, () => 'never')).rejects.toMatchObject({
      code: 'IDEMPOTENCY_KEY_REUSED',
    })
    const waiting = others.run(operationOf(charge), () => 'never', { whenInProgress: 'wait', waitMs: 20_000 })
    setup.provider.release({ reference: charge.reference })
    const first = await running
    expect(await waiting).toEqual({ ...first, replayed: true })
  })

  test('an operation whose handler throws is resumed behind its last finished step', async () => {
    const once = setup.once()
    const charge = chargeOf()
    let memos = 0
    const run = (fails: boolean) =>
      once.run(operationOf(charge), async (op) => {
        const { id } = await op.effect('charge', chargeEffect(setup.at, charge))
        const random = await op.memo('random', () => {
          memos += 1
          return randomUUID()
        })
        const booking = await op.transaction('book', async ({ tx }) => {
          await tx.query('insert into bookings (ref, charge) values ($1, $2)', [charge.reference, id])
          return { id, random }
        })
        if (fails) throw new RangeError('the handler fails')
        return { booking, random }
      })
    await expect(run(true)).rejects.toThrow(RangeError)
    const { value } = await run(false)
    expect(value).toMatchObject({ booking: { random: value?.random } })
    expect(memos).toBe(1)
    expect(posts(charge.reference)).toHaveLength(1)
    expect(await setup.booked(charge.reference)).toHaveLength(1)
  })

  test('SC55: a transient database error in a step is tried again, and not recorded as its result', async () => {
    const once = setup.once()
    const key = randomUUID()
    const tries: string[] = []
    const faults = [
      `do $$ begin raise exception 'conflict' using errcode = '40001'; end $$`,
      'select pg_terminate_backend(pg_backend_pid())',
    ]
    const run = () =>
      once.run({ scope: SCOPE, key, payload: key }, (op) =>
        op.transaction('book', async ({ tx }) => {
          tries.push('try')
          await tx.query('insert into bookings (ref) values ($1)', [key])
          const fault = faults.shift()
          if (fault !== undefined) await tx.query(fault)
          return tries.length
        }),
      )
    expect(await run()).toMatchObject({ state: 'succeeded', value: 3 })
    expect(await setup.booked(key)).toHaveLength(1)
    expect(tries).toHaveLength(3)
  })

  test('SC55: an error of the work is not recorded either: the next run does the step', async () => {
    const once = setup.once()
    const key = randomUUID()
    const run = (text: string) =>
      once.run({ scope: SCOPE, key, payload: key }, (op) =>
        op.transaction('book', async ({ tx }) => {
          await tx.query('insert into bookings (ref) values ($1)', [key])
          await tx.query(text)
          return 'booked'
        }),
      )
    await expect(run('select 1 / 0')).rejects.toMatchObject({ code: '22012' })
    expect(await setup.booked(key)).toHaveLength(0)
    expect(await run('select 1')).toMatchObject({ value: 'booked', replayed: false })
    expect(await setup.booked(key)).toHaveLength(1)
  })

  test('R13: a rejection is an outcome, and a provider’s final no is one too', async () => {
    const once = setup.once()
    const operation = { scope: SCOPE, key: randomUUID(), payload: 1 }
    const no = await once.run(operation, () => rejected({ code: 'CREDIT_LIMIT' }))
    expect(no).toMatchObject({ state: 'rejected', rejection: { code: 'CREDIT_LIMIT' } })
    expect(await once.run(operation, () => 'never')).toEqual({ ...no, replayed: true })

    const charge = chargeOf()
    const declined = (op: Op<pg.PoolClient>) =>
      op.effect('charge', {
        ...chargeEffect(setup.at, charge),
        request: { amount: 100, currency: 'eur', reference: charge.reference, decline: true },
      })
    const refused = await once.run(operationOf(charge), declined)
    expect(refused).toMatchObject({ state: 'rejected', replayed: false })
    expect(await once.run(operationOf(charge), declined)).toEqual({ ...refused, replayed: true })
    expect(posts(charge.reference)).toHaveLength(1)
    expect(setup.provider.count(charge.reference)).toBe(0)
  })

  test('a handler may catch the provider’s no and go on; the no is found again when it is resumed', async () => {
    const once = setup.once()
    const charge = chargeOf()
    const run = (fails: boolean) =>
      once.run(operationOf(charge), async (op) => {
        const answer = await op
          .effect('charge', {
            ...chargeEffect(setup.at, charge),
            request: { amount: 100, currency: 'eur', reference: charge.reference, decline: true },
          })
          .catch((error: unknown) => {
            if (error instanceof EffectRefused) return { id: `no ${error.refusal.codes[0]}` }
            throw error
          })
        if (fails) throw new RangeError('the handler fails')
        return answer.id
      })
    await expect(run(true)).rejects.toThrow(RangeError)
    expect(await run(false)).toMatchObject({ state: 'succeeded', value: 'no card_declined' })
    expect(posts(charge.reference)).toHaveLength(1)
  })

  test('changed code does not run over the stored history of another one', async () => {
    const once = setup.once()
    const charge = chargeOf()
    const run = (handler: (op: Op<pg.PoolClient>) => Promise<unknown>) => once.run(operationOf(charge), handler)
    await expect(
      run(async (op) => {
        await op.effect('charge', chargeEffect(setup.at, charge))
        throw new RangeError('the handler fails')
      }),
    ).rejects.toThrow(RangeError)
    const changes: ((op: Op<pg.PoolClient>) => Promise<unknown>)[] = [
      (op) => op.transaction('charge', () => 'another type'),
      (op) => op.transaction('first', () => 'another step before it'),
      (op) =>
        op.effect('charge', {
          ...chargeEffect(setup.at, charge),
          request: { amount: 999, currency: 'eur', reference: charge.reference },
        }),
    ]
    for (const change of changes) await expect(run(change)).rejects.toMatchObject({ code: 'STEP_CHANGED' })
    expect(posts(charge.reference)).toHaveLength(1)
  })

  test('B16: lease lengths that are none are refused, and a claim has a finite lease in the future', async () => {
    const once = setup.once()
    const operation = { scope: ['acme', 'leases'], key: randomUUID(), payload: 1 }
    for (const leaseMs of [0, -1, Number.NaN, 1, 1.5, 315_360_000_000, Number.POSITIVE_INFINITY]) {
      await expect(Promise.resolve().then(() => once.run(operation, () => 1, { leaseMs }))).rejects.toThrow(TypeError)
      expect(() => once.define('charge.wrong', { handler: () => 1, leaseMs })).toThrow(TypeError)
    }
    expect(await setup.jobs(['acme', 'leases'])).toEqual([])
    let leases: unknown
    await once.run(
      operation,
      async () => {
        const { rows } = await setup.admin.query(
          `select isfinite(lease_until) and lease_until > clock_timestamp()
             and lease_until <= clock_timestamp() + $2::int * interval '1 millisecond' as "isLive"
           from effectively_once.operation where scope = $1 and state = 'processing'`,
          ['["acme","leases"]', LEASE_MS],
        )
        leases = rows
      },
      { leaseMs: LEASE_MS },
    )
    expect(leases).toEqual([{ isLive: true }])
  })

  test('R15: an effect inside a transaction, and an operation inside an operation, are refused', async () => {
    const once = setup.once()
    const charge = chargeOf()
    await expect(
      once.run(operationOf(charge), (op) =>
        op.transaction('book', () => op.effect('charge', chargeEffect(setup.at, charge))),
      ),
    ).rejects.toMatchObject({ code: 'NESTED_OPERATION' })
    expect(posts(charge.reference)).toHaveLength(0)
  })

  test('keys for systems further on are the same for ever, and differ by name and operation', async () => {
    const once = setup.once()
    const keysOf = async (key: string) => {
      const keys: string[] = []
      const run = (fails: boolean) =>
        once.run({ scope: SCOPE, key, payload: key }, (op) => {
          keys.push(op.downstreamKey('mail'), op.downstreamKey('stock'))
          if (fails) throw new RangeError('the handler fails')
        })
      await expect(run(true)).rejects.toThrow(RangeError)
      await run(false)
      return keys
    }
    const [one, other] = [await keysOf(randomUUID()), await keysOf(randomUUID())]
    expect(one.slice(0, 2)).toEqual(one.slice(2))
    expect(new Set([...one, ...other]).size).toBe(4)
  })
})

describe('kinds', () => {
  test('SC49, SC52, B28: a job is stored once; a running job with the key swallows no other payload and no other kind', async () => {
    const once = setup.once()
    const kind = defineCharge(once, setup.at)
    const charge = chargeOf()
    setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
    const job = operationOf(charge)
    expect(await kind.start(job)).toBe('started')
    expect(await kind.start(job)).toBe('exists')
    const worker = once.worker({ kinds: [kind], pollMs: 100 })
    await worker.start()
    await setup.provider.waitFor(({ held }) => held.some(({ reference }) => reference === charge.reference))
    expect(await kind.start(job)).toBe('exists')
    const other = { ...job, payload: { ...charge, delivery: 'reconciled' as const } }
    await expect(kind.start(other)).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
    const another = once.define('charge.another', { handler: (_op, _payload: Charge) => 'never' })
    await expect(another.start(job)).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
    // While somebody holds it nothing more is told; what matters is that its own handler goes on.
    await expect(another.run(job)).rejects.toMatchObject({
      code: expect.stringMatching(/^(IDEMPOTENCY_KEY_REUSED|OPERATION_IN_PROGRESS)$/),
    })
    const waiting = kind.run(job, { whenInProgress: 'wait', waitMs: 20_000 })
    setup.provider.release({ reference: charge.reference })
    expect(await waiting).toMatchObject({ state: 'succeeded', replayed: true })
    await worker.stop()
    expect(await kind.start(job)).toBe('exists')
    expect(setup.provider.count(charge.reference)).toBe(1)
  })

  test('SC52: a job that waits is kept, refused, replaced, or replaced at the time of the first; one that runs swallows nothing', async () => {
    const once = setup.once()
    const scope = ['acme', 'reminder']
    const ran: string[] = []
    const go = new AbortController()
    const kind = once.define('reminder.send', {
      handler: async (_op, { text }: { readonly text: string }) => {
        ran.push(text)
        if (text === 'runs') await new Promise((resolve) => go.signal.addEventListener('abort', resolve))
        return text
      },
    })
    const job = (key: string, text: string) => ({ scope, key, payload: { text } })
    const hour = { delayMs: 3_600_000 }
    const dueInMs = async (key: string) =>
      (await once.unfinished({ states: ['processing'] })).find(({ id }) => id === identify(scope, key).id)?.dueInMs
    expect(await kind.start(job('a', 'one'), hour)).toBe('started')
    await expect(kind.start(job('a', 'two'))).rejects.toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED' })
    expect(await kind.start(job('a', 'three'), { whenExists: 'keepTime' })).toBe('replaced')
    expect(await dueInMs('a')).toBeGreaterThan(1_800_000)
    expect(await kind.start(job('b', 'one'), { ...hour, whenExists: 'replace' })).toBe('started')
    expect(await kind.start(job('b', 'two'), { whenExists: 'replace' })).toBe('replaced')
    expect(await dueInMs('b')).toBe(0)
    const client = await setup.admin.connect()
    await client.query('begin')
    expect(await kind.startIn(client, job('b', 'three'), { whenExists: 'replace' })).toBe('replaced')
    await expect(kind.start(job('b', 'four'), { whenExists: 'replace' })).rejects.toMatchObject({
      code: 'OPERATION_IN_PROGRESS',
    })
    await client.query('commit')
    client.release()
    expect(await kind.start(job('c', 'runs'))).toBe('started')
    const worker = once.worker({ kinds: [kind], pollMs: 20 })
    await worker.start()
    await eventually('it runs', () => ran.includes('runs'))
    for (const whenExists of ['refuse', 'replace', 'keepTime'] as const) {
      expect(await kind.start(job('c', 'runs'), { whenExists })).toBe('exists')
      await expect(kind.start(job('c', 'newer'), { whenExists })).rejects.toMatchObject({
        code: 'IDEMPOTENCY_KEY_REUSED',
      })
    }
    go.abort()
    await worker.drain()
    await worker.stop()
    expect(ran.toSorted()).toEqual(['runs', 'three'])
    expect(await kind.run(job('b', 'three'))).toMatchObject({ value: 'three', replayed: true })
    await expect(kind.start(job('c', 'newer'), { whenExists: 'replace' })).rejects.toMatchObject({
      code: 'IDEMPOTENCY_KEY_REUSED',
    })
  })

  test('B28: a job that waits is never taken by the handler of another kind, nor by a closure', async () => {
    const once = setup.once()
    const kind = defineCharge(once, setup.at)
    const another = once.define('charge.another', { handler: (_op, _payload: Charge) => 'never' })
    const charge = chargeOf()
    await kind.start(operationOf(charge))
    const reused = { code: 'IDEMPOTENCY_KEY_REUSED' }
    await expect(another.run(operationOf(charge))).rejects.toMatchObject(reused)
    await expect(once.run(operationOf(charge), () => 'never')).rejects.toMatchObject(reused)
    expect(await kind.run(operationOf(charge))).toMatchObject({ state: 'succeeded', replayed: false })
    expect(await setup.booked(charge.reference)).toHaveLength(1)
  })

  test('B27: a job exists if and only if the transaction that started it commits', async () => {
    const once = setup.once()
    const kind = defineCharge(once, setup.at)
    const charge = chargeOf()
    const [one, other] = [await setup.admin.connect(), await setup.admin.connect()]
    try {
      await one.query('begin')
      await other.query('begin')
      expect(await kind.startIn(one, operationOf(charge))).toBe('started')
      await expect(kind.startIn(other, operationOf(charge))).rejects.toMatchObject({
        code: 'OPERATION_IN_PROGRESS',
        retryable: true,
      })
      await expect(kind.start(operationOf(charge))).rejects.toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
      await one.query('rollback')
      await other.query('rollback')
      await other.query('begin')
      expect(await kind.startIn(other, operationOf(charge))).toBe('started')
      await other.query('commit')
    } finally {
      one.release()
      other.release()
    }
    expect(await kind.start(operationOf(charge))).toBe('exists')
    const worker = once.worker({ kinds: [kind], pollMs: 100 })
    await worker.start()
    await worker.drain()
    await worker.stop()
    expect(await setup.booked(charge.reference)).toHaveLength(1)
  })
})

/** Leases between processes: races for one key, owners that die, stop, or are cut off, and clocks that are wrong. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { tcpProxy } from '../../src/testing/services/tcp-proxy.ts'
import { eventually } from '../eventually.ts'
import type { JobAnswer } from '../processes/job.ts'
import { type Charge, chargeAndBook, defineCharge, LEASE_MS, SCOPE } from './charge.ts'
import { type JobChild, startJobChild, stateOf } from './child.ts'
import { type JobSetup, openJobs } from './setup.ts'

const ACT = { actor: 'ops@example.com', reason: 'the handler is mended' }
const BEFORE_CALL = JSON.stringify({ step: 'http.post', nth: 1 })

let setup: JobSetup

beforeAll(async () => {
  setup = await openJobs()
})

afterAll(() => setup.close())

const chargeOf = (delivery: Charge['delivery'] = 'keyed'): Charge => ({ reference: randomUUID(), delivery })
const operationOf = (charge: Charge) => ({ scope: SCOPE, key: charge.reference, payload: charge })
const posts = ({ reference }: Charge) =>
  setup.provider.requests().filter((request) => request.method === 'POST' && request.reference === reference)
const isHeld = ({ reference }: Charge) =>
  setup.provider.waitFor(({ held }) => held.some((request) => request.reference === reference), { timeoutMs: 60_000 })

/** Operations that are not finished. */
async function unfinishedRows(): Promise<
  readonly { readonly state: string; readonly claims: number; readonly isLeased: boolean }[]
> {
  const { rows } = await setup.admin.query(
    `select state, claims, coalesce(lease_until > clock_timestamp(), false) as "isLeased"
     from effectively_once.operation where state in ('processing', 'unknown', 'parked') order by created_at`,
  )
  return rows
}

/** One effect, one booking, one message. */
async function expectOnce(charge: Charge): Promise<void> {
  expect(setup.provider.count(charge.reference)).toBe(1)
  expect(await setup.booked(charge.reference)).toHaveLength(1)
  expect(await setup.messages(charge.reference)).toBe(1)
}

describe('races', () => {
  test('SC50, B28: forty callers in two processes start one operation: one runs, all get its outcome', async () => {
    const children = await Promise.all([startJobChild(setup), startJobChild(setup)])
    for (const act of ['run', 'kind'] as const) {
      const charge = chargeOf()
      const answers = await Promise.all(
        children.flatMap((child) => Array.from({ length: 20 }, () => child.ask({ act, charge, waits: true }))),
      )
      expect(answers.filter(({ replayed }) => replayed === false)).toHaveLength(1)
      expect(answers.filter(({ replayed }) => replayed === true)).toHaveLength(39)
      expect(new Set(answers.map(({ value }) => JSON.stringify(value))).size).toBe(1)
      expect(posts(charge)).toHaveLength(1)
      await expectOnce(charge)
    }
    await Promise.all(children.map((child) => child.stop()))
  }, 120_000)

  test('SC3: of 32 contenders for the lease of a dead owner exactly one goes on', async () => {
    const charge = chargeOf()
    const dead = await startJobChild(setup, { KILL_AT: BEFORE_CALL })
    dead.send({ act: 'run', charge }, () => {})
    await dead.gone
    const contenders = Array.from({ length: 8 }, () => setup.once({ max: 2 }))
    let runs = 0
    await setup.advance(LEASE_MS)
    const answers = await Promise.allSettled(
      Array.from({ length: 32 }, (_, index) =>
        (contenders[index % contenders.length] ?? setup.once()).run(
          operationOf(charge),
          (op) => {
            runs += 1
            return chargeAndBook(op, setup.at, charge)
          },
          { leaseMs: 30_000 },
        ),
      ),
    )
    expect(runs).toBe(1)
    const outcomes = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value] : []))
    expect(outcomes.filter(({ replayed }) => !replayed)).toHaveLength(1)
    for (const answer of answers) {
      if (answer.status === 'rejected') expect(answer.reason).toMatchObject({ code: 'OPERATION_IN_PROGRESS' })
    }
    await expectOnce(charge)
  }, 60_000)
})

describe('owners that go on', () => {
  test('SC6: a slow handler stays alone past several lease lengths', async () => {
    const once = setup.once()
    const charge = chargeOf()
    setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
    const leases = new Set<string>()
    const running = once.run(operationOf(charge), (op) => chargeAndBook(op, setup.at, charge, { timeoutMs: 60_000 }), {
      leaseMs: LEASE_MS,
    })
    await isHeld(charge)
    const rival = setup.once()
    await eventually('the lease has been renewed for several of its lengths', async () => {
      const { rows } = await setup.admin.query(
        `select floor(extract(epoch from lease_until) * 1000 / $1)::text as length
         from effectively_once.operation where state = 'processing' and lease_until > clock_timestamp()`,
        [LEASE_MS],
      )
      for (const { length } of rows) leases.add(length)
      await expect(rival.run(operationOf(charge), () => 'never')).rejects.toMatchObject({
        code: 'OPERATION_IN_PROGRESS',
      })
      return leases.size >= 4
    })
    setup.provider.release({ reference: charge.reference })
    expect(await running).toMatchObject({ state: 'succeeded', replayed: false })
    await expectOnce(charge)
  }, 60_000)

  test('SC7, SC47, B21, I5: an owner that is stopped beyond its lease finds itself replaced and stores nothing', async () => {
    const charge = chargeOf()
    const stopped = await startJobChild(setup, { STOP_AT: BEFORE_CALL })
    const answers: JobAnswer[] = []
    stopped.send({ act: 'kind', charge }, (answer) => answers.push(answer))
    await eventually('the owner stands still', async () => (await stateOf(stopped)) === 'T')
    const once = setup.once()
    const kind = defineCharge(once, setup.at)
    const worker = once.worker({ kinds: [kind], pollMs: 100 })
    await worker.start()
    await eventually('the successor has finished', async () => (await setup.booked(charge.reference)).length === 1)
    await worker.stop()
    const outcome = await kind.run(operationOf(charge))
    stopped.process.kill('SIGCONT')
    await eventually('the late owner has an answer', () => answers.length > 0)
    // It may find its successor's outcome, and has none of its own.
    const [late] = answers
    if (late?.error === undefined) expect(late).toMatchObject({ value: outcome.value, replayed: true })
    else expect(late.error).toBe('LEASE_LOST')
    expect(new Set(posts(charge).map(({ key }) => key)).size).toBe(1)
    await expectOnce(charge)
    // The process is as good as before.
    expect(await stopped.ask({ act: 'kind', charge })).toMatchObject({ value: outcome.value, replayed: true })
    await stopped.stop()
  }, 90_000)

  test('SC7, I5: an owner whose event loop was blocked beyond its lease calls nobody any more and is told', async () => {
    const charge = chargeOf()
    const blocked = await startJobChild(setup)
    await blocked.ask({ act: 'start', charge })
    const answers: JobAnswer[] = []
    blocked.send({ act: 'blocks', charge }, (answer) => answers.push(answer))
    await eventually('it has claimed', async () =>
      (await unfinishedRows()).some(({ claims, isLeased }) => isLeased && claims === 1),
    )
    const heir = await startJobChild(setup)
    heir.send({ act: 'work', charge }, () => {})
    await eventually('it is told', () => answers.some(({ error }) => error === 'LEASE_LOST'))
    await eventually('the work is done', async () => (await setup.booked(charge.reference)).length === 1)
    expect(posts(charge)).toHaveLength(1)
    await expectOnce(charge)
    await Promise.all([blocked.stop(), heir.stop()])
  }, 60_000)

  test('B21, B25, I5: an owner that is cut off has aborted by itself before anybody else goes on', async () => {
    const { port } = new URL(setup.url)
    const proxy = await tcpProxy({ target: { port: Number(port) } })
    const charge = chargeOf()
    let started: () => void = () => {}
    const isStarted = new Promise<void>((resolve) => {
      started = resolve
    })
    let signal: AbortSignal | undefined
    const cutOff = setup.once(
      { connectionString: proxy.through(setup.url), connectionTimeoutMillis: 1_000 },
      { answerTimeoutMs: 1_000, acquireTimeoutMs: 1_000 },
    )
    const late = cutOff.run(
      operationOf(charge),
      async (op) => {
        signal = op.signal
        started()
        await new Promise((resolve) => op.signal.addEventListener('abort', resolve, { once: true }))
        return await chargeAndBook(op, setup.at, charge)
      },
      { leaseMs: 3_000 },
    )
    const told = late.then(
      () => 'an outcome',
      (error: unknown) => (error as { code?: string }).code,
    )
    await isStarted
    proxy.silence()
    proxy.refuse()
    let wasAborted: boolean | undefined
    const outcome = await setup.once().run(
      operationOf(charge),
      (op) => {
        wasAborted = signal?.aborted
        return chargeAndBook(op, setup.at, charge)
      },
      { whenInProgress: 'wait', waitMs: 60_000 },
    )
    expect(wasAborted).toBe(true)
    expect(outcome).toMatchObject({ state: 'succeeded', replayed: false })
    expect(await told).toBe('LEASE_LOST')
    expect(posts(charge)).toHaveLength(1)
    await expectOnce(charge)
    await proxy.close()
  }, 90_000)

  test.each([300_000, 3_600_000])(
    'SC57, T12, I14: processes whose clocks are %s ms wrong neither take a held lease nor lose their own',
    async (shiftMs) => {
      const [ahead, behind] = await Promise.all([
        startJobChild(setup, { SHIFT_MS: String(shiftMs) }),
        startJobChild(setup, { SHIFT_MS: String(-shiftMs) }),
      ])
      for (const [owner, rival] of [
        [ahead, behind],
        [behind, ahead],
      ] as const) {
        const charge = chargeOf()
        setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
        const running = owner.ask({ act: 'run', charge })
        await isHeld(charge)
        // Longer than a lease: the rival asks until the owner has renewed twice.
        const fences = new Set<string>()
        await eventually('the lease was renewed', async () => {
          expect(await rival.ask({ act: 'run', charge })).toMatchObject({ error: 'OPERATION_IN_PROGRESS' })
          const { rows } = await setup.admin.query(
            `select lease_until::text from effectively_once.operation where state = 'processing'`,
          )
          for (const { lease_until } of rows) fences.add(lease_until)
          return fences.size >= 4
        })
        const waiting = rival.ask({ act: 'run', charge, waits: true })
        setup.provider.release({ reference: charge.reference })
        expect(await running).toMatchObject({ replayed: false })
        expect(await waiting).toMatchObject({ replayed: true })
        await expectOnce(charge)
      }
      await Promise.all([ahead.stop(), behind.stop()])
    },
    120_000,
  )

  test.each([300_000, -300_000])(
    'SC57, SC3: a process whose clock is %s ms wrong takes a dead owner’s operation over, once its lease is over',
    async (shiftMs) => {
      const charge = chargeOf()
      const dead = await startJobChild(setup, { KILL_AT: BEFORE_CALL, SHIFT_MS: String(-shiftMs) })
      dead.send({ act: 'kind', charge }, () => {})
      await dead.gone
      const heir = await startJobChild(setup, { SHIFT_MS: String(shiftMs) })
      expect(await heir.ask({ act: 'kind', charge, waits: true })).toMatchObject({ replayed: false })
      await expectOnce(charge)
      await heir.stop()
    },
    60_000,
  )
})

describe('workers', () => {
  test('I12: what a killed owner left is taken up by a worker of another process, without anybody calling', async () => {
    const charge = chargeOf()
    const dead = await startJobChild(setup, { KILL_AT: BEFORE_CALL })
    expect(await dead.ask({ act: 'start', charge })).toMatchObject({ value: 'started' })
    dead.send({ act: 'work', charge }, () => {})
    expect(await dead.gone).toMatchObject({ signal: 'SIGKILL' })
    const worker = await startJobChild(setup)
    worker.send({ act: 'work', charge }, () => {})
    await eventually('the work is done', async () => (await setup.booked(charge.reference)).length === 1)
    await expectOnce(charge)
    await worker.stop()
  }, 60_000)

  test('SC54, I15, I16: what kills its workers is parked after N claims, and goes on after an audited redrive only', async () => {
    const charge = chargeOf()
    const once = setup.once()
    const kind = defineCharge(once, setup.at)
    await kind.start(operationOf(charge))
    const claimsMax = 2
    for (let deaths = 0; deaths < claimsMax; deaths += 1) {
      const child = await startJobChild(setup)
      child.send({ act: 'deadly', charge, claimsMax }, () => {})
      expect(await child.gone).toMatchObject({ signal: 'SIGKILL' })
      await setup.advance(LEASE_MS)
    }
    const sound = await startJobChild(setup)
    sound.send({ act: 'deadly', charge, claimsMax }, () => {})
    let id = ''
    await eventually('it is parked', async () => {
      const [parked] = await once.unfinished({ states: ['parked'] })
      id = parked?.id ?? ''
      return parked !== undefined
    })
    await sound.stop()
    await expect(kind.run(operationOf(charge))).rejects.toMatchObject({ code: 'OPERATION_PARKED' })
    expect((await once.history({ id })).map(({ event }) => event)).toEqual(['takenOver', 'parked'])
    expect(posts(charge)).toHaveLength(0)

    expect(await once.redrive({ id }, ACT)).toBe('redriven')
    const { rows } = await setup.admin.query('select actor, reason from effectively_once.audit where subject like $1', [
      `%${id}%`,
    ])
    expect(rows).toEqual([ACT])
    const worker = once.worker({ kinds: [kind], pollMs: 100 })
    await worker.start()
    await eventually('the work is done', async () => (await setup.booked(charge.reference)).length === 1)
    await worker.stop()
    await expectOnce(charge)
  }, 120_000)

  test('B32: a worker that is told to stop gives back what it has not finished; it is due at once and costs no claim', async () => {
    const charge = chargeOf()
    setup.provider.fault({ kind: 'heldBefore', reference: charge.reference })
    const deployed: JobChild = await startJobChild(setup)
    await deployed.ask({ act: 'start', charge })
    deployed.send({ act: 'work', charge }, () => {})
    await isHeld(charge)
    deployed.process.kill('SIGTERM')
    expect(await deployed.gone).toMatchObject({ code: 0 })
    const [row] = (await unfinishedRows()).slice(-1)
    expect(row).toMatchObject({ state: expect.stringMatching(/processing|unknown/), claims: 0, isLeased: false })
    setup.provider.release({ reference: charge.reference })
    const next = await startJobChild(setup)
    next.send({ act: 'work', charge }, () => {})
    await eventually('the work is done', async () => (await setup.booked(charge.reference)).length === 1)
    await expectOnce(charge)
    await next.stop()
  }, 90_000)

  test('B34: a worker whose connections are ended again and again goes on with what is due', async () => {
    const once = setup.once({ application_name: 'worker-of-b34' }, { answerTimeoutMs: 2_000 })
    const kind = defineCharge(once, setup.at)
    const worker = once.worker({ kinds: [kind], pollMs: 200 })
    await worker.start()
    const starter = setup.once()
    const elsewhere = defineCharge(starter, setup.at)
    for (let round = 0; round < 3; round += 1) {
      const charge = chargeOf()
      await setup.admin.query(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, [
        'worker-of-b34',
      ])
      await elsewhere.start(operationOf(charge))
      await eventually('the work is done', async () => (await setup.booked(charge.reference)).length === 1)
      await expectOnce(charge)
    }
    expect(worker.health()).toMatchObject({ state: 'running' })
    await worker.stop()
  }, 90_000)
})

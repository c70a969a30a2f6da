/**
 * One message at a time: applied once, acknowledged after the commit, set aside when it cannot be applied.
 */
import { randomUUID } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { unprocessable } from '../../src/inbox/unprocessable.ts'
import { eventually } from '../eventually.ts'
import { openScene, type Scene, STORES } from './scene.ts'

const ACT = { actor: 'ops@example.com', reason: 'the handler is mended' }

describe.each(Object.entries(STORES))('consumer on %s', (name, harness) => {
  let scene: Scene
  beforeEach(async () => {
    scene = await openScene(harness)
  })
  afterEach(() => scene.close())

  test('R30, R31: every message is applied once and acknowledged', async () => {
    const ids = await scene.publish(...Array.from({ length: 30 }, () => ({})))
    await scene.consume()
    await scene.settled()
    for (const id of ids) expect(await scene.applied(id)).toBe(1)
    expect(scene.told('applied').length).toBe(30)
  })

  test('R31, SC43: nothing is acknowledged before the commit', async () => {
    const [id] = await scene.publish({})
    let lengthInside: number | undefined
    await scene.consume({
      handle: async ({ tx, message }) => {
        await scene.write(tx, message.id)
        lengthInside = scene.queue.length
      },
    })
    await scene.settled()
    expect(lengthInside).toBe(1)
    expect(await scene.applied(id ?? '')).toBe(1)
  })

  test('R23, R30, R36: a message that the broker takes and delivers twice is applied once and recognised once', async () => {
    const id = randomUUID()
    await scene.publish({ id })
    await scene.consume()
    await scene.settled()
    await scene.publish({ id })
    await scene.settled()
    expect(await scene.applied(id)).toBe(1)
    expect(scene.told('duplicate').map((event) => event.id)).toEqual([id])
  })

  test('R30: the same message at the same moment, ten times, is applied once', async () => {
    const id = randomUUID()
    await scene.publish(...Array.from({ length: 10 }, () => ({ id })))
    await scene.consume({ concurrency: 10 })
    await scene.settled()
    expect(await scene.applied(id)).toBe(1)
    expect(scene.told('duplicate').length).toBe(9)
  })

  test('SC41: each consumer deduplicates for itself', async () => {
    const id = randomUUID()
    for (const consumer of ['billing', 'shipping']) {
      await scene.publish({ id })
      const running = await scene.consume({ name: consumer })
      await scene.settled()
      await running.stop()
    }
    expect(await scene.applied(id)).toBe(2)
  })

  test('R33, SC42: the same id with other content is quarantined and told, not swallowed', async () => {
    const id = randomUUID()
    await scene.publish({ id, payload: '{"amount":1}' })
    await scene.consume()
    await scene.settled()
    await scene.publish({ id, payload: '{"amount":2}' })
    await scene.settled()
    expect(await scene.applied(id)).toBe(1)
    expect(scene.told('mismatch').map((event) => event.id)).toEqual([id])
    const [entry] = await scene.inbox.listQuarantine({ limit: 10 })
    expect(entry).toMatchObject({ messageId: id, reason: 'mismatch' })
    const kept = await scene.inbox.readQuarantined(entry?.id ?? '')
    expect(Buffer.from(kept?.body ?? []).toString()).toBe('{"amount":2}')
  })

  test('B73: two bodies without an id are both quarantined, and neither counts as a duplicate', async () => {
    await scene.publish(
      { id: '', payload: '{"n":1}' },
      { id: ' ', payload: '{"n":2}' },
      { id: '00000000-0000-0000-0000-000000000000', payload: '{"n":2}' },
    )
    await scene.consume()
    await scene.settled()
    const entries = await scene.inbox.listQuarantine({ limit: 10 })
    expect(entries.map((entry) => entry.reason)).toEqual(['no-identity', 'no-identity', 'no-identity'])
    expect(scene.told('duplicate')).toEqual([])
    expect(scene.told('quarantined').map((event) => event.id)).toEqual([undefined, undefined, undefined])
  })

  test('R34: a body that does not parse is quarantined at once with its bytes, whatever the handler makes of it', async () => {
    await scene.publish({ id: 'bad', payload: '{"n":' }, { id: 'swallowed', payload: 'x' })
    await scene.consume({
      handle: async ({ tx, message }) => {
        try {
          expect(message.body).toBeDefined()
        } catch (error) {
          if (message.id === 'bad') throw new Error('wrapped', { cause: error })
        }
        await scene.write(tx, message.id)
      },
    })
    await scene.settled()
    const entries = await scene.inbox.listQuarantine({ limit: 10 })
    expect(entries.map((entry) => [entry.messageId, entry.reason])).toContainEqual(['bad', 'undecodable'])
    const bad = entries.find((entry) => entry.messageId === 'bad')
    expect(Buffer.from((await scene.inbox.readQuarantined(bad?.id ?? ''))?.body ?? []).toString()).toBe('{"n":')
    expect(await scene.applied('bad')).toBe(0)
    expect(scene.told('waiting')).toEqual([])
  })

  test('R34, R38, B73: a CloudEvent whose id is a number and that has no source is quarantined with its bytes', async () => {
    const payload = '{"specversion":"1.0","id":7,"type":"paid","data":{"a":1}}'
    await scene.publish({ id: 'native', contentType: 'application/cloudevents+json', payload })
    await scene.consume()
    await scene.settled()
    const [entry] = await scene.inbox.listQuarantine({ limit: 10 })
    expect(entry).toMatchObject({ reason: 'undecodable', lastError: expect.stringContaining('a CloudEvent needs id') })
    expect(Buffer.from((await scene.inbox.readQuarantined(entry?.id ?? ''))?.body ?? []).toString()).toBe(payload)
    expect([await scene.applied('native'), await scene.applied('7')]).toEqual([0, 0])
  })

  test('R34, B75: a failing message waits in the database, spaced out, and ends in quarantine with its history', async () => {
    let runs = 0
    const [, good] = await scene.publish({ id: 'bad' }, { id: 'good' })
    await scene.consume({
      attemptsMax: 4,
      concurrency: 1,
      handle: async ({ tx, message }) => {
        await scene.write(tx, message.id)
        if (message.id !== 'bad') return
        runs += 1
        expect(message.attempt).toBe(runs)
        expect(message.redelivered).toBe(runs > 1)
        throw new Error(`failure ${runs}`)
      },
    })
    await scene.settled()
    expect(await scene.applied(good ?? '')).toBe(1)
    await eventually('it is quarantined', async () => (await scene.inbox.listQuarantine({ limit: 1 })).length === 1)
    const [entry] = await scene.inbox.listQuarantine({ limit: 1 })
    expect(entry).toMatchObject({ messageId: 'bad', reason: 'exhausted', attempts: 4, lastError: 'Error: failure 4' })
    expect(entry?.history.length).toBe(4)
    expect(runs).toBe(4)
    expect(await scene.applied('bad')).toBe(0)
    expect(scene.told('waiting').map((event) => [event.reason, event.attempt])).toEqual([
      ['failed', 1],
      ['failed', 2],
      ['failed', 3],
    ])
  })

  test('R34: a message that fails once is applied by its second attempt, from the database', async () => {
    let runs = 0
    await scene.publish({ id: 'm' })
    const consumer = await scene.consume({
      handle: async ({ tx, message }) => {
        runs += 1
        await scene.write(tx, message.id)
        if (runs === 1) throw new Error('no')
      },
    })
    await eventually('it is applied', async () => (await scene.applied('m')) === 1)
    await consumer.drain()
    expect(await scene.inbox.listWaiting({ limit: 1 })).toEqual([])
    expect(runs).toBe(2)
  })

  test('R44: what the handler calls unprocessable is quarantined without another attempt', async () => {
    let runs = 0
    await scene.publish({ id: 'm' })
    await scene.consume({
      handle: () => {
        runs += 1
        throw unprocessable('no order')
      },
    })
    await scene.settled()
    expect(await scene.inbox.listQuarantine({ limit: 1 })).toMatchObject([{ reason: 'refused', messageId: 'm' }])
    expect(runs).toBe(1)
  })

  test('R34: a type without a handler waits, is never marked done, and comes when a handler is there', async () => {
    const [shipped] = await scene.publish({ topic: 'order.shipped.v1' })
    const [created] = await scene.publish({ topic: 'order.created.v1' })
    const apply = ({ tx, message }: { tx: unknown; message: { id: string } }) => scene.write(tx, message.id)
    const old = await scene.consume({ handlers: { 'order.created.v1': apply } })
    await scene.settled()
    await eventually('the known type is applied', async () => (await scene.applied(created ?? '')) === 1)
    expect(await scene.inbox.listWaiting({ limit: 10 })).toMatchObject([
      { reason: 'no-handler', attempts: 0, messageId: shipped },
    ])
    await old.drain()
    await old.stop()
    expect(await scene.applied(shipped ?? '')).toBe(0)
    await scene.consume({ handlers: { 'order.created.v1': apply, 'order.shipped.v1': apply } })
    await eventually('the new type is applied', async () => (await scene.applied(shipped ?? '')) === 1)
  })

  test('R34: a message whose handler was removed waits uncounted, however often it is looked at', async () => {
    await scene.publish({ id: 'm', topic: 'a' })
    const failing = await scene.consume({
      handlers: { a: () => Promise.reject(new Error('no')) },
      backoff: { minMs: 60_000 },
    })
    await scene.settled()
    await failing.stop()
    await scene.inbox.hasten('billing')
    await scene.consume({ handlers: { b: () => {} } })
    await eventually(
      'it is set aside',
      async () => (await scene.inbox.listWaiting({ limit: 1 }))[0]?.reason === 'no-handler',
    )
    expect(await scene.inbox.listWaiting({ limit: 1 })).toMatchObject([{ attempts: 1, claimed: false }])
  })

  test('I9, SC44: outputs are committed with the work, and not at all when it fails', async () => {
    let runs = 0
    await scene.publish({ id: 'm' })
    await scene.consume({
      handle: async ({ outbox }) => {
        runs += 1
        await outbox.add({ topic: 'invoice.created.v1', payload: { run: runs } })
        if (runs === 1) throw new Error('no')
      },
    })
    await eventually('it is applied', () => scene.told('applied').length === 1)
    const { rows } = await scene.opened.store.outbox.read(0, [], 10, 10_000)
    expect(rows.map((row) => row.payload)).toEqual(['{"run":2}'])
    expect(scene.told('applied')).toMatchObject([{ outputs: 1, attempt: 2 }])
  })

  test('R35: a stale version is settled without being applied', async () => {
    await scene.publish({ id: 'v2', payload: '{"version":2}' })
    const options = {
      handle: async ({
        tx,
        message,
        ifNewer,
      }: Parameters<NonNullable<Parameters<Scene['make']>[0]>['handle'] & object>[0]) => {
        const { version } = message.body as { version: number }
        if (await ifNewer('order-1', version)) await scene.write(tx, message.id)
      },
    }
    await scene.consume(options)
    await scene.settled()
    await scene.publish({ id: 'v1', payload: '{"version":1}' }, { id: 'v3', payload: '{"version":3}' })
    await scene.settled()
    expect([await scene.applied('v1'), await scene.applied('v2'), await scene.applied('v3')]).toEqual([0, 1, 1])
    expect(
      scene
        .told('applied')
        .filter((event) => event.stale)
        .map((event) => event.id),
    ).toEqual(['v1'])
    await scene.publish({ id: 'v1', payload: '{"version":1}' })
    await scene.settled()
    expect(scene.told('duplicate').map((event) => event.id)).toEqual(['v1'])
  })

  test('R35: wrong versions and entities fail the handler, not the consumer', async () => {
    const errors: string[] = []
    await scene.publish({ id: 'm' })
    await scene.consume({
      attemptsMax: 1,
      handle: async ({ ifNewer }) => {
        for (const [entity, version] of [
          ['', 1],
          ['a\0', 1],
          ['a', 1.5],
          ['a', 2n ** 64n],
          ['x'.repeat(256), 1],
        ] as const) {
          await ifNewer(entity, version).catch((error: unknown) => errors.push(String(error)))
        }
      },
    })
    await scene.settled()
    expect(errors.length).toBe(5)
    expect(errors.every((error) => error.startsWith('TypeError: ifNewer'))).toBe(true)
  })

  test('I8: messages of one key never run at once and keep their order, other keys go on', async () => {
    const log: string[] = []
    let together = 0
    const running = new Set<string>()
    await scene.publish(
      ...Array.from({ length: 24 }, (_, index) => ({
        id: `${'abc'[index % 3]}-${index}`,
        orderingKey: 'abc'[index % 3] ?? null,
      })),
    )
    await scene.consume({
      orderBy: true,
      concurrency: 6,
      handle: async ({ tx, message }) => {
        const key = message.orderingKey ?? ''
        expect(running.has(key)).toBe(false)
        running.add(key)
        together = Math.max(together, running.size)
        await scene.write(tx, message.id)
        log.push(message.id)
        running.delete(key)
      },
    })
    await scene.settled()
    expect(together).toBeGreaterThan(1)
    for (const key of 'abc') {
      const numbers = log.filter((id) => id.startsWith(key)).map((id) => Number(id.slice(2)))
      expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))
      expect(numbers.length).toBe(8)
    }
  })

  test('SC46, I8: while a message of a key waits, later ones wait behind it; other keys go on; then order is kept', async () => {
    const log: string[] = []
    let broken = true
    const key = { orderingKey: 'k' }
    await scene.publish(
      { id: 'k1', ...key },
      { id: 'k2', ...key },
      { id: 'other', orderingKey: 'o' },
      { id: 'k3', ...key },
    )
    await scene.consume({
      orderBy: true,
      handle: async ({ tx, message }) => {
        if (message.id === 'k1' && broken) throw new Error('not yet')
        await scene.write(tx, message.id)
        log.push(message.id)
      },
      attemptsMax: 1_000,
    })
    await scene.settled()
    await eventually('the others wait', async () => (await scene.inbox.listWaiting({ limit: 10 })).length === 3)
    expect(log).toEqual(['other'])
    broken = false
    await eventually('all are applied', () => log.length === 4)
    expect(log).toEqual(['other', 'k1', 'k2', 'k3'])
    expect(scene.told('waiting').filter((event) => event.reason === 'behind').length).toBeGreaterThanOrEqual(2)
  })

  test('SC46, I8: with stopKeyOnWaiting off, later messages of the key pass', async () => {
    const log: string[] = []
    const key = { orderingKey: 'k' }
    await scene.publish({ id: 'k1', ...key }, { id: 'k2', ...key })
    await scene.consume({
      orderBy: true,
      stopKeyOnWaiting: false,
      handle: ({ message }) => {
        if (message.id === 'k1') throw new Error('never')
        log.push(message.id)
      },
    })
    await scene.settled()
    expect(log).toEqual(['k2'])
  })

  test('SC46, I8: once the head of a key is quarantined, the key goes on', async () => {
    const log: string[] = []
    const key = { orderingKey: 'k' }
    await scene.publish({ id: 'k1', ...key }, { id: 'k2', ...key }, { id: 'k3', ...key })
    await scene.consume({
      orderBy: true,
      attemptsMax: 3,
      handle: ({ message }) => {
        if (message.id === 'k1') throw new Error('never')
        log.push(message.id)
      },
    })
    await eventually('the others are applied', () => log.length === 2)
    expect(log).toEqual(['k2', 'k3'])
    expect(await scene.inbox.listQuarantine({ limit: 10 })).toMatchObject([{ messageId: 'k1' }])
  })

  test('R45: a redriven message is applied under its own id', async () => {
    let broken = true
    await scene.publish({ id: 'm' })
    const consumer = await scene.consume({
      attemptsMax: 1,
      handle: async ({ tx, message }) => {
        if (broken) throw new Error('no')
        await scene.write(tx, message.id)
      },
    })
    await scene.settled()
    const [entry] = await scene.inbox.listQuarantine({ limit: 1 })
    broken = false
    expect(await scene.inbox.redrive([entry?.id ?? ''], { ...ACT, override: false })).toEqual(['redriven'])
    await consumer.drain()
    expect(await scene.applied('m')).toBe(1)
    expect(
      await scene.inbox.lookup([
        { id: entry?.markId ?? '', consumer: 'billing', source: '', messageId: 'm', fingerprint: new Uint8Array(32) },
      ]),
    ).toEqual(['mismatch'])
    await scene.publish({ id: 'm' })
    await scene.settled()
    expect(await scene.applied('m')).toBe(1)
  })

  test('B81: a message redriven long after it was applied is recognised, or needs the operator’s override', async () => {
    await scene.publish({ id: 'm' })
    const consumer = await scene.consume({ retentionMs: 8 * 86_400_000 })
    await scene.settled()
    const [about] = scene.told('applied')
    expect(about?.id).toBe('m')
    // Parked by somebody after it had been applied: its copy lies in quarantine for 30 days.
    await scene.publish({ id: 'm', payload: '{"other":true}' })
    await scene.settled()
    const [mismatch] = await scene.inbox.listQuarantine({ limit: 1 })
    const kept = await scene.inbox.readQuarantined(mismatch?.id ?? '')
    expect(kept).toBeDefined()
    await scene.opened.advance(30 * 86_400_000)
    await scene.inbox.purgeMarks({ graceMs: 0, limit: 100 })
    await scene.publish({ id: 'm' })
    await scene.settled()
    const expired = (await scene.inbox.listQuarantine({ limit: 10 })).find((entry) => entry.reason === 'expired')
    expect(expired?.messageId).toBe('m')
    await scene.inbox.redrive([expired?.id ?? ''], { ...ACT, override: false })
    await eventually('it is back', async () =>
      (await scene.inbox.listQuarantine({ limit: 10 })).some(
        (entry) => entry.reason === 'expired' && entry.id !== expired?.id,
      ),
    )
    expect(await scene.applied('m')).toBe(1)
    const again = (await scene.inbox.listQuarantine({ limit: 10 })).find((entry) => entry.reason === 'expired')
    await scene.inbox.redrive([again?.id ?? ''], { ...ACT, override: true })
    await consumer.drain()
    expect(await scene.applied('m')).toBe(2)
  })

  test('R30: a duplicate of a message that waits is kept once, and applied once', async () => {
    let broken = true
    await scene.publish({ id: 'm' })
    const consumer = await scene.consume({
      attemptsMax: 1_000,
      backoff: { minMs: 100, maxMs: 100 },
      handle: async ({ tx, message }) => {
        if (broken) throw new Error('no')
        await scene.write(tx, message.id)
      },
    })
    await scene.settled()
    await scene.publish({ id: 'm' }, { id: 'm', payload: '{"other":1}' })
    await scene.settled()
    expect((await scene.inbox.listWaiting({ limit: 10 })).length).toBe(1)
    expect(await scene.inbox.listQuarantine({ limit: 10 })).toMatchObject([{ reason: 'mismatch' }])
    broken = false
    await eventually('it is applied', async () => (await scene.applied('m')) === 1)
    await consumer.drain()
    expect(await scene.inbox.listWaiting({ limit: 10 })).toEqual([])
  })

  test('B79, B69: a delivery that is lost before it starts is not started; its redelivery is', async () => {
    let release = () => {}
    const gate = new Promise<void>((resolve) => {
      release = resolve
    })
    const started: string[] = []
    const ids = await scene.publish(...Array.from({ length: 6 }, (_, index) => ({ id: `m${index}` })))
    await scene.consume({
      concurrency: 2,
      prefetch: 6,
      handle: async ({ tx, message }) => {
        started.push(message.id)
        await scene.write(tx, message.id)
        if (started.length <= 2) await gate
      },
    })
    await eventually('two run', () => started.length === 2)
    await eventually('the others are in hand', () => scene.queue.length === 6)
    scene.broker.disconnect()
    await eventually('the loss was told', () => scene.told('lost').length === 1)
    expect(scene.told('lost')).toMatchObject([{ count: 6, started: 2 }])
    release()
    await scene.settled()
    for (const id of ids) expect(await scene.applied(id)).toBe(1)
    // The two that ran were recognised when they came again; each of the others ran once.
    expect(started.length).toBe(6)
    expect(
      scene
        .told('duplicate')
        .map((event) => event.id)
        .toSorted(),
    ).toEqual(started.slice(0, 2).toSorted())
  })

  test('B69, R31: an acknowledgement after the channel is gone is no failure; the redelivery is recognised', async () => {
    let inside = false
    let release = () => {}
    const gate = new Promise<void>((resolve) => {
      release = resolve
    })
    await scene.publish({ id: 'm' })
    const consumer = await scene.consume({
      handle: async ({ tx, message }) => {
        await scene.write(tx, message.id)
        inside = true
        await gate
      },
    })
    await eventually('it runs', () => inside)
    scene.broker.outage()
    await eventually('health says so', () => consumer.health().state === 'disconnected')
    expect(consumer.health().reason).toContain('outage')
    release()
    await eventually('it is applied', async () => (await scene.applied('m')) === 1)
    scene.broker.recover()
    await scene.settled()
    expect(consumer.health().state).toBe('running')
    expect(await scene.applied('m')).toBe(1)
    expect(scene.told('duplicate').length).toBe(1)
    expect(scene.told('waiting')).toEqual([])
  })

  test('I15: redelivered messages run alone, each written down before it runs', async () => {
    const [first] = [await scene.consume({ handle: () => new Promise(() => {}), concurrency: 5, stopTimeoutMs: 0 })]
    await scene.publish(...Array.from({ length: 5 }, (_, index) => ({ id: `m${index}` })))
    await eventually('all run', () => first.health().running === 5)
    await first.stop()
    let running = 0
    await scene.publish({ id: 'fresh' })
    await scene.consume({
      concurrency: 5,
      handle: async ({ tx, message }) => {
        running += 1
        if (message.redelivered) {
          expect(running).toBe(1)
          const [row] = (await scene.inbox.listWaiting({ limit: 10 })).filter((entry) => entry.messageId === message.id)
          expect(row).toMatchObject({ claimed: true, attempts: 1, reason: 'claimed' })
        }
        await scene.write(tx, message.id)
        running -= 1
      },
    })
    await scene.settled()
    for (const id of ['m0', 'm1', 'm2', 'm3', 'm4', 'fresh']) expect(await scene.applied(id)).toBe(1)
    expect(await scene.inbox.listWaiting({ limit: 10 })).toEqual([])
    expect(scene.told('waiting')).toEqual([])
  })

  test('I9: an eager consumer does not call its handler for a duplicate', async () => {
    let calls = 0
    await scene.publish({ id: 'm' })
    await scene.consume({
      eager: true,
      handle: () => {
        calls += 1
      },
    })
    await scene.settled()
    await scene.publish({ id: 'm' })
    await scene.settled()
    expect(calls).toBe(1)
    expect(scene.told('duplicate').length).toBe(1)
  })

  test('R34: a handler that takes too long is cut off, counted and tried again', async () => {
    let runs = 0
    let aborted = false
    await scene.publish({ id: 'm' })
    await scene.consume({
      handlerTimeoutMs: 200,
      handle: async ({ tx, message, signal }) => {
        runs += 1
        await scene.write(tx, message.id)
        if (runs > 1) return
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
        aborted = true
      },
    })
    await eventually('it is applied', async () => (await scene.applied('m')) === 1)
    await eventually('the first run was told', () => aborted)
    expect(scene.told('waiting')).toMatchObject([{ reason: 'failed', attempt: 1, error: 'TOO_BUSY' }])
    expect(runs).toBe(2)
  })

  test('I9: the handle of a handler that was cut off is dead', async () => {
    let late: Promise<unknown> | undefined
    let runs = 0
    await scene.publish({ id: 'm' })
    await scene.consume({
      handlerTimeoutMs: 100,
      handle: async ({ tx, message, signal }) => {
        runs += 1
        await scene.write(tx, message.id)
        if (runs > 1) return
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
        late = Promise.resolve()
          .then(() => scene.write(tx, 'late'))
          .catch((error: unknown) => error)
        await late
      },
    })
    await eventually('it is applied', async () => (await scene.applied('m')) === 1)
    expect(String(await late)).toContain('NOT_A_TRANSACTION')
    expect(await scene.applied('late')).toBe(0)
  })

  test('R31: stopping waits for running handlers and hands everything else back', async () => {
    let release = () => {}
    const gate = new Promise<void>((resolve) => {
      release = resolve
    })
    const ids = await scene.publish(...Array.from({ length: 5 }, () => ({})))
    const consumer = await scene.consume({
      concurrency: 1,
      prefetch: 5,
      handle: async ({ tx, message }) => {
        await scene.write(tx, message.id)
        await gate
      },
    })
    await eventually('one runs', () => consumer.health().running === 1)
    const stopping = consumer.stop()
    release()
    await stopping
    expect(consumer.health()).toMatchObject({ state: 'stopped', running: 0, queued: 0 })
    expect(scene.queue.length).toBe(4)
    expect(await scene.applied(ids[0] ?? '')).toBe(1)
    await scene.consume()
    await scene.settled()
    for (const id of ids) expect(await scene.applied(id)).toBe(1)
  })

  test('R31, I15: what stop cuts off is not counted and comes again', async () => {
    await scene.publish({ id: 'waits' })
    const failing = await scene.consume({
      handle: () => Promise.reject(new Error('no')),
      backoff: { minMs: 1, maxMs: 1 },
      attemptsMax: 1_000,
      pollMs: 60_000,
    })
    await scene.settled()
    await failing.stop()
    await scene.publish({ id: 'fresh' })
    const hanging = await scene.consume({ handle: () => new Promise(() => {}), stopTimeoutMs: 0 })
    await eventually('both run', () => hanging.health().running === 2)
    await hanging.stop()
    expect(await scene.inbox.listWaiting({ limit: 10 })).toMatchObject([
      { messageId: 'waits', attempts: 1, claimed: false },
    ])
    expect(scene.queue.length).toBe(1)
    const consumer = await scene.consume()
    await consumer.drain()
    expect([await scene.applied('waits'), await scene.applied('fresh')]).toEqual([1, 1])
  })

  test('R31: stop and start are told apart from misuse', async () => {
    const consumer = scene.make()
    await consumer.stop()
    await expect(consumer.start()).rejects.toThrow(TypeError)
    const started = await scene.consume()
    await expect(started.start()).rejects.toThrow(TypeError)
    await Promise.all([started.stop(), started.stop()])
    expect(started.health().state).toBe('stopped')
    expect(scene.told('state').map((event) => event.state)).toEqual(['starting', 'running', 'stopping', 'stopped'])
  })

  test('T7: events carry no body, no header and no key', async () => {
    const secret = 'canary-4711'
    await scene.publish(
      { id: 'a', payload: `{"card":"${secret}"}`, headers: { token: secret }, orderingKey: secret },
      { id: 'b', payload: secret, headers: { token: secret } },
      { id: 'c', payload: `{"card":"${secret}"}` },
      { id: '', payload: secret },
    )
    await scene.consume({
      attemptsMax: 2,
      orderBy: true,
      handle: async ({ message }) => {
        if (message.id === 'c') throw new Error(`failed for ${secret}`)
        expect(message.body).toBeDefined()
      },
    })
    await eventually('all are settled', async () => (await scene.inbox.listQuarantine({ limit: 10 })).length === 3)
    expect(scene.events.length).toBeGreaterThan(5)
    expect(JSON.stringify(scene.events)).not.toContain(secret)
  })

  test('R31: a listener that throws changes nothing', async () => {
    const [id] = await scene.publish({})
    await scene.consume({
      onEvent: () => {
        throw new Error('listener')
      },
    })
    await scene.settled()
    expect(await scene.applied(id ?? '')).toBe(1)
  })

  test('R05: once.transaction inside a handler is refused, because it would commit on its own', async () => {
    expect(name).toBeTypeOf('string')
    const { createOnce } = await import('../../src/index.ts')
    const once = createOnce({ store: scene.opened.store })
    await scene.publish({ id: 'm' })
    await scene.consume({
      attemptsMax: 1,
      handle: () => once.transaction({ scope: 's', key: 'k', payload: null }, () => 1),
    })
    await scene.settled()
    expect(await scene.inbox.listQuarantine({ limit: 1 })).toMatchObject([{ reason: 'exhausted' }])
    expect((await scene.inbox.listQuarantine({ limit: 1 }))[0]?.lastError).toContain('NESTED_OPERATION')
  })
})

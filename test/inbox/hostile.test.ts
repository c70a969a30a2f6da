/**
 * Handlers that end their own connection, or throw what cannot be looked at: such a message is counted and set aside
 * like any other that fails, and the others go on.
 */
import type pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { ReceivedMessage } from '../../src/inbox/message.ts'
import { eventually } from '../eventually.ts'
import { openScene, type Scene, STORES } from './scene.ts'

const { postgres } = STORES
if (postgres === undefined) throw new Error('there is no harness for PostgreSQL')

let scene: Scene
beforeEach(async () => {
  scene = await openScene(postgres)
})
afterEach(() => scene.close())

const ends = (id: string) => id.startsWith('ends')
const endSession = 'select pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())'

async function handleOne(tx: unknown, { id }: ReceivedMessage): Promise<void> {
  await scene.write(tx, id)
  if (ends(id)) await (tx as pg.PoolClient).query(endSession)
}

describe('B47, R34: a message whose handler ends its connection every time', () => {
  test('is counted and quarantined, and the others are applied', async () => {
    await scene.publish({ id: 'ends' }, ...Array.from({ length: 20 }, (_, n) => ({ id: `good ${n}` })))
    await scene.consume({ attemptsMax: 2, handle: ({ tx, message }) => handleOne(tx, message) })
    await eventually('it is quarantined', () => scene.told('quarantined').length > 0, 30_000)
    await scene.settled()
    expect(scene.told('quarantined')).toMatchObject([{ id: 'ends', reason: 'exhausted', attempts: 2 }])
    expect(await scene.applied('ends')).toBe(0)
    for (let n = 0; n < 20; n += 1) expect(await scene.applied(`good ${n}`)).toBe(1)
  })

  test('leaves its batch, and the others are applied', async () => {
    await scene.publish({ id: 'ends' }, ...Array.from({ length: 20 }, (_, n) => ({ id: `good ${n}` })))
    await scene.consume({
      attemptsMax: 2,
      batchMax: 50,
      handleBatch: async ({ tx, messages }) => {
        for (const message of messages) await handleOne(tx, message)
      },
    })
    await eventually('it is quarantined', () => scene.told('quarantined').length > 0, 30_000)
    await scene.settled()
    expect(scene.told('quarantined')).toMatchObject([{ id: 'ends', reason: 'exhausted' }])
    for (let n = 0; n < 20; n += 1) expect(await scene.applied(`good ${n}`)).toBe(1)
  })

  test('and swallows the loss is counted as well: its COMMIT is never answered', async () => {
    await scene.publish({ id: 'ends' })
    await scene.consume({
      attemptsMax: 1,
      handle: ({ tx, message }) => handleOne(tx, message).catch(() => {}),
    })
    await eventually('it is quarantined', () => scene.told('quarantined').length > 0, 30_000)
    expect(scene.told('quarantined')).toMatchObject([{ id: 'ends', reason: 'exhausted' }])
    expect(await scene.applied('ends')).toBe(0)
    await scene.settled()
  })
})

test('R34: what a handler throws may be anything, also what throws when it is looked at', async () => {
  const thrown: Readonly<Record<string, unknown>> = {
    undefined: undefined,
    null: null,
    text: 'text',
    frozen: Object.freeze({}),
    trap: new Proxy(
      {},
      {
        has: () => raise('has'),
        get: () => raise('get'),
        getPrototypeOf: () => raise('getPrototypeOf'),
      },
    ),
    accessor: Object.defineProperty(new Error('no message'), 'message', { get: () => raise('message') }),
    nul: new Error('\0 and \ud800'),
  }
  await scene.publish(...Object.keys(thrown).map((id) => ({ id })), { id: 'good' })
  await scene.consume({
    attemptsMax: 2,
    handle: async ({ tx, message }) => {
      await scene.write(tx, message.id)
      if (message.id in thrown) throw thrown[message.id]
    },
  })
  await eventually('all are quarantined', () => scene.told('quarantined').length === Object.keys(thrown).length, 30_000)
  await scene.settled()
  expect(scene.told('quarantined').map(({ id, reason, attempts }) => ({ id, reason, attempts }))).toEqual(
    expect.arrayContaining(Object.keys(thrown).map((id) => ({ id, reason: 'exhausted', attempts: 2 }))),
  )
  expect(await scene.applied('good')).toBe(1)
  for (const id of Object.keys(thrown)) expect(await scene.applied(id)).toBe(0)
})

function raise(what: string): never {
  throw new Error(`${what} must not be asked`)
}

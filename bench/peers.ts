/**
 * Peers: what leased operations are compared with. Development packages, loaded by this suite alone.
 *
 * @module
 */

import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { DBOS } from '@dbos-inc/dbos-sdk'
import { startRedis } from '../src/testing/services/redis.ts'

export interface Peer {
  readonly version: string
  /** One operation under a key of its own. */
  readonly run: () => Promise<unknown>
  stop(): Promise<void>
}

const require = createRequire(import.meta.url)
/** Not every package exports its own package.json. */
function versionOf(name: string): string {
  const text = readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url), 'utf8')
  return (JSON.parse(text) as { version: string }).version
}

/** The parts of the guard that are called; its own types do not compile with ours. */
interface RedisGuard {
  onRequest(request: object): Promise<unknown>
  onResponse(request: object, response: object): Promise<void>
}
interface RedisStorage {
  connect(): Promise<void>
  disconnect(): Promise<void>
}

/** A durable workflow with one step, under an id of its own. */
export async function dbosPeer(databaseUrl: string): Promise<Peer> {
  DBOS.setConfig({
    name: 'bench',
    systemDatabaseUrl: databaseUrl,
    systemDatabasePoolSize: 20,
    logLevel: 'error',
    runAdminServer: false,
  })
  const step = () => Promise.resolve(1)
  const workflow = DBOS.registerWorkflow(async () => await DBOS.runStep(step, { name: 'step' }), { name: 'one-step' })
  await DBOS.launch()
  return {
    version: versionOf('@dbos-inc/dbos-sdk'),
    run: async () => await (await DBOS.startWorkflow(workflow, { workflowID: randomUUID() })()).getResult(),
    stop: () => DBOS.shutdown(),
  }
}

/** A key checked and an answer stored in Redis, on either side of a handler that does nothing. */
export async function redisGuardPeer(): Promise<Peer> {
  const redis = await startRedis()
  const core = require('@node-idempotency/core') as { Idempotency: new (storage: RedisStorage) => RedisGuard }
  const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis') as {
    RedisStorageAdapter: new (options: { url: string }) => RedisStorage
  }
  const storage = new RedisStorageAdapter({ url: redis.url })
  await storage.connect()
  const guard = new core.Idempotency(storage)
  return {
    version: versionOf('@node-idempotency/core'),
    async run() {
      const request = {
        headers: { 'idempotency-key': randomUUID() },
        path: '/orders',
        method: 'POST',
        body: { amount: 4_200 },
      }
      await guard.onRequest(request)
      await guard.onResponse(request, { body: { id: 1 } })
    },
    async stop() {
      await storage.disconnect()
      await redis.stop()
    },
  }
}

/**
 * A worker of the run suite as a process of its own. `hold`: takes a job and keeps it until it is killed, telling when it
 * has started. `take`: does what the other one left, and tells when it has started.
 *
 * @module
 */

import pg from 'pg'
import { core, stores } from './subject.ts'

const [, , role, databaseUrl, leaseMs] = process.argv
const pool = new pg.Pool({ connectionString: databaseUrl, max: 5, pipeline: true })
const once = core.createOnce({ store: stores.postgres(pool) })
const kind = once.define('bench.takeover', {
  version: 1,
  leaseMs: Number(leaseMs),
  handler: async (op) => {
    process.send?.({ kind: 'started', fence: Number(op.fence), atMs: Date.now() })
    if (role === 'hold') await new Promise(() => {})
    return null
  },
})
const worker = once.worker({ kinds: [kind], concurrency: 1 })
await worker.start()
process.send?.({ kind: 'ready' })
process.once('disconnect', () => process.exit(0))

import pg from 'pg'
import { jobCases } from '../../src/store/conformance/job.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { postgresHarness } from './postgres-harness.ts'
import { runConformance } from './run.ts'

/** A driver that shows nothing of its class takes no query objects of ours: it gets simple-query strings. */
class PlainClient extends pg.Client {
  static readonly Query = undefined
}

runConformance(jobCases, {
  memory: memoryHarness,
  'postgres, pipelined pool': postgresHarness({ pipeline: true }),
  'postgres, stock pool': postgresHarness({}),
  'postgres, pool of a driver that takes no batches': postgresHarness({ pipeline: true, Client: PlainClient }),
})

import { inboxCases } from '../../src/store/conformance/inbox.cases.ts'
import { inboxWaitingCases } from '../../src/store/conformance/inbox-waiting.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { postgresHarness } from './postgres-harness.ts'
import { runConformance } from './run.ts'

runConformance([...inboxCases, ...inboxWaitingCases], {
  memory: memoryHarness,
  'postgres, pipelined pool': postgresHarness({ pipeline: true }),
  'postgres, stock pool': postgresHarness({}),
})

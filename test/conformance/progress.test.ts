import { progressCases } from '../../src/store/conformance/progress.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { postgresHarness } from './postgres-harness.ts'
import { runConformance } from './run.ts'

runConformance(progressCases, {
  memory: memoryHarness,
  'postgres, pipelined pool': postgresHarness({ pipeline: true }),
  'postgres, stock pool': postgresHarness({}),
})

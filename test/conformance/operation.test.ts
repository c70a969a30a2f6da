import { operationCases } from '../../src/store/conformance/operation.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { postgresHarness } from './postgres-harness.ts'
import { runConformance } from './run.ts'

runConformance(operationCases, {
  memory: memoryHarness,
  'postgres, pipelined pool': postgresHarness({ pipeline: true }),
  'postgres, stock pool': postgresHarness({}),
})

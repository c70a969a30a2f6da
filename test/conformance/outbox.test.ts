import { outboxCases } from '../../src/store/conformance/outbox.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { postgresHarness } from './postgres-harness.ts'
import { runConformance } from './run.ts'

runConformance(outboxCases, {
  memory: memoryHarness,
  postgres: postgresHarness({ pipeline: true }),
})

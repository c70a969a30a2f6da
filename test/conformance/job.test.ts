import { jobCases } from '../../src/store/conformance/job.cases.ts'
import { memoryHarness } from './memory-harness.ts'
import { runConformance } from './run.ts'

runConformance(jobCases, {
  memory: memoryHarness,
})

import { describe, test } from 'vitest'
import { operationCases } from '../../src/store/conformance/operation.cases.ts'
import { postgresHarness } from './postgres-harness.ts'

const harnesses = {
  'postgres, pipelined pool': postgresHarness({ pipeline: true }),
  'postgres, stock pool': postgresHarness({}),
}

for (const [name, harness] of Object.entries(harnesses)) {
  describe(name, () => {
    for (const one of operationCases) {
      const reason = one.needs === undefined ? undefined : harness.lacks(one.needs)
      test.skipIf(reason !== undefined)(one.name, () => one.run(harness))
    }
  })
}

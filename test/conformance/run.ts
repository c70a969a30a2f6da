import { describe, test } from 'vitest'
import type { Capabilities, ConformanceCase } from '../../src/shared/conformance.ts'

/**
 * Runs a suite on each harness. A case that needs what a harness cannot have by its nature is not registered, and the
 * reason is printed: nothing that could run is ever skipped.
 */
export function runConformance<H extends Capabilities>(
  cases: readonly ConformanceCase<H>[],
  harnesses: Readonly<Record<string, H>>,
): void {
  for (const [name, harness] of Object.entries(harnesses)) {
    describe(name, () => {
      for (const one of cases) {
        const reason = one.needs === undefined ? undefined : harness.lacks(one.needs)
        if (reason === undefined) test(one.name, () => one.run(harness))
        else console.log(`not applicable to ${name}: "${one.name}": ${reason}`)
      }
    })
  }
}

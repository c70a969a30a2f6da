/**
 * What every outbox store must hold, whatever it is built on.
 *
 * @module
 */

import type { ConformanceCase } from '../../shared/conformance.ts'
import type { StoreHarness } from './harness.ts'
import { outboxLaneCases } from './outbox-lane.cases.ts'
import { outboxParkedCases } from './outbox-parked.cases.ts'
import { outboxRowCases } from './outbox-row.cases.ts'

export const outboxCases: readonly ConformanceCase<StoreHarness>[] = [
  ...outboxLaneCases,
  ...outboxRowCases,
  ...outboxParkedCases,
]

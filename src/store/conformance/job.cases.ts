/**
 * What every store of leased operations must hold, whatever it is built on.
 *
 * @module
 */

import type { ConformanceCase } from '../../shared/conformance.ts'
import type { StoreHarness } from './harness.ts'
import { jobClaimCases } from './job-claim.cases.ts'
import { jobDueCases } from './job-due.cases.ts'
import { jobEffectCases } from './job-effect.cases.ts'
import { jobOperatorCases } from './job-operator.cases.ts'
import { jobReplaceCases } from './job-replace.cases.ts'
import { jobStepCases } from './job-step.cases.ts'

export const jobCases: readonly ConformanceCase<StoreHarness>[] = [
  ...jobClaimCases,
  ...jobStepCases,
  ...jobEffectCases,
  ...jobDueCases,
  ...jobReplaceCases,
  ...jobOperatorCases,
]

/**
 * Suite: what every suite takes and gives.
 *
 * @module
 */

import type { Report, Say } from './report.ts'

export interface SuiteOptions {
  readonly say: Say
  /** Pairs of slices, or repetitions; each suite has its own default. */
  readonly pairs?: number | undefined
  /** Fewer messages than the goals are about, for a quick look. */
  readonly messages?: number | undefined
  /** Only the result of this name. */
  readonly only?: string | undefined
}

/** `versions` names the servers; the packages are added for all suites. */
export type SuiteResult = Pick<Report, 'versions' | 'durable' | 'results'>

export type Suite = (options: SuiteOptions) => Promise<SuiteResult>

/**
 * Certificate: what a drill has shown, as JSON that can be kept beside a release.
 *
 * @module
 */

import type { DrillResult } from '../drill.ts'
import { boundaryText } from '../run/boundary.ts'
import type { WindowResult } from '../run/campaign.ts'

export interface Certificate {
  readonly format: 1
  readonly drill: string
  /** SHA-256 of the handler's code, hex; packages are not in it. */
  readonly codeHash: string
  readonly passed: boolean
  readonly windows: {
    readonly found: number
    /** Executed; the others equal one of these. */
    readonly run: number
    readonly reached: number
    readonly failed: number
  }
  readonly firstVerdictMs: number
  readonly tookMs: number
  readonly versions: Readonly<Record<string, string>>
  /** What the handler does without faults. */
  readonly boundaries: readonly string[]
  readonly verdicts: readonly CertifiedWindow[]
}

export interface CertifiedWindow {
  readonly window: string
  /** Null when it was not run. */
  readonly verdict: string | null
  readonly reached: boolean
  readonly passed: boolean
  readonly equalTo?: string | undefined
  readonly counts?: Readonly<Record<string, number>> | undefined
}

export function certificate(result: DrillResult): Certificate {
  const { name, codeHash, passed, windows, run, firstVerdictMs, tookMs, versions, trace } = result
  return {
    format: 1,
    drill: name,
    codeHash,
    passed,
    windows: {
      found: windows.length,
      run,
      reached: windows.filter(({ reached }) => reached).length,
      failed: windows.filter((window) => !window.passed).length,
    },
    firstVerdictMs: Math.round(firstVerdictMs),
    tookMs: Math.round(tookMs),
    versions,
    boundaries: trace.map(boundaryText),
    verdicts: windows.map(certified),
  }
}

function certified({ name, verdict, reached, passed, equalTo, run }: WindowResult): CertifiedWindow {
  return {
    window: name,
    verdict: verdict ?? null,
    reached,
    passed,
    ...(equalTo === undefined ? {} : { equalTo }),
    ...(run === undefined ? {} : { counts: run.counts }),
  }
}

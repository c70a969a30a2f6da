/**
 * Stop: handlers of `once.run` are waited for, then aborted, and their leases given back.
 *
 * @module
 */

import { integerOption, refuseUnknownOptions } from '../shared/options.ts'
import { pause } from '../shared/waiting.ts'
import { Stopping } from './attempt.ts'
import type { LeaseKeeper } from './lease.ts'

const STOP_POLL_MS = 20
/** How long aborted handlers are waited for. */
const STOP_ABORTED_MS = 2_000

export async function stopRuns(
  keeper: LeaseKeeper,
  options: { readonly graceMs?: number | undefined } = {},
): Promise<void> {
  refuseUnknownOptions('once.stop', options, ['graceMs'])
  const graceMs = integerOption('graceMs', options.graceMs, { min: 0, max: 600_000, default: 10_000 })
  await untilIdle(keeper, graceMs)
  keeper.stop(new Stopping())
  await untilIdle(keeper, STOP_ABORTED_MS)
}

async function untilIdle(keeper: LeaseKeeper, boundMs: number): Promise<void> {
  for (let waitedMs = 0; keeper.size > 0 && waitedMs < boundMs; waitedMs += STOP_POLL_MS) await pause(STOP_POLL_MS)
}

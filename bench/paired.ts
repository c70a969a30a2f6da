/**
 * Paired slices: two ways to do the same work take turns within one run, so that what the machine does meanwhile
 * meets both. The figure is the median of the per-pair ratios, never a rate.
 *
 * A slice starts `callers` loops that run one operation after the other until the slice is over; operations under way
 * are waited for and counted. The order inside a pair alternates. Every third pair is followed by a control pair of
 * the baseline with itself, whose ratio tells how much the machine alone moves the figures.
 *
 * @module
 */

import { setImmediate as turn } from 'node:timers/promises'
import { type CpuMeter, type CpuUsed, noCpu } from './cpu.ts'

/** Does one operation and resolves when it is done. */
export type Run = () => Promise<unknown>

export interface PairedOptions {
  readonly candidate: Run
  readonly baseline: Run
  /** Loops at once. */
  readonly callers: number
  readonly pairs: number
  /** Length of a slice, milliseconds. */
  readonly sliceMs: number
  /** Operations of each side before anything counts: until then code is interpreted and caches are cold. */
  readonly warmUp: number
  readonly cpu?: CpuMeter | undefined
}

export interface Paired {
  /** Operations a second: medians over the slices. */
  readonly candidate: Side
  readonly baseline: Side
  /** Median of candidate rate / baseline rate. */
  readonly ratio: number
  readonly quartiles: readonly [number, number]
  readonly pairs: number
  /** The same of the baseline with itself. */
  readonly controlRatio: number
  /** Median of candidate p50 / baseline p50. */
  readonly p50Ratio: number
}

export interface Side {
  readonly perSecond: number
  readonly p50Ms: number
  /** Microseconds of CPU an operation, over all slices. */
  readonly cpu: CpuUsed
}

interface Slice {
  readonly operations: number
  readonly perSecond: number
  readonly p50Ms: number
  readonly cpu: CpuUsed
}

/** Pairs after which the baseline runs against itself. */
const CONTROL_EVERY = 3
const WARM_UP_SLICE_MS = 200
const WARM_UP_MS_MAX = 12_000

export async function paired(options: PairedOptions): Promise<Paired> {
  const { candidate, baseline, pairs } = options
  await warmUp(options)
  const candidates: Slice[] = []
  const baselines: Slice[] = []
  const controls: number[] = []
  for (let pair = 0; pair < pairs; pair++) {
    const [first, second] = pair % 2 === 0 ? [baseline, candidate] : [candidate, baseline]
    const one = await slice(first, options, options.sliceMs)
    const two = await slice(second, options, options.sliceMs)
    baselines.push(pair % 2 === 0 ? one : two)
    candidates.push(pair % 2 === 0 ? two : one)
    if (pair % CONTROL_EVERY === CONTROL_EVERY - 1) {
      const a = await slice(baseline, options, options.sliceMs)
      const b = await slice(baseline, options, options.sliceMs)
      controls.push(pair % 2 === 0 ? a.perSecond / b.perSecond : b.perSecond / a.perSecond)
    }
  }
  const ratios = candidates.map((own, index) => own.perSecond / at(baselines, index).perSecond)
  return {
    candidate: sideOf(candidates),
    baseline: sideOf(baselines),
    ratio: median(ratios),
    quartiles: quartiles(ratios),
    pairs,
    controlRatio: controls.length === 0 ? 1 : median(controls),
    p50Ratio: median(candidates.map((own, index) => own.p50Ms / at(baselines, index).p50Ms)),
  }
}

/** Alternates as the slices do, so that both sides are equally warm; a slow machine is not waited for. */
async function warmUp(options: PairedOptions): Promise<void> {
  const endsAt = performance.now() + WARM_UP_MS_MAX
  for (let done = 0; done < options.warmUp && performance.now() < endsAt; ) {
    const { operations } = await slice(options.candidate, options, WARM_UP_SLICE_MS)
    await slice(options.baseline, options, WARM_UP_SLICE_MS)
    done += operations
  }
}

/** Runs one side for `ms`. A failing operation fails the whole run: a figure of half the work is no figure. */
async function slice(run: Run, options: PairedOptions, ms: number): Promise<Slice> {
  // What the other side left to the event loop belongs to the other side.
  await turn()
  const latencies: number[] = []
  const cpuBefore = options.cpu?.read() ?? noCpu
  const startedAt = performance.now()
  const endsAt = startedAt + ms
  const loop = async () => {
    for (let now = performance.now(); now < endsAt; ) {
      await run()
      const done = performance.now()
      latencies.push(done - now)
      now = done
    }
  }
  await Promise.all(Array.from({ length: options.callers }, loop))
  const seconds = (performance.now() - startedAt) / 1_000
  const cpuAfter = options.cpu?.read() ?? noCpu
  return {
    operations: latencies.length,
    perSecond: latencies.length / seconds,
    p50Ms: median(latencies),
    cpu: { client: cpuAfter.client - cpuBefore.client, server: cpuAfter.server - cpuBefore.server },
  }
}

function sideOf(slices: readonly Slice[]): Side {
  const operations = slices.reduce((sum, one) => sum + one.operations, 0)
  return {
    perSecond: median(slices.map((one) => one.perSecond)),
    p50Ms: median(slices.map((one) => one.p50Ms)),
    cpu: {
      client: slices.reduce((sum, one) => sum + one.cpu.client, 0) / operations,
      server: slices.reduce((sum, one) => sum + one.cpu.server, 0) / operations,
    },
  }
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}

export function quartiles(values: readonly number[]): readonly [number, number] {
  return [quantile(values, 0.25), quantile(values, 0.75)]
}

function quantile(values: readonly number[], share: number): number {
  if (values.length === 0) throw new Error('nothing was measured')
  const sorted = [...values].sort((a, b) => a - b)
  const position = (sorted.length - 1) * share
  const below = at(sorted, Math.floor(position))
  return below + (at(sorted, Math.ceil(position)) - below) * (position - Math.floor(position))
}

function at<T>(values: readonly T[], index: number): T {
  return values[index] as T
}

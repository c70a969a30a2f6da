/** Summary: what all paths together have shown, as the last line and as JSON. */
import type { PathResult } from './run.ts'

/** So many windows our own code has at least. Fewer mean that something is not traced any more. */
export const FOUND_MIN = 150

export interface Summary {
  readonly line: string
  readonly ok: boolean
  readonly report: Report
}

export interface Report {
  readonly found: number
  readonly reached: number
  readonly bad: number
  readonly paths: readonly {
    readonly path: string
    readonly steps: number
    /** The run without any fault was good. */
    readonly sound: boolean
    readonly tookMs: number
    /** Deaths that came and went with the time that runs took; they are not counted. */
    readonly passing: readonly string[]
    readonly windows: readonly {
      readonly window: string
      readonly between: string
      readonly reached: boolean
      readonly good: boolean
      readonly deaths: readonly { readonly death: string; readonly verdict: string; readonly reached: boolean }[]
    }[]
  }[]
}

/** @param partial - Some paths only: how many windows there are says nothing. */
export function summary(results: readonly PathResult[], { partial }: { readonly partial: boolean }): Summary {
  const windows = results.flatMap((result) => result.windows)
  // Equal windows of several paths are one, which is reached when each of them was.
  const between = new Set(results.flatMap((result) => result.found.map((window) => window.between)))
  const missed = new Set(windows.filter((window) => !window.reached).map((window) => window.between))
  const met = new Set(windows.map((window) => window.between).filter((one) => !missed.has(one)))
  const found = between.size
  const reached = met.size
  const bad = windows.filter(({ good }) => !good).length + results.filter(({ broken }) => broken !== undefined).length
  const enough = partial || found >= FOUND_MIN
  return {
    line: `windows: ${found} found, ${reached} reached`,
    ok: reached === found && bad === 0 && enough && results.length > 0,
    report: {
      found,
      reached,
      bad,
      paths: results.map(({ path, moments, broken, windows: judged, passing, tookMs }) => ({
        path,
        steps: moments.filter(({ side }) => side === 'after').length,
        sound: broken === undefined,
        tookMs: Math.round(tookMs),
        passing: passing.map(({ name }) => name),
        windows: judged.map(({ name, between: state, reached: isReached, good, ran }) => ({
          window: name,
          between: state,
          reached: isReached,
          good,
          deaths: ran.map(({ name: death, run, reached: met }) => ({ death, verdict: run.verdict, reached: met })),
        })),
      })),
    },
  }
}

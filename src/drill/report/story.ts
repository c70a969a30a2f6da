/**
 * Story: a drill's result for the terminal. For each kind of failure the shortest run is told, step by step.
 *
 * @module
 */

import type { DrillResult, WindowResult } from '../drill.ts'
import type { RunResult } from '../run/execute.ts'
import { isGood, type Verdict } from '../run/judge.ts'

const WIDTH = 60

/** One line for each window that was run. */
export function progressLine({ name, verdict, reached, run }: WindowResult): string {
  const seconds = ((run?.tookMs ?? 0) / 1_000).toFixed(1)
  return `${mark({ verdict, reached })} ${name.padEnd(WIDTH)} ${verdictText({ verdict, reached })}  ${seconds} s`
}

/** Everything worth reading when the drill is over; the last line has the figures. */
export function story(result: DrillResult): string {
  return [...failures(result.windows), lastLine(result)].join('\n')
}

/** `drill orders: 12 windows found, 12 reached, 0 failed; first verdict 2.1 s, 14.0 s in all`. */
export function lastLine({ name, found, reached, windows, firstVerdictMs, tookMs }: DrillResult): string {
  const failed = windows.filter(({ passed }) => !passed).length
  const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`
  return (
    `drill ${name}: ${found} windows found, ${reached} reached, ${failed} failed; ` +
    `first verdict ${seconds(firstVerdictMs)}, ${seconds(tookMs)} in all`
  )
}

function failures(windows: readonly WindowResult[]): readonly string[] {
  const lines: string[] = []
  const failed = windows.filter(({ passed }) => !passed)
  const kinds = [...new Set(failed.map((window) => verdictText(window)))]
  for (const kind of kinds) {
    const alike = failed.filter((window) => verdictText(window) === kind)
    const [shortest] = alike
      .filter(({ run }) => run !== undefined)
      .sort((a, b) => (a.run?.events.length ?? 0) - (b.run?.events.length ?? 0))
    if (shortest?.run === undefined) continue
    lines.push('', `${kind}: ${shortest.name}`, ...steps(shortest.run))
    const others = alike.filter((window) => window !== shortest)
    if (others.length > 0) lines.push(`   also: ${others.map(({ name }) => name).join(', ')}`)
    lines.push('')
  }
  return lines
}

/** The run as numbered steps. */
export function steps({ events, ended, output }: RunResult): readonly string[] {
  const lines = events.map(({ actor, text, answer }, index) => {
    const who = actor === 0 ? '' : `process ${actor}: `
    return `  ${String(index + 1).padStart(2)}. ${who}${text}${answer === undefined ? '' : ` -> ${answer}`}`
  })
  const reasons = ended.filter(({ reason }) => reason !== '').map(({ reason }) => `      not settled: ${reason}`)
  const printed =
    output.trim() === ''
      ? []
      : [
          '      printed:',
          ...output
            .trim()
            .split('\n')
            .slice(-8)
            .map((line) => `        ${line}`),
        ]
  return [...lines, ...reasons, ...printed]
}

function mark({ verdict, reached }: { verdict: Verdict; reached: boolean }): string {
  return reached && isGood(verdict) ? 'ok  ' : 'FAIL'
}

function verdictText({ verdict, reached }: { verdict: Verdict; reached: boolean }): string {
  return reached ? verdict : 'NOT REACHED'
}

/**
 * Story: a drill's result for the terminal. For each kind of failure the shortest run is told, step by step.
 *
 * @module
 */

import { type DrillResult, drillToken } from '../drill.ts'
import type { WindowResult } from '../run/campaign.ts'
import type { RunResult } from '../run/execute.ts'

const WIDTH = 60
/** What a drill may take on two processors, milliseconds. */
const FIRST_VERDICT_MS_MAX = 30_000
const TEN_WINDOWS_MS_MAX = 90_000

/** One line for each window that was run. */
export function progressLine(window: WindowResult): string {
  const seconds = ((window.run?.tookMs ?? 0) / 1_000).toFixed(1)
  return `${window.passed ? 'ok  ' : 'FAIL'} ${window.name.padEnd(WIDTH)} ${verdictText(window)}  ${seconds} s`
}

/** Everything worth reading when the drill is over; the last line has the figures. */
export function story(result: DrillResult, folder: string): string {
  return [...failures(result, folder), lastLine(result)].join('\n')
}

/**
 * `drill orders: 12 windows found, 9 run, 12 reached, 0 failed; first verdict 2.1 s (limit 30 s), 14.0 s in all (limit 90
 * s)`.
 */
export function lastLine(result: DrillResult): string {
  const { name, windows, run, firstVerdictMs, tookMs } = result
  const reached = windows.filter((window) => window.reached).length
  const failed = windows.filter(({ passed }) => !passed).length
  const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`
  const limit = (ms: number): string => `limit ${Math.round(ms / 1_000)} s`
  return (
    `drill ${name}: ${windows.length} windows found, ${run} run, ${reached} reached, ${failed} failed; ` +
    `first verdict ${seconds(firstVerdictMs)} (${limit(FIRST_VERDICT_MS_MAX)}), ` +
    `${seconds(tookMs)} in all (${limit(longestMs(result))})`
  )
}

/** Whether the drill was as quick as drills are meant to be. */
export function inTime(result: DrillResult): boolean {
  return result.firstVerdictMs <= FIRST_VERDICT_MS_MAX && result.tookMs <= longestMs(result)
}

/** Handlers with more windows may take longer in proportion. */
const longestMs = ({ run }: DrillResult): number => (TEN_WINDOWS_MS_MAX / 10) * Math.max(10, run)

function failures(result: DrillResult, folder: string): readonly string[] {
  const { windows } = result
  const lines: string[] = []
  const failed = windows.filter(({ passed }) => !passed)
  const kinds = [...new Set(failed.map((window) => verdictText(window)))]
  for (const kind of kinds) {
    const alike = failed.filter((window) => verdictText(window) === kind)
    const [shortest] = alike
      .filter(({ run }) => run !== undefined)
      .sort((a, b) => (a.run?.events.length ?? 0) - (b.run?.events.length ?? 0))
    if (shortest?.run === undefined) {
      lines.push('', `${kind}: ${alike.map(({ name }) => name).join(', ')}`)
      continue
    }
    lines.push('', `${kind}: ${shortest.name}`, ...steps(shortest.run))
    lines.push(`   again: npx effectively-once drill replay ${drillToken(result, shortest, folder)}`)
    const others = alike.filter((window) => window !== shortest)
    if (others.length > 0) lines.push(`   also: ${others.map(({ name }) => name).join(', ')}`)
    lines.push('')
  }
  return lines
}

/** The run as numbered steps. */
export function steps({ events, ended, output }: RunResult): readonly string[] {
  const lines: string[] = []
  for (const [index, { actor, text, answers }] of events.entries()) {
    const who = actor === 0 ? '' : `process ${actor}: `
    if (answers === undefined) lines.push(`${who}${text}`)
    // An answer that comes at once stands behind what it answers.
    else if (answers === events[index - 1]) lines[lines.length - 1] += ` -> ${text}`
    else lines.push(`${who}${answers.text} is answered: ${text}`)
  }
  const numbered = shortened(lines).map((line, index) => `  ${String(index + 1).padStart(2)}. ${line}`)
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
  return [...numbered, ...reasons, ...printed]
}

/** The verdict, or why there is none. */
export function verdictText({ verdict, reached }: WindowResult): string {
  if (verdict === undefined) return 'NOT RUN'
  return reached ? verdict : 'NOT REACHED'
}

/** Longest group of steps that is looked for as a repetition. */
const GROUP_MAX = 16

/** Steps that are repeated one after the other are told once. */
function shortened(lines: readonly string[]): readonly string[] {
  // A step's place among all differs, the step does not.
  const alike = lines.map((line) => line.replaceAll(/\b(sql|amqp):\d+:/g, '$1:'))
  const out: string[] = []
  for (let at = 0; at < lines.length; ) {
    let [size, times] = [1, 1]
    for (let length = 1; length <= GROUP_MAX && times === 1; length += 1) {
      const group = alike.slice(at, at + length).join('\n')
      let repeats = 1
      while (alike.slice(at + repeats * length, at + (repeats + 1) * length).join('\n') === group) repeats += 1
      if (repeats > 1) [size, times] = [length, repeats]
    }
    out.push(...lines.slice(at, at + size))
    if (times > 1)
      out.push(size === 1 ? `(the same ${times - 1} times more)` : `(the last ${size} steps ${times - 1} times more)`)
    at += size * times
  }
  return out
}

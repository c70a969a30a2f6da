/**
 * Report: what a suite hands out, for people and as one line of JSON.
 *
 * @module
 */

import type { Paired, Side } from './paired.ts'

/** One figure. `ratio`, `quartiles` and `controlRatio` are of the pairs; `limit` and `ok` judge what the goal is for. */
export interface Result {
  readonly name: string
  readonly value: number
  readonly unit: string
  readonly direction: 'higher' | 'lower'
  /** The same unit. null where there is nothing to compare with. */
  readonly baseline: number | null
  readonly ratio: number | null
  readonly quartiles: readonly [number, number]
  readonly pairs: number
  readonly controlRatio: number | null
  readonly p50Ratio?: number | undefined
  /** The goal; absent = recorded only. */
  readonly limit?: number | undefined
  readonly ok?: boolean | undefined
}

export interface Report {
  readonly suite: string
  readonly versions: Readonly<Record<string, string>>
  /** Whether every commit was on disk before it was answered. */
  readonly durable: boolean
  readonly results: readonly Result[]
}

/** What is told while a suite runs; the figures of one result, and lines of text. */
export type Say = (line: string) => void

export interface RatioGoal {
  /** Least ratio. */
  readonly limit?: number | undefined
  /** Largest p50 ratio. */
  readonly p50Limit?: number | undefined
}

/** The result of paired slices, judged by its ratio. */
export function ratioResult(name: string, figures: Paired, goal: RatioGoal, say: Say): Result {
  const { candidate, baseline, ratio, quartiles, pairs, controlRatio, p50Ratio } = figures
  const result: Result = {
    name,
    value: round(candidate.perSecond, 1),
    unit: 'operations/s',
    direction: 'higher',
    baseline: round(baseline.perSecond, 1),
    ratio: round(ratio),
    quartiles: [round(quartiles[0]), round(quartiles[1])],
    pairs,
    controlRatio: round(controlRatio),
    p50Ratio: round(p50Ratio),
    ...(goal.limit === undefined
      ? {}
      : { limit: goal.limit, ok: ratio >= goal.limit && (goal.p50Limit === undefined || p50Ratio <= goal.p50Limit) }),
  }
  say(line(result))
  say(`  candidate ${side(candidate)}`)
  say(`  baseline  ${side(baseline)}`)
  say(`  CPU an operation, candidate / baseline: ${cpuRatio(candidate, baseline)}`)
  return result
}

/** A figure judged by its own value. */
export function valueResult(
  result: Pick<Result, 'name' | 'value' | 'unit' | 'direction' | 'quartiles' | 'pairs'> & Partial<Result>,
  say: Say,
): Result {
  const { limit, direction } = result
  const value = round(result.value)
  const full: Result = {
    ...result,
    value,
    quartiles: [round(result.quartiles[0]), round(result.quartiles[1])],
    baseline: rounded(result.baseline),
    ratio: rounded(result.ratio),
    controlRatio: rounded(result.controlRatio),
    ...(limit === undefined ? {} : { ok: result.ok ?? (direction === 'higher' ? value >= limit : value <= limit) }),
  }
  say(line(full))
  return full
}

function line(result: Result): string {
  const { name, value, unit, baseline, ratio, quartiles, controlRatio, p50Ratio, limit, ok, pairs } = result
  const parts = [`${name}: ${value} ${unit}`]
  if (baseline !== null) parts.push(`against ${baseline}`)
  if (ratio !== null) parts.push(`ratio ${ratio}`)
  parts.push(`quartiles [${quartiles.join(' .. ')}] of ${pairs}`)
  if (p50Ratio !== undefined) parts.push(`p50 ratio ${p50Ratio}`)
  if (controlRatio !== null) parts.push(`control ${controlRatio}`)
  parts.push(limit === undefined ? 'recorded' : `goal ${limit} ${ok === true ? 'met' : 'MISSED'}`)
  return parts.join(', ')
}

function side({ perSecond, p50Ms, cpu }: Side): string {
  return `${Math.round(perSecond)}/s, p50 ${p50Ms.toFixed(2)} ms, CPU ${cpu.client.toFixed(0)} us here + ${cpu.server.toFixed(0)} us server`
}

function cpuRatio(candidate: Side, baseline: Side): string {
  const sum = ({ cpu }: Side) => cpu.client + cpu.server
  return (sum(candidate) / sum(baseline)).toFixed(3)
}

function rounded(value: number | null | undefined): number | null {
  return value === null || value === undefined ? null : round(value)
}

/** At most `digits` decimals. */
export function round(value: number, digits = 3): number {
  return Number(value.toFixed(digits))
}

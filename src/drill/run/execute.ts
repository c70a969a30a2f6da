/**
 * Execute: one window, from fresh ground to its verdict.
 *
 * @module
 */

import { pause } from '../../shared/waiting.ts'
import { type Drill, isRequest } from '../file/checked.ts'
import type { DrillFile } from '../file/format.ts'
import type { Ground } from '../place/ground.ts'
import { DrillRefused } from '../place/refuse.ts'
import type { HandlerProcess } from '../process/handler-process.ts'
import type { Boundary } from './boundary.ts'
import { hasKey, otherPayloadOf } from './enumerate.ts'
import { type Ended, judge, type Verdict } from './judge.ts'
import { type Actor, Scene, type SceneEvent, stepName } from './scene.ts'
import type { Slots } from './slots.ts'
import { arm } from './strike.ts'
import type { BoundaryFault, Window } from './window.ts'

/** What a run has shown. */
export interface RunResult {
  readonly verdict: Verdict
  /** Whether the window was met. A window that was not proves nothing. */
  readonly reached: boolean
  readonly counts: Readonly<Record<string, number>>
  readonly ended: readonly Ended[]
  readonly events: readonly SceneEvent[]
  /** Boundaries of each process. */
  readonly traces: readonly Trace[]
  /** What the processes have printed. */
  readonly output: string
  readonly tookMs: number
  /** From the first delivery until all was settled, milliseconds. */
  readonly settledMs: number
}

/** What one process did. */
export interface Trace {
  readonly actor: number
  readonly boundaries: readonly Boundary[]
  /** Where the first fault struck it. */
  readonly struckAt: Boundary | undefined
}

/** What runs of one drill share. */
export interface Stage {
  readonly drill: Drill
  /** What the run without faults has shown. */
  usual: Usual
  readonly restart: (() => Promise<void>) | undefined
  readonly slots: Slots
  /** Removes what a run leaves behind, while the next one goes on already. */
  tidyUp(work: () => Promise<void>): Promise<void>
  openGround(): Promise<Ground>
  spawn(): Promise<HandlerProcess>
}

const LOOK_MS = 50

export const PLAIN: Window = { fault: 'none' }

export interface Usual {
  /** So long everything takes, milliseconds. */
  readonly settledMs: number
  /** How often one process takes a step of this name. */
  readonly times: (step: string) => number
  /** How a delivery ends. */
  readonly end: (delivery: number) => Ended | undefined
}

/** Until a run has ended nobody knows what is usual; nothing is believed to repeat itself. */
export const UNKNOWN: Usual = { settledMs: 5_000, times: () => Number.POSITIVE_INFINITY, end: () => undefined }

export function usualOf({ settledMs, traces, ended }: RunResult): Usual {
  const times = new Map<string, number>()
  for (const boundary of traces.flatMap(({ boundaries }) => boundaries)) {
    times.set(stepName(boundary), Math.max(times.get(stepName(boundary)) ?? 0, boundary.nth))
  }
  return {
    settledMs,
    times: (step) => times.get(step) ?? 0,
    end: (delivery) => ended.findLast((one) => one.delivery === delivery),
  }
}

/**
 * The run without faults, and from then on it is known what is usual. A handler that refuses with a conflict was asked again
 * and again until that was its last word; what it did then is not what it does when it is asked once.
 */
export async function plainRun(stage: Stage): Promise<RunResult> {
  const plain = await execute(stage, PLAIN)
  stage.usual = usualOf(plain)
  if (plain.ended.every(({ vainMs }) => vainMs === undefined)) return plain
  const once = await execute(stage, PLAIN)
  stage.usual = usualOf(once)
  return once
}

/** Effects that are promised, by the name of the count; undefined = some, and no more than the drill promises in all. */
export type Expected = Readonly<Record<string, number>> | undefined

/** Hears of each process of a run before anything is delivered to it. */
export type OnActor = (actor: Actor, scene: Scene) => void

export async function execute(stage: Stage, window: Window, onActor?: OnActor): Promise<RunResult> {
  if (window.fault === 'behind') return runBehind(stage, window)
  return run(stage, window, expectedOf(stage.drill, window), onActor)
}

/** One delivery behind another must have the effects that it has alone. */
async function runBehind(stage: Stage, window: Window): Promise<RunResult> {
  const alone: RunResult[] = []
  for (const number of window.deliveries ?? []) {
    alone.push(await execute(stage, { fault: 'alone', deliveries: [number] }))
  }
  const expected = stage.drill.counts.map(([name]): [string, number] => [
    name,
    alone.reduce((sum, { counts }) => sum + (counts[name] ?? 0), 0),
  ])
  const both = await run(stage, window, Object.fromEntries(expected))
  const difference = differenceOf(both.traces[0]?.boundaries ?? [], alone.at(-1)?.traces[0]?.boundaries ?? [])
  return difference === undefined ? both : { ...both, events: [...both.events, { actor: 0, text: difference }] }
}

/** The first step at which the last delivery of `both` is told something else than it is told `alone`. */
function differenceOf(both: readonly Boundary[], alone: readonly Boundary[]): string | undefined {
  const last = both.filter(({ toldBefore }) => toldBefore > 0)
  for (const [index, boundary] of alone.entries()) {
    const here = last[index]
    const answer = (one: Boundary | undefined): string =>
      one === undefined ? 'nothing' : `${stepName(one)} -> ${one.answer?.text ?? ''}`
    if (answer(here) !== answer(boundary)) return `here it is ${answer(here)}; alone it is ${answer(boundary)}`
  }
  return undefined
}

function expectedOf({ counts, expected, deliveries }: Drill, { deliveries: some }: Window): Expected {
  if (some !== undefined && expected !== deliveries.length) return undefined
  return Object.fromEntries(counts.map(([name]) => [name, some === undefined ? expected : some.length]))
}

async function run(stage: Stage, window: Window, promised: Expected, onActor: OnActor = () => {}): Promise<RunResult> {
  const began = performance.now()
  const { drill, restart } = stage
  const ground = await stage.openGround()
  const { fault, at, second } = window
  const scene: Scene = new Scene({
    drill,
    ground,
    settleMs: drill.settleMs + stage.usual.settledMs,
    usual: stage.usual.times,
    usualEnd: stage.usual.end,
    spawn: () => stage.spawn(),
    onActor(actor) {
      const context = { scene, drill, restart, idle: <T>(work: Promise<T>) => stage.slots.lend(work) }
      if (actor.number === 1 && at !== undefined) arm({ fault: fault as BoundaryFault, at }, actor, context)
      if (actor.number === second?.actor) arm(second, actor, context)
      onActor(actor, scene)
    },
  })
  try {
    await scene.start()
    const playedAt = performance.now()
    const otherDone = await play(scene, stage, window, ground)
    const vainMs = scene.ended.reduce((sum, ended) => sum + (ended.vainMs ?? 0), 0)
    const settledMs = performance.now() - playedAt - vainMs
    const counts = await counted(scene, ground, promised)
    const expected = promised ?? someOf(counts, drill.expected)
    const { ended, events, actors } = scene
    if (actors.some(({ process }) => process.gateway.sentLiveKey)) {
      throw new DrillRefused('the handler was about to send a live key of a provider; a drill repeats calls on purpose')
    }
    scene.note(0, sentence(counts, expected))
    const met = (number: number): boolean => actors[number - 1]?.watch.met === true
    return {
      verdict: judge({
        ended,
        counts,
        expected,
        sameAnswers: sameAnswers(drill),
        usually: (delivery) => stage.usual.end(delivery)?.kind,
        otherDone,
      }),
      reached: (at === undefined || met(1)) && (second === undefined || met(second.actor)),
      counts,
      ended,
      events,
      traces: actors.map(({ number, watch: { boundaries, struckAt } }) => ({ actor: number, boundaries, struckAt })),
      output: actors.map(({ process }) => process.output).join(''),
      tookMs: performance.now() - began,
      settledMs,
    }
  } finally {
    await Promise.all(scene.actors.map(({ process }) => process.kill()))
    await stage.tidyUp(async () => {
      await scene.close()
      await ground.close()
    })
  }
}

/** What one of several deliveries has done is promised, if it has done anything. */
function someOf(counts: Readonly<Record<string, number>>, most: number): Readonly<Record<string, number>> {
  const nothing = Object.values(counts).every((count) => count === 0)
  return Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, nothing ? 1 : Math.min(count, most)]))
}

/** Counts when all is quiet. What is done behind the answers gets as much time as everything else. */
async function counted(scene: Scene, ground: Ground, expected: Expected): Promise<Readonly<Record<string, number>>> {
  await scene.quiet()
  const allDone = scene.ended.every(({ kind }) => kind === 'done')
  if (allDone) scene.patience.news()
  for (let rounds = 0; ; rounds += 1) {
    const counts = await ground.counts()
    const missing =
      expected === undefined
        ? Object.values(counts).every((count) => count === 0)
        : Object.entries(counts).some(([name, count]) => count < (expected[name] ?? 0))
    if (missing && allDone && !scene.patience.over) {
      await pause(LOOK_MS)
      continue
    }
    if (missing || rounds === 0) return counts
    await scene.quiet()
    return ground.counts()
  }
}

/** Delivers as the window wants it. Returns whether another payload under the same key was told that it is done. */
async function play(
  scene: Scene,
  { drill }: Stage,
  { fault, deliveries: some }: Window,
  ground: Ground,
): Promise<boolean> {
  const chosen = drill.deliveries.filter((_, number) => some === undefined || some.includes(number))
  const deliveries = fault === 'reorder' ? chosen.toReversed() : chosen
  for (const delivery of deliveries) {
    const times = fault === 'at-once' ? 3 : 1
    await Promise.all(Array.from({ length: times }, () => scene.deliver(delivery)))
  }
  if (fault === 'again') {
    for (const delivery of deliveries) await scene.deliver(delivery)
    scene.note(0, 'the process is replaced by a new one')
    await Promise.all(scene.actors.map(({ process }) => process.kill()))
    for (const delivery of deliveries) await scene.deliver(delivery)
  }
  if (fault === 'retention') {
    scene.note(0, 'time passes (`expire`)')
    await expire(drill.expire, ground)
    for (const delivery of deliveries) await scene.deliver(delivery)
  }
  const other = fault === 'other-payload' ? otherPayloadOf(drill) : undefined
  if (other === undefined) return false
  scene.note(0, 'another payload comes under the same key')
  if (!isRequest(other)) {
    await scene.deliver(other)
    return false
  }
  return (await scene.attempt(await scene.current(), other)).kind === 'done'
}

async function expire(by: DrillFile['expire'], { place }: Ground): Promise<void> {
  if (typeof by === 'string') await place.query(by)
  else await by?.(place)
}

function sameAnswers({ sameResponse, deliveries }: Drill): boolean {
  return sameResponse ?? deliveries.some((delivery) => isRequest(delivery) && hasKey(delivery))
}

function sentence(counts: Readonly<Record<string, number>>, expected: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .map(([name, count]) => `${name}: ${count}, promised ${expected[name] ?? 0}`)
    .join('; ')
}

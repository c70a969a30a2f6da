/** Run: one path from its traces to the verdict on each of its windows. */
import { checkedDrill } from '../../src/drill/file/checked.ts'
import type { Compiled } from '../../src/drill/file/compile.ts'
import type { DrillFile } from '../../src/drill/file/format.ts'
import { openStage } from '../../src/drill/place/stage.ts'
import { execute, type RunResult, type Stage, usualOf } from '../../src/drill/run/execute.ts'
import { isGood } from '../../src/drill/run/judge.ts'
import { type Death, has, type PathWindow, windowsIn } from './found.ts'
import type { Moment } from './moment.ts'
import { type Looking, lookBehind } from './world.ts'

/** One death and what it has shown. */
export interface Died {
  readonly name: string
  readonly run: RunResult
  /** Whether the process died there. */
  readonly reached: boolean
}

/** One window and what is known about it. */
export interface Judged extends PathWindow {
  readonly path: string
  readonly ran: readonly Died[]
  /** Whether the process died there, at each of its ends. */
  readonly reached: boolean
  /** Whether one effect was left every time, also when the process lived on. */
  readonly good: boolean
}

export interface PathResult {
  readonly path: string
  /** What the first run did. */
  readonly moments: readonly Moment[]
  /** Windows that most runs without faults have. */
  readonly found: readonly PathWindow[]
  readonly windows: readonly Judged[]
  /** Deaths that later runs did not have any more, so that they belonged to the time that the first ones took. */
  readonly passing: readonly Death[]
  /** Why it has none: a run without faults was not good. */
  readonly broken?: RunResult | undefined
  readonly tookMs: number
}

export interface Servers {
  readonly databaseUrl: string
  /** Virtual hosts that nobody else uses meanwhile; so many deaths go on at once. */
  readonly amqpUrls: readonly string[]
}

/** Runs without faults: a window is in most of them. */
const TRACES = 3
/** A death that its process did not meet is tried so often in all: what a path does may depend on time. */
const TRIES = 5

/** The module of all paths: a process of it loads the one that WINDOWS_PATH names. */
export interface PathModule extends Compiled {
  /** Its source; packages are found from there. */
  readonly source: string
}

export interface RunPathOptions {
  /** Only looks which windows there are. */
  readonly traceOnly?: boolean
  /** Places (between which two changes) that another path has tried at both ends; here one end is enough. */
  readonly tried?: Set<string>
}

export async function runPath(
  path: string,
  file: DrillFile,
  module: PathModule,
  { databaseUrl, amqpUrls }: Servers,
  { traceOnly = false, tried = new Set() }: RunPathOptions = {},
): Promise<PathResult> {
  const began = performance.now()
  const drill = { ...checkedDrill({ default: { name: path, ...file } }, path), path: module.source }
  const stage = await openStage(drill, module, {
    databaseUrl,
    amqpUrls,
    workers: amqpUrls.length,
    permissions: { allowHosts: [], throwAway: new URL(databaseUrl).pathname.slice(1) },
    env: { ...process.env, WINDOWS_PATH: path },
  })
  try {
    const first = await looked(stage)
    stage.usual = usualOf(first.run)
    const runs = [first]
    while (runs.length < TRACES && runs.every(({ run }) => isGood(run.verdict))) runs.push(await looked(stage))
    const traces = runs.map(({ moments }) => moments)
    const broken = runs.find(({ run }) => !isGood(run.verdict))?.run
    const found = broken === undefined ? windowsIn(traces) : []
    const judged = traceOnly
      ? []
      : await inLines(found, amqpUrls.length, (one) => judge({ stage, path, traces, tried }, one))
    const windows = judged.filter(({ ran, good }) => ran.length > 0 || !good)
    return {
      path,
      moments: traces[0] ?? [],
      found: traceOnly ? found : windows,
      windows,
      passing: judged.flatMap(({ passing }) => passing),
      broken,
      tookMs: performance.now() - began,
    }
  } finally {
    await stage.close()
  }
}

interface Looked {
  readonly run: RunResult
  readonly moments: readonly Moment[]
  readonly died: boolean
}

/** A run whose first process is looked behind, and dies at `death`. */
async function looked(stage: Stage, death?: Death): Promise<Looked> {
  let looking: Looking | undefined
  const run = await execute(stage, { fault: 'none' }, (actor, scene) => {
    looking ??= lookBehind(actor, scene, death)
  })
  return { run, moments: looking?.moments ?? [], died: looking?.died === true }
}

interface Judging {
  readonly stage: Stage
  readonly path: string
  readonly traces: readonly (readonly Moment[])[]
  readonly tried: Set<string>
}

async function judge(
  { stage, path, traces, tried }: Judging,
  window: PathWindow,
): Promise<Judged & { readonly passing: readonly Death[] }> {
  const ran: Died[] = []
  const passing: Death[] = []
  let good = true
  const tryOnce = async (death: Death): Promise<Looked> => {
    const last = await looked(stage, death)
    good &&= isGood(last.run.verdict)
    return last
  }
  for (const death of tried.has(window.place) ? window.deaths.slice(0, 1) : window.deaths) {
    const missed: (readonly Moment[])[] = []
    let last = await tryOnce(death)
    while (!last.died && missed.push(last.moments) < TRIES) last = await tryOnce(death)
    // A run that was not struck is one more without faults; what none of them has is not what a path usually does.
    if (!last.died && !missed.some((moments) => has(moments, death, traces))) passing.push(death)
    else ran.push({ name: death.name, run: last.run, reached: last.died })
  }
  tried.add(window.place)
  return {
    ...window,
    path,
    ran,
    passing,
    reached: ran.every(({ reached }) => reached),
    good,
  }
}

/** Results in the order of the items. */
async function inLines<T, R>(items: readonly T[], lines: number, act: (item: T) => Promise<R>): Promise<readonly R[]> {
  const results: R[] = []
  const queue = [...items.entries()]
  const line = async (): Promise<void> => {
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) results[next[0]] = await act(next[1])
  }
  await Promise.all(Array.from({ length: lines }, line))
  return results
}

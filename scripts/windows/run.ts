/** Run: one path from its trace to the verdict on each of its windows. */
import { checkedDrill } from '../../src/drill/file/checked.ts'
import type { Compiled } from '../../src/drill/file/compile.ts'
import type { DrillFile, DrillPlace } from '../../src/drill/file/format.ts'
import type { Ground } from '../../src/drill/place/ground.ts'
import { openStage } from '../../src/drill/place/stage.ts'
import { type Boundary, sameBoundary } from '../../src/drill/run/boundary.ts'
import { execute, type RunResult, type Stage, usualOf } from '../../src/drill/run/execute.ts'
import { isGood } from '../../src/drill/run/judge.ts'
import { type Death, type PathWindow, windowsIn } from './found.ts'
import { type Looking, type Looks, lookBehind } from './world.ts'

/** One death and what it has shown. */
export interface Died {
  readonly name: string
  readonly run: RunResult
}

/** One window and what is known about it. */
export interface Judged extends PathWindow {
  readonly path: string
  readonly ran: readonly Died[]
  /** Whether the process died there, at each of its ends. */
  readonly reached: boolean
  /** Whether one effect was left every time. */
  readonly good: boolean
}

export interface PathResult {
  readonly path: string
  readonly trace: readonly Boundary[]
  /** What each step of the trace has changed. */
  readonly looks: Looks
  readonly found: readonly PathWindow[]
  readonly windows: readonly Judged[]
  /** Why it has none: the run without faults was not good. */
  readonly broken?: RunResult | undefined
  readonly tookMs: number
}

export interface Servers {
  readonly databaseUrl: string
  /** A virtual host that nobody else uses meanwhile. */
  readonly amqpUrl: string
}

/** A window that was not reached is run again this often: what a path does may depend on time. */
const TRIES = 4

/** The module of all paths: a process of it loads the one that WINDOWS_PATH names. */
export interface PathModule extends Compiled {
  /** Its source; packages are found from there. */
  readonly source: string
}

export interface RunPathOptions {
  /** Only looks which windows there are. */
  readonly traceOnly?: boolean
  /** Windows that another path has tried at both ends; here one end is enough. */
  readonly tried?: Set<string>
}

export async function runPath(
  path: string,
  file: DrillFile,
  module: PathModule,
  { databaseUrl, amqpUrl }: Servers,
  { traceOnly = false, tried = new Set() }: RunPathOptions = {},
): Promise<PathResult> {
  const began = performance.now()
  const drill = { ...checkedDrill({ default: { name: path, ...file } }, path), path: module.source }
  const stage = await openStage(drill, module, {
    databaseUrl,
    amqpUrls: [amqpUrl],
    workers: 1,
    permissions: { allowHosts: [], throwAway: new URL(databaseUrl).pathname.slice(1) },
    env: { ...process.env, WINDOWS_PATH: path },
  })
  try {
    const { plain, looks } = await traced(stage)
    const trace = plain.traces[0]?.boundaries ?? []
    // What only one of two runs does belongs to its time, not to the path: a renewal while the machine was slow.
    const again = await execute(stage, { fault: 'none' })
    const usual = again.traces[0]?.boundaries ?? []
    const found = windowsIn(trace, looks).filter(({ deaths }) => deaths.every((death) => isIn(usual, death)))
    const ended = (windows: readonly Judged[], broken?: RunResult): PathResult => ({
      path,
      trace,
      looks,
      found,
      windows,
      broken,
      tookMs: performance.now() - began,
    })
    if (!isGood(plain.verdict)) return ended([], plain)
    if (traceOnly) return ended([])
    stage.usual = usualOf(again)
    const windows: Judged[] = []
    for (const one of found) {
      const ran: Died[] = []
      for (const { window, name } of tried.has(one.between) ? one.deaths.slice(0, 1) : one.deaths) {
        let run = await execute(stage, window)
        for (let tries = 1; tries < TRIES && !run.reached; tries += 1) run = await execute(stage, window)
        ran.push({ name, run })
      }
      tried.add(one.between)
      windows.push({
        ...one,
        path,
        ran,
        reached: ran.every(({ run }) => run.reached),
        good: ran.every(({ run }) => isGood(run.verdict)),
      })
    }
    return ended(windows)
  } finally {
    await stage.close()
  }
}

/** The run without faults; its first process is looked behind. */
async function traced(stage: Stage): Promise<{ readonly plain: RunResult; readonly looks: Looks }> {
  let ground: Ground | undefined
  let looking: Looking | undefined
  const place = (): DrillPlace => {
    if (ground === undefined) throw new Error('no ground')
    return ground.place
  }
  const plain = await execute(
    {
      ...stage,
      openGround: async () => {
        const opened = await stage.openGround()
        ground = opened
        return {
          ...opened,
          async close() {
            await looking?.end()
            await opened.close()
          },
        }
      },
      spawn: async () => {
        const process = await stage.spawn()
        looking ??= lookBehind(process, place)
        return process
      },
    },
    { fault: 'none' },
  )
  return { plain, looks: looking?.looks ?? [] }
}

const isIn = (trace: readonly Boundary[], { window: { at } }: Death): boolean =>
  at !== undefined && trace.some((boundary) => sameBoundary(boundary, at))

/**
 * Drill: finds every dangerous window of a handler, hurts it there, and judges what is left.
 *
 * @module
 */

import { availableParallelism } from 'node:os'
import { resolve } from 'node:path'
import { checkedDrill, type Drill } from './file/checked.ts'
import { type Compiled, compile } from './file/compile.ts'
import { openBroker } from './place/broker.ts'
import { openDatabases } from './place/databases.ts'
import { openGround } from './place/ground.ts'
import { type Permissions, refuseLiveKeys } from './place/refuse.ts'
import { processEntry, spawnHandler } from './process/handler-process.ts'
import { Ahead } from './run/ahead.ts'
import { execute, type RunResult, type Stage } from './run/execute.ts'
import { isGood, type Verdict } from './run/judge.ts'
import { type FoundWindow, windowsOf } from './run/window.ts'

export interface DrillOptions {
  /** The server that holds the throw-away databases. Default: DATABASE_URL, else a private one. */
  readonly databaseUrl?: string | undefined
  /** Default: AMQP_URL, else a private node, for drills that name queues. */
  readonly amqpUrl?: string | undefined
  /** Runs at once. Default: the processors, 2 to 4. */
  readonly workers?: number | undefined
  readonly allowHosts?: readonly string[] | undefined
  readonly throwAway?: string | undefined
  /** Default: this process's. */
  readonly env?: Readonly<Record<string, string | undefined>> | undefined
  /** Hears of everything that is worth a line. */
  readonly onProgress?: ((progress: DrillProgress) => void) | undefined
  readonly signal?: AbortSignal | undefined
}

export interface DrillProgress {
  readonly done: number
  readonly of: number
  readonly latest: WindowResult
}

/** One window and what is known about it. */
export interface WindowResult extends FoundWindow {
  readonly verdict: Verdict
  readonly reached: boolean
  readonly passed: boolean
  /** Undefined for a window that an equal one answers for. */
  readonly run?: RunResult | undefined
}

export interface DrillResult {
  readonly name: string
  readonly path: string
  readonly codeHash: string
  readonly passed: boolean
  readonly windows: readonly WindowResult[]
  readonly found: number
  readonly run: number
  readonly reached: number
  readonly firstVerdictMs: number
  readonly tookMs: number
  readonly versions: Readonly<Record<string, string>>
}

/**
 * Drills the handler of a file.
 *
 * @throws {TypeError} when the file is no drill. @throws {DrillRefused} when something could be lost.
 */
export async function drill(file: string, options: DrillOptions = {}): Promise<DrillResult> {
  const began = performance.now()
  const { env = process.env, signal } = options
  const permissions: Permissions = { allowHosts: options.allowHosts ?? [], throwAway: options.throwAway }
  const path = resolve(file)
  const closing: (() => Promise<unknown>)[] = []
  try {
    const compiled = await compile(path)
    closing.push(() => compiled.remove())
    const loaded = checkedDrill(await import(compiled.url), path)
    refuseLiveKeys(env, '')
    const stage = await openStage({ loaded, compiled, options, permissions, env, closing })
    const windows: WindowResult[] = []
    const trace = await execute(stage, { fault: 'none' })
    const firstVerdictMs = performance.now() - began
    stage.slackMs = SLACK * trace.tookMs
    const plain = resultOf({ window: { fault: 'none' }, name: 'no fault' }, trace)
    windows.push(plain)
    const found = plain.passed ? windowsOf(loaded, trace.trace) : []
    options.onProgress?.({ done: 1, of: found.length + 1, latest: plain })
    const results = new Map<string, WindowResult>()
    const queue = found.filter(({ equalTo }) => equalTo === undefined)
    const worker = async (): Promise<void> => {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
        if (signal?.aborted === true) return
        const result = resultOf(next, await execute(stage, next.window))
        results.set(next.name, result)
        options.onProgress?.({ done: results.size + 1, of: found.length + 1, latest: result })
      }
    }
    await Promise.all(Array.from({ length: stage.workers }, worker))
    for (const one of found) {
      const answering = results.get(one.equalTo ?? one.name)
      if (answering === undefined) continue
      const { verdict, reached, passed } = answering
      windows.push(one.equalTo === undefined ? answering : { ...one, verdict, reached, passed })
    }
    return {
      name: loaded.name,
      path,
      codeHash: compiled.codeHash,
      passed: windows.every(({ passed }) => passed),
      windows,
      found: windows.length,
      run: results.size + 1,
      reached: windows.filter(({ reached }) => reached).length,
      firstVerdictMs,
      tookMs: performance.now() - began,
      versions: stage.versions,
    }
  } finally {
    for (const close of closing.reverse()) await close()
  }
}

function resultOf(found: FoundWindow, run: RunResult): WindowResult {
  const { verdict, reached } = run
  return { ...found, verdict, reached, passed: reached && isGood(verdict), run }
}

/** Times that the run without faults took, added to every bound. */
const SLACK = 3
const FIRST_SLACK_MS = 20_000

interface Opening {
  readonly loaded: Drill
  readonly compiled: Compiled
  readonly options: DrillOptions
  readonly permissions: Permissions
  readonly env: Readonly<Record<string, string | undefined>>
  readonly closing: (() => Promise<unknown>)[]
}

interface OpenStage extends Stage {
  readonly workers: number
  readonly versions: Readonly<Record<string, string>>
}

async function openStage({ loaded, compiled, options, permissions, env, closing }: Opening): Promise<OpenStage> {
  const wanted = options.workers ?? Math.min(4, Math.max(2, availableParallelism()))
  const databases = await openDatabases(named(options.databaseUrl ?? env['DATABASE_URL']), loaded.path, permissions)
  closing.push(() => databases.close())
  const broker = await openBroker(loaded, named(options.amqpUrl ?? env['AMQP_URL']), wanted, permissions)
  if (broker !== undefined) closing.push(() => broker.close())
  await databases.prepare(loaded.setUp, broker?.url ?? '')
  const workers = broker === undefined ? wanted : Math.min(wanted, broker.vhosts)
  const entry = await processEntry()
  closing.push(() => entry.remove())
  const kind = {
    module: compiled.url,
    entry: entry.path,
    hosts: permissions.allowHosts,
    databaseUrl: databases.url,
    amqpUrl: broker?.url,
    env,
  }
  const processes = new Ahead(
    workers,
    () => spawnHandler(kind),
    (process) => process.close(),
  )
  const copies = new Ahead(
    workers,
    () => databases.create(),
    (database) => databases.drop(database),
  )
  closing.push(
    () => processes.close(),
    () => copies.close(),
  )
  return {
    drill: loaded,
    slackMs: FIRST_SLACK_MS,
    workers,
    versions: { node: process.version, postgres: databases.version },
    openGround: async () => openGround({ drill: loaded, databases, broker }, await copies.take()),
    spawn: () => processes.take(),
  }
}

const named = (url: string | undefined): string | undefined => (url === '' ? undefined : url)

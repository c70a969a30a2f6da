/**
 * Drill: finds every dangerous window of a handler, hurts it there, and judges what is left.
 *
 * @module
 */

import { availableParallelism } from 'node:os'
import { relative, resolve } from 'node:path'
import { checkedDrill } from './file/checked.ts'
import { compile } from './file/compile.ts'
import { refuseLiveKeys } from './place/refuse.ts'
import { type OpenStage, openStage } from './place/stage.ts'
import type { Boundary } from './run/boundary.ts'
import { type CampaignOptions, campaign, resultOf, takeApart, type WindowResult } from './run/campaign.ts'
import { execute, PLAIN, plainRun, type RunResult } from './run/execute.ts'
import { readToken, tokenOf, windowName } from './run/window.ts'

export interface DrillOptions {
  /** The server that holds the throw-away databases; empty = a private one. Default: DATABASE_URL, else a private one. */
  readonly databaseUrl?: string | undefined
  /**
   * Default: AMQP_URL, else a private node, for drills that name queues. Each run has a virtual host to itself: several of
   * one broker let as many runs go on at once.
   */
  readonly amqpUrl?: string | readonly string[] | undefined
  /** Runs at once. Default: the processors, 2 to 4. */
  readonly workers?: number | undefined
  /** Also a second fault during the recovery from the first. Default false. */
  readonly pairs?: boolean | undefined
  /** No window is begun after this time, milliseconds. Those that are left count as not passed. Default: no bound. */
  readonly budgetMs?: number | undefined
  /** Hosts outside of this machine that the drill and the handler may reach. Default none. */
  readonly allowHosts?: readonly string[] | undefined
  /** Name of the database in `databaseUrl`, when nothing else marks it as throw-away. */
  readonly throwAway?: string | undefined
  /** Environment of the handler and of the defaults above. Default: this process's. */
  readonly env?: Readonly<Record<string, string | undefined>> | undefined
  /** Hears of each window that was run. */
  readonly onProgress?: ((progress: DrillProgress) => void) | undefined
  /** Ends the drill behind the windows that are being run. */
  readonly signal?: AbortSignal | undefined
}

export interface DrillProgress {
  /** Windows that have a verdict, equal ones included. */
  readonly done: number
  readonly of: number
  readonly latest: WindowResult
}

export interface DrillResult {
  readonly name: string
  readonly path: string
  /** SHA-256 of the handler's code, hex. */
  readonly codeHash: string
  /** Whether every window that was found was reached and has a good verdict. */
  readonly passed: boolean
  readonly windows: readonly WindowResult[]
  /** What the handler does, in the run without faults. */
  readonly trace: readonly Boundary[]
  /** Windows that were executed; the others equal one of these. */
  readonly run: number
  readonly firstVerdictMs: number
  readonly tookMs: number
  readonly versions: Readonly<Record<string, string>>
}

/**
 * Drills the handler of a file: every window that its run without faults shows.
 *
 * @throws {TypeError} when the file is no drill or something is missing. @throws {DrillRefused} when something could be
 *   lost. @throws {Error} when the handler cannot be started.
 * @example
 * const result = await drill('./orders.drill.ts')
 * assert.ok(result.passed)
 */
export function drill(file: string, options: DrillOptions = {}): Promise<DrillResult> {
  return onStage(file, options, async (stage, plain, began) => {
    const { onProgress } = options
    const first = resultOf({ window: PLAIN, name: windowName(PLAIN) }, plain)
    onProgress?.({ done: 1, of: 1, latest: first })
    const settings: CampaignOptions = {
      runs: stage.runs,
      pairs: options.pairs ?? false,
      endsAt: options.budgetMs === undefined ? Number.POSITIVE_INFINITY : began + options.budgetMs,
      signal: options.signal,
      onResult: (latest, done, of) => onProgress?.({ done: done + 1, of: of + 1, latest }),
    }
    return [first, ...(await (first.passed ? campaign(stage, plain, settings) : takeApart(stage, settings)))]
  })
}

/**
 * Runs one window again, as its token names it.
 *
 * @param token - From the story of a failed window; its path counts from `folder`.
 */
export async function replayDrill(token: string, folder: string, options: DrillOptions = {}): Promise<DrillResult> {
  const { path, window } = readToken(token)
  return onStage(resolve(folder, path), options, async (stage, plain) => [
    resultOf({ window, name: windowName(window) }, window.fault === 'none' ? plain : await execute(stage, window)),
  ])
}

/** The token that {@link replayDrill} takes. */
export function drillToken(result: Pick<DrillResult, 'path'>, { window }: WindowResult, folder: string): string {
  return tokenOf(relative(folder, result.path), window)
}

type Use = (stage: OpenStage, plain: RunResult, began: number) => Promise<readonly WindowResult[]>

/** Opens everything, runs once without faults, and puts the result together. */
async function onStage(file: string, options: DrillOptions, use: Use): Promise<DrillResult> {
  const began = performance.now()
  const { env = process.env } = options
  const path = resolve(file)
  const compiled = await compile(path)
  let stage: OpenStage | undefined
  try {
    refuseLiveKeys(env, compiled.code)
    const loaded = checkedDrill(await import(compiled.url), path)
    stage = await openStage(loaded, compiled, {
      databaseUrl: named(options.databaseUrl ?? env['DATABASE_URL']),
      amqpUrls: [options.amqpUrl ?? env['AMQP_URL'] ?? []].flat().filter((url) => url !== ''),
      workers: options.workers ?? Math.min(4, Math.max(2, availableParallelism())),
      permissions: { allowHosts: options.allowHosts ?? [], throwAway: options.throwAway },
      env,
    })
    const plain = await plainRun(stage)
    const firstVerdictMs = performance.now() - began
    const windows = await use(stage, plain, began)
    return {
      name: loaded.name,
      path,
      codeHash: compiled.codeHash,
      passed: windows.every(({ passed }) => passed),
      windows,
      trace: plain.traces[0]?.boundaries ?? [],
      run: windows.filter(({ run }) => run !== undefined).length,
      firstVerdictMs,
      tookMs: performance.now() - began,
      versions: stage.versions,
    }
  } finally {
    await stage?.close()
    await compiled.remove()
  }
}

const named = (url: string | undefined): string | undefined => (url === '' ? undefined : url)

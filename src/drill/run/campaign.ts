/**
 * Campaign: all windows of a handler, several at once, until every one has a verdict or the time is over.
 *
 * @module
 */

import { deliveryWindows, type FoundWindow, pairsOf, windowsOf } from './enumerate.ts'
import { execute, type RunResult, type Stage } from './execute.ts'
import { isGood, type Verdict } from './judge.ts'
import { Turns } from './turns.ts'

/** One window and what is known about it. */
export interface WindowResult extends FoundWindow {
  /** Undefined when it was not run, because the time was over. */
  readonly verdict?: Verdict | undefined
  readonly reached: boolean
  readonly passed: boolean
  /** Undefined for a window that an equal one answers for. */
  readonly run?: RunResult | undefined
}

export interface CampaignOptions {
  /** Runs under way at once. */
  readonly runs: number
  /** Faults during the recovery from a fault too. */
  readonly pairs: boolean
  /** No window is begun after this instant of performance.now(). */
  readonly endsAt: number
  readonly signal: AbortSignal | undefined
  readonly onResult: (result: WindowResult, done: number, of: number) => void
}

/** A window that was not reached is run again this often: what a handler does may depend on time. */
const TRIES = 3

/** The run without faults has shown `plain`; its trace says what there is to try. */
export async function campaign(
  stage: Stage,
  plain: RunResult,
  options: CampaignOptions,
): Promise<readonly WindowResult[]> {
  const boundaries = plain.traces[0]?.boundaries ?? []
  const found = windowsOf(stage.drill, boundaries).filter(
    ({ window }) => window.fault !== 'restart' || stage.restart !== undefined,
  )
  const singles = await all(stage, found, options, 0)
  if (!options.pairs) return singles
  const pairs = singles.flatMap(({ window, run, passed }) =>
    run !== undefined && passed && ['kill', 'lost', 'reset'].includes(window.fault) ? pairsOf(window, run.traces) : [],
  )
  return [...singles, ...(await all(stage, pairs, options, found.length))]
}

/** What goes wrong without any fault: several deliveries are taken apart, so that the one that gets lost has a name. */
export async function takeApart(stage: Stage, options: CampaignOptions): Promise<readonly WindowResult[]> {
  return all(stage, deliveryWindows(stage.drill), options, 0)
}

async function all(
  stage: Stage,
  found: readonly FoundWindow[],
  { runs, endsAt, signal, onResult }: CampaignOptions,
  before: number,
): Promise<readonly WindowResult[]> {
  const turns = new Turns()
  const results = new Map<string, WindowResult>()
  const queue = found.filter(({ equalTo }) => equalTo === undefined)
  const answersFor = new Map<string, number>()
  for (const { equalTo, name } of found) {
    answersFor.set(equalTo ?? name, (answersFor.get(equalTo ?? name) ?? 0) + 1)
  }
  let done = 0
  const worker = async (): Promise<void> => {
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      if (signal?.aborted === true || performance.now() > endsAt) return
      const { window } = next
      const once = (): Promise<RunResult> => execute(stage, window)
      let run: RunResult | undefined
      for (let tries = 0; tries < TRIES && run?.reached !== true; tries += 1) {
        run = await (window.fault === 'restart' ? turns.alone(once) : turns.together(() => stage.slots.use(once)))
      }
      if (run === undefined) return
      const result = resultOf(next, run)
      results.set(next.name, result)
      done += answersFor.get(next.name) ?? 1
      onResult(result, before + done, before + found.length)
    }
  }
  await Promise.all(Array.from({ length: runs }, worker))
  return found.map((one) => {
    const answering = results.get(one.equalTo ?? one.name)
    if (answering === undefined) return { ...one, reached: false, passed: false }
    if (one.equalTo === undefined) return answering
    const { verdict, reached, passed } = answering
    return { ...one, verdict, reached, passed }
  })
}

export function resultOf(found: FoundWindow, run: RunResult): WindowResult {
  const { verdict, reached } = run
  return { ...found, verdict, reached, passed: reached && isGood(verdict), run }
}

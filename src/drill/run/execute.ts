/**
 * Execute: one window, from fresh ground to its verdict.
 *
 * @module
 */

import type { Drill } from '../file/checked.ts'
import { isRequest } from '../file/checked.ts'
import type { Ground } from '../place/ground.ts'
import type { HandlerProcess } from '../process/handler-process.ts'
import type { Decision } from '../process/link.ts'
import type { Boundary } from './boundary.ts'
import { type Ended, judge, type Verdict } from './judge.ts'
import { Scene, type SceneEvent } from './scene.ts'
import type { Window } from './window.ts'

/** What a run has shown. */
export interface RunResult {
  readonly verdict: Verdict
  /** Whether the window was met. A window that was not proves nothing. */
  readonly reached: boolean
  readonly counts: Readonly<Record<string, number>>
  readonly ended: readonly Ended[]
  readonly events: readonly SceneEvent[]
  /** Boundaries of the first process. */
  readonly trace: readonly Boundary[]
  /** What the processes have printed. */
  readonly output: string
  readonly tookMs: number
}

/** What runs of one drill share. */
export interface Stage {
  readonly drill: Drill
  /** Added to the time until all must be settled: what this machine is slower than it could be. Milliseconds. */
  slackMs: number
  openGround(): Promise<Ground>
  spawn(): Promise<HandlerProcess>
}

export async function execute(stage: Stage, window: Window): Promise<RunResult> {
  const began = performance.now()
  const { drill } = stage
  const ground = await stage.openGround()
  const scene = new Scene(drill, ground, drill.settleMs + stage.slackMs, () => stage.spawn())
  try {
    const first = await scene.start()
    if (window.at !== undefined) {
      const { side } = window.at
      first.watch.arm(window.at, side, async (): Promise<Decision> => {
        scene.note(1, side === 'before' ? 'is killed before this leaves it' : 'is killed before it hears the answer')
        await first.process.kill()
        return 'reset'
      })
    }
    const ended: Ended[] = []
    for (const delivery of drill.deliveries) ended.push(await scene.deliver(delivery))
    await scene.quiet()
    const counts = await ground.counts()
    scene.note(
      0,
      Object.entries(counts)
        .map(([name, count]) => `${name}: ${count}, promised ${drill.expected}`)
        .join('; '),
    )
    return {
      verdict: judge({ ended, counts, expected: drill.expected, sameAnswers: drill.deliveries.some(isRequest) }),
      reached: window.at === undefined || first.watch.met,
      counts,
      ended,
      events: scene.events,
      trace: first.watch.boundaries,
      output: scene.actors.map(({ process }) => process.output).join(''),
      tookMs: performance.now() - began,
    }
  } finally {
    await scene.close()
    await ground.close()
  }
}

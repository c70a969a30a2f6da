/**
 * Strike: what each fault does to a process that has reached its boundary.
 *
 * @module
 */

import { pause } from '../../shared/waiting.ts'
import type { Drill } from '../file/checked.ts'
import type { Decision } from '../process/link.ts'
import type { Actor, Scene } from './scene.ts'
import type { Strike } from './window.ts'

export interface StrikeContext {
  readonly scene: Scene
  readonly drill: Drill
  /** Restarts PostgreSQL; undefined = the server is not ours. */
  readonly restart: (() => Promise<void>) | undefined
  /** Lets another run go on during a wait in which this one does nothing. */
  readonly idle: <T>(work: Promise<T>) => Promise<T>
}

/** Over the lease, so that nobody can think that it still holds. */
const OVER = 1.15
/** Longer than callers usually wait for a provider in a test; then the connection ends, for those who wait for ever. */
const TIMEOUT_MS = 2_000

/** Arms the fault; it happens when the actor comes to its boundary. */
export function arm({ fault, at }: Strike, actor: Actor, context: StrikeContext): void {
  const { scene } = context
  const act = (): Promise<Decision> => Promise.resolve(ACTS[fault](actor, context, at.side))
  actor.watch.arm(at, at.side, () => scene.awaits(scene.patience.hold(act())))
}

type Act = (actor: Actor, context: StrikeContext, side: 'before' | 'after') => Decision | Promise<Decision>

const ACTS: Readonly<Record<Strike['fault'], Act>> = {
  async kill(actor, { scene }, side): Promise<Decision> {
    scene.note(actor.number, side === 'before' ? 'is killed before this leaves it' : 'is killed right behind this')
    await actor.process.kill()
    return 'reset'
  },

  reset(actor, { scene }) {
    scene.note(actor.number, 'loses the connection; the server has not heard of this')
    return 'reset'
  },

  lost(actor, { scene }) {
    scene.note(actor.number, 'loses the connection instead of this answer; the server has done it')
    return 'reset'
  },

  async timeout(actor, { scene, idle }): Promise<Decision> {
    scene.note(actor.number, `hears nothing for ${TIMEOUT_MS / 1_000} s, then loses the connection; it has been done`)
    await idle(pause(TIMEOUT_MS))
    return 'reset'
  },

  serialization(actor, { scene }) {
    scene.note(actor.number, 'is refused: could not serialize access (40001)')
    return { refuse: '40001' }
  },

  deadlock(actor, { scene }) {
    scene.note(actor.number, 'is refused: deadlock detected (40P01)')
    return { refuse: '40P01' }
  },

  async during(actor, { scene }): Promise<Decision> {
    scene.note(actor.number, 'is slow here, and the same is delivered to another process')
    await scene.beside(actor, await scene.start())
    scene.note(actor.number, 'goes on')
    return 'pass'
  },

  async pause(actor, { scene, drill, idle }): Promise<Decision> {
    scene.note(actor.number, `stands still for longer than ${drill.leaseMs} ms (SIGSTOP)`)
    actor.process.signal('SIGSTOP')
    const [second] = await Promise.all([scene.start(), idle(pause(OVER * drill.leaseMs))])
    await scene.beside(actor, second)
    scene.note(actor.number, 'goes on (SIGCONT)')
    actor.process.signal('SIGCONT')
    return 'pass'
  },

  async restart(actor, { scene, restart }): Promise<Decision> {
    scene.note(0, 'PostgreSQL is restarted')
    await restart?.()
    return actor.process.alive ? 'reset' : 'pass'
  },
}

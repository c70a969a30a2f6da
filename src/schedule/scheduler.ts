/**
 * Scheduler: starts a job for each tick of a schedule, once, from any number of processes.
 *
 * A tick is a job whose key is the schedule's name and the tick's instant, and the jobs are stored in the transaction that
 * moves the schedule on. Whoever is slow, starts again or runs beside another finds it moved. What is due is decided by the
 * database's clock; a process only sleeps by its own. (R37, I14)
 *
 * @module
 */

import type { Kind } from '../job/kind.ts'
import type { Engine } from '../operation/engine.ts'
import type { Scope } from '../operation/identity.ts'
import { advance, progressOf } from '../progress/progress.ts'
import { isOnceError } from '../shared/errors.ts'
import { tell } from '../shared/listener.ts'
import { choiceOption, functionOption, integerOption, refuseBound, refuseUnknownOptions } from '../shared/options.ts'
import { backoffMs } from '../shared/waiting.ts'
import { Wake } from '../shared/wake.ts'
import type { JobRecord } from '../store/job.ts'
import type { ProgressIdentity, ProgressRecord } from '../store/progress.ts'
import { type CatchUp, dueTicks } from './catch-up.ts'
import { everySchedule } from './every.ts'
import { earlierTick, endEarlier, type Overlap } from './overlap.ts'
import { cronSchedule, type Schedule, type Tick } from './schedule.ts'

export interface SchedulerOptions<Tx, Payload> {
  /** Five fields as in crontab(5), or `everyMs`. */
  readonly cron?: string | undefined
  /** Interval, milliseconds; ticks lie at its multiples since 1970. 1_000 to 366 days. */
  readonly everyMs?: number | undefined
  /** Time zone of `cron`. Default `UTC`. */
  readonly timeZone?: string | undefined
  /** What is done at a tick: what `once.define` made. A worker of yours has to know it. */
  readonly kind: Pick<Kind<Tx, Payload, unknown>, 'name' | 'startIn'>
  /** What the kind's handler gets; a function is given the tick. */
  readonly payload: Payload | ((tick: Tick) => Payload)
  /** Scope of the ticks' jobs. Default `schedule`. */
  readonly scope?: Scope | undefined
  /**
   * Ticks that were missed because nothing ran: `last` (default) starts the latest one, `all` each of them, `none` only what
   * is less than a minute late.
   */
  readonly catchUp?: CatchUp | undefined
  /**
   * While the job of the tick before is not finished: `beside` (default) starts the next one all the same, `skip` leaves it
   * out, `replace` ends the older one as rejected with `{ code: 'REPLACED', by }`. The last two go with `catchUp` `last` or
   * `none`.
   */
  readonly overlap?: Overlap | undefined
  /** How far back missed ticks are looked for, milliseconds. Default 86_400_000; 60_000 to 30 days. */
  readonly catchUpMaxMs?: number | undefined
  /** Longest sleep, milliseconds. Default 30_000; 10 to 3_600_000. */
  readonly pollMs?: number | undefined
  readonly onEvent?: ((event: SchedulerEvent) => void) | undefined
}

export type SchedulerEvent =
  /** Stored by this process. */
  | { readonly type: 'ticked'; readonly name: string; readonly ticks: readonly Tick[] }
  /** Not started, for the job of the tick before is not finished (`overlap: 'skip'`). */
  | { readonly type: 'skipped'; readonly name: string; readonly tick: Tick }
  /**
   * The job of the tick before was not finished (`overlap: 'replace'`). `ended`: it is now, as replaced. `kept`: it is
   * parked, or one of its effects may have happened, so it goes on.
   */
  | { readonly type: 'replaced'; readonly name: string; readonly tick: Tick; readonly earlier: 'ended' | 'kept' }
  /** A job of other content lies under the tick's key. */
  | { readonly type: 'mismatch'; readonly name: string; readonly tick: Tick }
  /** It could not be done; it is tried again. */
  | { readonly type: 'unavailable'; readonly name: string; readonly error: unknown; readonly retryInMs: number }

export interface Scheduler {
  readonly name: string
  /** The first start ever sets the beginning: ticks before it are not due. */
  start(): Promise<void>
  stop(): Promise<void>
}

const NAME = /^[a-z][\w.-]{0,99}$/i
const UNAVAILABLE = { minMs: 200, maxMs: 10_000 }
const BUSY = { minMs: 20, maxMs: 500 }
/** Processes that have slept for the same tick do not ask in the same instant. */
const SPREAD_MS = 50
const OPTIONS = [
  'cron',
  'everyMs',
  'timeZone',
  'kind',
  'payload',
  'scope',
  'catchUp',
  'overlap',
  'catchUpMaxMs',
  'pollMs',
  'onEvent',
]

export function createScheduler<Tx, Payload>(
  engine: Engine<Tx>,
  workers: { ring(): void },
  name: string,
  options: SchedulerOptions<Tx, Payload>,
): Scheduler {
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw new TypeError('once.schedule: a name takes 1 to 100 of letters, digits and . _ -')
  }
  refuseUnknownOptions('once.schedule', options, OPTIONS)
  if (typeof options.kind?.startIn !== 'function') throw new TypeError('once.schedule needs kind, made by once.define')
  if (options.payload === undefined) throw new TypeError('once.schedule needs payload (null when there is none)')
  functionOption('onEvent', options.onEvent)
  return new TickLoop(engine, workers, name, scheduleOf(options), options)
}

function scheduleOf(options: Pick<SchedulerOptions<never, never>, 'cron' | 'everyMs' | 'timeZone'>): Schedule {
  const { cron, everyMs, timeZone } = options
  if (cron !== undefined && everyMs === undefined) return cronSchedule(cron, { timeZone })
  if (everyMs === undefined || cron !== undefined || timeZone !== undefined) {
    throw new TypeError('once.schedule takes cron (with timeZone) or everyMs')
  }
  return everySchedule(everyMs)
}

class TickLoop<Tx, Payload> implements Scheduler {
  readonly name: string
  readonly #engine: Engine<Tx>
  readonly #workers: { ring(): void }
  readonly #schedule: Schedule
  readonly #options: SchedulerOptions<Tx, Payload>
  readonly #policy: { readonly catchUp: CatchUp; readonly catchUpMaxMs: number }
  readonly #overlap: Overlap
  readonly #pollMs: number
  readonly #identity: ProgressIdentity
  readonly #wake: Wake = new Wake()
  #state: 'idle' | 'running' | 'stopped' = 'idle'
  #loop: Promise<void> | undefined

  constructor(
    engine: Engine<Tx>,
    workers: { ring(): void },
    name: string,
    schedule: Schedule,
    options: SchedulerOptions<Tx, Payload>,
  ) {
    this.name = name
    this.#engine = engine
    this.#workers = workers
    this.#schedule = schedule
    this.#options = options
    this.#policy = {
      catchUp: choiceOption('catchUp', options.catchUp, ['all', 'last', 'none'], 'last'),
      catchUpMaxMs: integerOption('catchUpMaxMs', options.catchUpMaxMs, {
        min: 60_000,
        max: 2_592_000_000,
        default: 86_400_000,
      }),
    }
    this.#overlap = choiceOption('overlap', options.overlap, ['beside', 'skip', 'replace'], 'beside')
    if (this.#overlap !== 'beside' && this.#policy.catchUp === 'all') {
      throw new TypeError(`once.schedule: overlap ${this.#overlap} goes with catchUp last or none, not all`)
    }
    this.#pollMs = integerOption('pollMs', options.pollMs, { min: 10, max: 3_600_000, default: 30_000 })
    this.#identity = progressOf('schedule', options.scope ?? SCOPE, name)
  }

  async start(...given: readonly never[]): Promise<void> {
    refuseBound('schedule.start', given, 'stop() ends what it starts')
    if (this.#state !== 'idle') throw new TypeError(`the schedule is ${this.#state}; make a new one`)
    await this.#engine.store.check()
    this.#state = 'running'
    this.#loop = this.#work()
  }

  async stop(...given: readonly never[]): Promise<void> {
    refuseBound('schedule.stop', given, 'it waits for the tick in hand only')
    this.#state = 'stopped'
    this.#wake.ring()
    await this.#loop
  }

  async #work(): Promise<void> {
    let failures = 0
    while (this.#state === 'running') {
      let sleepMs = 0
      try {
        sleepMs = await this.#turn()
        failures = 0
      } catch (error) {
        failures += 1
        // Another process is at it.
        const busy = isOnceError(error, 'OPERATION_IN_PROGRESS')
        sleepMs = backoffMs(failures, busy ? BUSY : UNAVAILABLE)
        if (!busy) this.#tell({ type: 'unavailable', name: this.name, error, retryInMs: sleepMs })
      }
      if (sleepMs > 0) await this.#wake.sleep(sleepMs)
    }
  }

  /** Starts what is due. @returns how long to sleep, milliseconds; 0 = there may be more. */
  async #turn(): Promise<number> {
    const at = await this.#engine.store.progress.read(this.#identity.id)
    const now = new Date(at.nowMs)
    const { last, started } = positionOf(at)
    if (last === undefined) {
      await advance(this.#engine, this.#identity, at, async () => ({ position: JSON.stringify({ at: now }) }))
      return 0
    }
    const ticks = dueTicks(this.#schedule, last, now, this.#policy)
    const latest = ticks.at(-1)
    if (latest !== undefined) {
      if (!(await this.#skips(at, latest, started))) await this.#tick(at, ticks, latest, started)
      return 0
    }
    const next = this.#schedule.next(now)
    const untilNextMs = next === undefined ? this.#pollMs : next.at.getTime() - at.nowMs
    return Math.max(1, Math.min(this.#pollMs, untilNextMs)) + Math.random() * SPREAD_MS
  }

  /** Moves on without starting the tick, when the one before is not finished and that is the policy. */
  async #skips(at: ProgressRecord, tick: Tick, started: string | undefined): Promise<boolean> {
    if (this.#overlap !== 'skip') return false
    const earlier = await this.#earlier(started)
    if (earlier === undefined || earlier.state === 'parked') return false
    const position = JSON.stringify({ at: tick.at, started })
    const ended = await advance(this.#engine, this.#identity, at, async () => ({ position }))
    if (ended === 'advanced') this.#tell({ type: 'skipped', name: this.name, tick })
    return true
  }

  async #tick(at: ProgressRecord, ticks: readonly Tick[], latest: Tick, before: string | undefined): Promise<void> {
    const earlier = this.#overlap === 'replace' ? await this.#earlier(before) : undefined
    // The work may run again in a fresh transaction: only what the last run has seen is told.
    let events: SchedulerEvent[] = []
    const ended = await advance(this.#engine, this.#identity, at, async ({ tx }) => {
      events = []
      let started = before
      for (const tick of ticks) if (await this.#startIn(tx, tick, events)) started = tick.at.toISOString()
      if (earlier !== undefined && started !== before) {
        const answer = await endEarlier(this.#engine, tx, earlier, this.#keyOf(latest.at.toISOString()))
        if (answer === 'ended' || answer === 'kept') {
          events.push({ type: 'replaced', name: this.name, tick: latest, earlier: answer })
        }
      }
      return { position: JSON.stringify({ at: latest.at, started }) }
    })
    if (ended !== 'advanced') return
    this.#workers.ring()
    for (const event of events) this.#tell(event)
    this.#tell({ type: 'ticked', name: this.name, ticks })
  }

  /** @returns false when a job of other content lies there. */
  async #startIn(tx: Tx, tick: Tick, events: SchedulerEvent[]): Promise<boolean> {
    const { kind, payload } = this.#options
    const given = typeof payload === 'function' ? (payload as (tick: Tick) => Payload)(tick) : payload
    try {
      await kind.startIn(tx, { scope: this.#scope, key: this.#keyOf(tick.at.toISOString()), payload: given })
      return true
    } catch (error) {
      // Somebody has started this tick by hand, with other content: it must not hold up the ticks to come.
      if (!isOnceError(error, 'IDEMPOTENCY_KEY_REUSED')) throw error
      events.push({ type: 'mismatch', name: this.name, tick })
      return false
    }
  }

  async #earlier(started: string | undefined): Promise<JobRecord | undefined> {
    return started === undefined ? undefined : await earlierTick(this.#engine, this.#scope, this.#keyOf(started))
  }

  get #scope(): Scope {
    return this.#options.scope ?? SCOPE
  }

  #keyOf(at: string): string {
    return `${this.name}@${at}`
  }

  #tell(event: SchedulerEvent): void {
    tell(this.#options.onEvent, event)
  }
}

const SCOPE = 'schedule'

/** Up to which instant ticks were seen to, and the instant of the last one that was started. */
function positionOf({ position }: ProgressRecord): {
  readonly last?: Date | undefined
  readonly started?: string | undefined
} {
  if (position === null) return {}
  const { at, started } = JSON.parse(position) as { readonly at: string; readonly started?: string }
  return { last: new Date(at), started }
}

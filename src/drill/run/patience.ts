/**
 * Patience: when a run that does not settle is given up.
 *
 * On a busy machine everything takes long, so that time alone says nothing about a handler. What counts is whether it gets
 * on. After the last thing that was new so much time passes that every lease is over; what is tried from then on, to its
 * end and in vain, shows that no further try would help. A handler that tries nothing at all must have been silent for as
 * long, and its processes must have said meanwhile that they live. Only what gets on and on and nowhere meets a bound in time.
 *
 * @module
 */

export interface PatienceOptions {
  /** So long after the last news tries still may fail: every lease ends in it. Milliseconds. */
  readonly settleMs: number
  /** How often one process takes a step of this name when all is well. */
  readonly usual: (step: string) => number
  /** Milliseconds that only grow. Default: performance.now(). */
  readonly clock?: (() => number) | undefined
}

/** Tries that must have failed when the time is over. */
const TRIES = 2
/** A step that comes so many times more often than usual is waiting for something. */
const REPEATS = 4
/** Whatever happens: longest time since a delivery began, milliseconds. */
const LAST_RESORT_MS = 60_000
/** A server may be slow with an answer; how many times longer silence is borne while one is owed. */
const OWED = 3

export class Patience {
  readonly #options: PatienceOptions
  readonly #clock: () => number
  readonly #steps = new Map<string, number>()
  #beganAt: number
  #newsAt: number
  #tries = 0
  #held = 0
  #over = false

  constructor(options: PatienceOptions) {
    this.#options = options
    this.#clock = options.clock ?? (() => performance.now())
    this.#beganAt = this.#clock()
    this.#newsAt = this.#beganAt
  }

  /** Another delivery. What was given up before stays so. */
  begin(): void {
    this.#beganAt = this.#clock()
    this.news()
  }

  /** Something happened for the first time. */
  news(): void {
    this.#newsAt = this.#clock()
    this.#tries = 0
    this.#steps.clear()
  }

  /** Nothing counts while something is done to the handler; the end of that is news. */
  async hold<T>(work: Promise<T>): Promise<T> {
    this.#held += 1
    try {
      return await work
    } finally {
      this.#held -= 1
      this.news()
    }
  }

  /** A try that was begun at `beganAt` (see `now`) has ended, and nothing is better than before. */
  inVain(beganAt: number): void {
    if (this.#held === 0 && beganAt >= this.#settledAt) this.#tries += 1
    if (this.#tries >= TRIES) this.#over = true
  }

  /** A process, from 1, takes a step that it has taken before. */
  again(actor: number, step: string): void {
    if (this.#held > 0 || this.now < this.#settledAt) return
    const times = (this.#steps.get(`${actor} ${step}`) ?? 0) + 1
    this.#steps.set(`${actor} ${step}`, times)
    if (times > REPEATS * Math.max(1, this.#options.usual(step))) this.#over = true
  }

  /**
   * Nothing has happened since `quietSince`, an answer is `owed` by a server or not, and all processes that live have
   * said so later than that.
   */
  silent(quietSince: number, owed: boolean): void {
    if (this.#held === 0 && this.silentMs(quietSince) >= this.settleMs * (owed ? OWED : 1)) this.#over = true
  }

  /** How long nothing has happened when nothing has come since `quietSince`. */
  silentMs(quietSince: number): number {
    return this.now - Math.max(quietSince, this.#newsAt)
  }

  /** Whether it is given up. That is for good. */
  get over(): boolean {
    if (this.now - this.#beganAt >= LAST_RESORT_MS + this.#options.settleMs) this.#over = true
    return this.#over
  }

  get now(): number {
    return this.#clock()
  }

  get settleMs(): number {
    return this.#options.settleMs
  }

  get #settledAt(): number {
    return this.#newsAt + this.#options.settleMs
  }
}

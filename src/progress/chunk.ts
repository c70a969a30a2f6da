/**
 * Chunk: a piece of a stream or of an import, whose writes and next position commit in one transaction.
 *
 * @module
 */

import { performance } from 'node:perf_hooks'
import type { WorkContext } from '../operation/attempt.ts'
import type { Engine } from '../operation/engine.ts'
import type { Scope } from '../operation/identity.ts'
import { encodeOutcome } from '../operation/outcome.ts'
import type { TransactionOptions } from '../operation/transaction.ts'
import { OnceError } from '../shared/errors.ts'
import { refuseUnknownOptions } from '../shared/options.ts'
import type { ProgressRecord } from '../store/progress.ts'
import { advance, progressOf } from './progress.ts'

/** Names one stream of one processor. */
export interface StreamReference {
  readonly scope: Scope
  /** 1 to 255 bytes, for instance `orders-import` or `orders/partition-3`. */
  readonly name: string
}

export interface ChunkOptions
  extends StreamReference,
    Pick<TransactionOptions, 'whenInProgress' | 'waitMs' | 'timeoutMs' | 'attemptsMax' | 'isolation' | 'signal'> {}

export interface ChunkContext<Tx, Position> extends WorkContext<Tx> {
  /** What the chunk before this one has returned; undefined for the first. */
  readonly position: Position | undefined
  /** Number of this chunk, from 1. */
  readonly number: number
}

/** A stream's checkpoint. */
export interface Checkpoint<Position> {
  /** Chunks so far. */
  readonly number: number
  readonly position: Position | undefined
  /** Milliseconds since the last chunk, by the store's clock; null = there was none. */
  readonly ageMs: number | null
}

export interface Chunk<Position> {
  /** false: the work found nothing to do. */
  readonly advanced: boolean
  readonly number: number
  readonly position: Position | undefined
}

const POSITION_BYTES_MAX = 65_536
/** How often other processors may be faster before it is called busy. */
const TURNS_MAX = 10
/** As for operations. */
const WAIT_MS = 10_000

export async function runChunk<Tx, Position>(
  engine: Engine<Tx>,
  options: ChunkOptions,
  work: (context: ChunkContext<Tx, Position>) => Promise<Position | undefined> | Position | undefined,
): Promise<Chunk<Position>> {
  const known = ['scope', 'name', 'whenInProgress', 'waitMs', 'timeoutMs', 'attemptsMax', 'isolation', 'signal']
  refuseUnknownOptions('once.chunk', options, known)
  if (typeof work !== 'function') throw new TypeError('once.chunk takes a work function')
  const { scope, name, ...transaction } = options
  const identity = progressOf('chunk', scope, name)
  const untilMs = performance.now() + (options.waitMs ?? WAIT_MS)
  const more = (turn: number) => (options.whenInProgress === 'wait' ? performance.now() < untilMs : turn < TURNS_MAX)
  for (let turn = 0; turn === 0 || more(turn); turn++) {
    const at = await engine.store.progress.read(identity.id)
    const position = positionOf<Position>(at)
    let next: Position | undefined
    const ended = await advance(
      engine,
      identity,
      at,
      async (context) => {
        next = await work(chunkContext(context, position, at.number + 1))
        return { position: encodeOutcome(next, POSITION_BYTES_MAX) ?? undefined }
      },
      transaction,
    )
    if (ended === 'advanced') return { advanced: true, number: at.number + 1, position: next }
    if (ended === 'idle') return { advanced: false, number: at.number, position }
  }
  throw new OnceError('OPERATION_IN_PROGRESS', 'other processors work on this stream')
}

export async function readCheckpoint<Tx, Position>(
  engine: Engine<Tx>,
  { scope, name }: StreamReference,
): Promise<Checkpoint<Position>> {
  const at = await engine.store.progress.read(progressOf('chunk', scope, name).id)
  return { number: at.number, position: positionOf<Position>(at), ageMs: at.ageMs }
}

/** The members are read from the work's own context, whose signal is made when it is asked for. */
function chunkContext<Tx, Position>(
  context: WorkContext<Tx>,
  position: Position | undefined,
  number: number,
): ChunkContext<Tx, Position> {
  return {
    tx: context.tx,
    outbox: context.outbox,
    now: () => context.now(),
    get signal() {
      return context.signal
    },
    position,
    number,
  }
}

function positionOf<Position>({ position }: ProgressRecord): Position | undefined {
  return position === null ? undefined : (JSON.parse(position) as Position)
}

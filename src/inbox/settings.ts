/**
 * Settings: a consumer's options checked, with their defaults.
 *
 * @module
 */

import type { Source } from '../broker/contract.ts'
import { OnceError } from '../shared/errors.ts'
import {
  backoffOption,
  choiceOption,
  describe,
  functionOption,
  integerOption,
  refuseUnknownOptions,
} from '../shared/options.ts'
import { BACKOFF_DEFAULT } from '../shared/waiting.ts'
import type { InboxMark } from '../store/inbox.ts'
import type { Isolation } from '../store/operation.ts'
import type { Work } from './attempt.ts'
import type { DueSettings } from './due.ts'
import type { ConsumerEvent } from './events.ts'
import type { ItemSettings } from './item.ts'
import type { ConsumerOptions } from './options.ts'
import type { RunSettings } from './run.ts'
import { batchWorkOf, workOf } from './work.ts'

export interface ConsumerSettings<Tx> {
  readonly name: string
  readonly source: Source
  readonly prefetch: number
  readonly concurrency: number
  readonly stopTimeoutMs: number
  readonly onEvent: ((event: ConsumerEvent) => void) | undefined
  readonly item: ItemSettings
  readonly run: RunSettings
  readonly due: DueSettings
  /** Set when messages are handled in batches. */
  readonly batch: { readonly max: number; readonly work: Work<Tx> } | undefined
  /** The work for one message of a type; undefined = no handler. */
  readonly workFor: (type: string) => Work<Tx> | undefined
  /** A mark that no message has, for asking whether the store answers. */
  readonly probe: InboxMark
}

const KNOWN: readonly (keyof ConsumerOptions<unknown>)[] = [
  'name',
  'source',
  'handle',
  'handlers',
  'handleBatch',
  'identify',
  'typeOf',
  'contentOf',
  'decode',
  'eager',
  'concurrency',
  'batchMax',
  'prefetch',
  'orderBy',
  'stopKeyOnWaiting',
  'attemptsMax',
  'backoff',
  'isolation',
  'handlerTimeoutMs',
  'leaseMs',
  'pollMs',
  'retentionMs',
  'horizonMs',
  'stopTimeoutMs',
  'onEvent',
]
const NAME = /^[!-~]{1,100}$/
const DAY_MS = 86_400_000
const YEARS_TEN_MS = 3_650 * DAY_MS
const RETENTION_DEFAULT_MS = 14 * DAY_MS
const HORIZON_DEFAULT_MS = 7 * DAY_MS
const CONCURRENCY_DEFAULT = 10
const BATCHES_DEFAULT = 2
const PREFETCH_MAX = 65_535
/** A handler that is silent for its whole time must not be ended by the database first. */
const IDLE_MARGIN_MS = 10_000
const PURGE = { graceMs: DAY_MS, purgeEveryMs: 600_000, purgeMax: 4_000 }

/** @throws {TypeError} naming the option. @throws {OnceError} HORIZON_TOO_SHORT. */
export function checkedSettings<Tx>(options: ConsumerOptions<Tx>): ConsumerSettings<Tx> {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError(`a consumer takes options, got ${describe(options)}`)
  }
  refuseUnknownOptions('consumer', options, KNOWN)
  const { name, source } = options
  if (typeof name !== 'string' || !NAME.test(name)) {
    throw new TypeError(`name takes 1 to 100 visible ASCII characters, got ${describe(name)}`)
  }
  if (typeof source?.subscribe !== 'function')
    throw new TypeError('source takes a broker source, such as rabbitmqQueue()')
  for (const option of ['identify', 'typeOf', 'contentOf', 'onEvent'] as const) functionOption(option, options[option])
  const { orderBy } = options
  if (orderBy !== undefined && orderBy !== true) functionOption('orderBy', orderBy)
  if (options.stopKeyOnWaiting !== undefined && orderBy === undefined) {
    throw new TypeError('stopKeyOnWaiting means nothing without orderBy')
  }
  const stopKeyOnWaiting = flagOption('stopKeyOnWaiting', options.stopKeyOnWaiting, orderBy !== undefined)
  const handlers = checkedHandlers(options)
  const batches = options.handleBatch !== undefined
  if (options.batchMax !== undefined && !batches) throw new TypeError('batchMax means nothing without handleBatch')

  const concurrency = integerOption('concurrency', options.concurrency, {
    min: 1,
    max: 1_000,
    default: batches ? BATCHES_DEFAULT : CONCURRENCY_DEFAULT,
  })
  const batchMax = integerOption('batchMax', options.batchMax, { min: 1, max: 10_000, default: 250 })
  const handlerTimeoutMs = integerOption('handlerTimeoutMs', options.handlerTimeoutMs, {
    min: 10,
    max: 3_600_000,
    default: 300_000,
  })
  const leaseMs = integerOption('leaseMs', options.leaseMs, { min: 1_000, max: 3_600_000, default: 30_000 })
  const pollMs = integerOption('pollMs', options.pollMs, { min: 10, max: 60_000, default: 1_000 })
  const attemptsMax = integerOption('attemptsMax', options.attemptsMax, { min: 1, max: 1_000, default: 10 })
  const backoff = backoffOption('backoff', options.backoff, BACKOFF_DEFAULT)
  const retentionMs = integerOption('retentionMs', options.retentionMs, {
    min: 1,
    max: YEARS_TEN_MS,
    default: RETENTION_DEFAULT_MS,
  })
  const horizonMs = integerOption('horizonMs', options.horizonMs, {
    min: 0,
    max: YEARS_TEN_MS,
    default: HORIZON_DEFAULT_MS,
  })
  refuseShortRetention(retentionMs, horizonMs, attemptsMax * (backoff.maxMs + handlerTimeoutMs) + leaseMs)

  const { handleBatch } = options
  return {
    name,
    source,
    prefetch: integerOption('prefetch', options.prefetch, {
      min: 1,
      max: PREFETCH_MAX,
      default: Math.min(PREFETCH_MAX, 2 * concurrency * (batches ? batchMax : 1)),
    }),
    concurrency,
    stopTimeoutMs: integerOption('stopTimeoutMs', options.stopTimeoutMs, { min: 0, max: 3_600_000, default: 30_000 }),
    onEvent: options.onEvent,
    item: {
      consumer: name,
      decode: choiceOption('decode', options.decode, ['json', 'text', 'bytes'], 'json'),
      identify: options.identify,
      typeOf: options.typeOf,
      contentOf: options.contentOf,
      orderBy,
    },
    run: {
      consumer: name,
      open: {
        retentionMs,
        idleTimeoutMs: handlerTimeoutMs + IDLE_MARGIN_MS,
        isolation: isolationOption(options.isolation),
      },
      handlerTimeoutMs,
      stopKeyOnWaiting,
      eager: flagOption('eager', options.eager, false),
      attemptsMax,
      backoff,
      pollMs,
    },
    due: {
      consumer: name,
      leaseMs,
      pollMs,
      types: options.handlers === undefined ? undefined : Object.keys(options.handlers),
      headsOnly: stopKeyOnWaiting,
      ...PURGE,
    },
    batch:
      handleBatch === undefined
        ? undefined
        : {
            max: batchMax,
            work: batchWorkOf(handleBatch),
          },
    workFor: handlers,
    probe: {
      id: '00000000-0000-0000-0000-000000000000',
      consumer: name,
      source: '',
      messageId: '',
      fingerprint: new Uint8Array(32),
    },
  }
}

function flagOption(option: string, given: boolean | undefined, byDefault: boolean): boolean {
  if (given !== undefined && typeof given !== 'boolean') {
    throw new TypeError(`${option} takes true or false, got ${describe(given)}`)
  }
  return given ?? byDefault
}

function isolationOption(given: Isolation | undefined): Isolation | undefined {
  if (given === undefined) return undefined
  return choiceOption<Isolation>('isolation', given, ['read committed', 'repeatable read', 'serializable'], given)
}

/** Exactly one way to handle messages. */
function checkedHandlers<Tx>(options: ConsumerOptions<Tx>): (type: string) => Work<Tx> | undefined {
  const { handle, handlers, handleBatch } = options
  const given = [handle, handlers, handleBatch].filter((option) => option !== undefined).length
  if (given !== 1) throw new TypeError('a consumer takes exactly one of handle, handlers and handleBatch')
  if (handlers !== undefined) {
    if (typeof handlers !== 'object' || handlers === null) {
      throw new TypeError(`handlers takes an object of functions by type, got ${describe(handlers)}`)
    }
    const works = new Map<string, Work<Tx>>()
    for (const [type, handler] of Object.entries(handlers)) {
      functionOption(`handlers["${type.slice(0, 64)}"]`, handler)
      works.set(type, workOf(handler))
    }
    if (works.size === 0) throw new TypeError('handlers takes at least one handler')
    return (type) => works.get(type)
  }
  if (handleBatch !== undefined) {
    functionOption('handleBatch', handleBatch)
    return () => undefined
  }
  functionOption('handle', handle)
  const work = handle === undefined ? undefined : workOf(handle)
  return () => work
}

/** A repeat that comes after its mark is gone is applied twice: refused at the start. (R39, B81) */
function refuseShortRetention(retentionMs: number, horizonMs: number, retriesMs: number): void {
  if (retentionMs >= horizonMs + retriesMs) return
  throw new OnceError(
    'HORIZON_TOO_SHORT',
    `retentionMs is ${retentionMs}, but a message can come again up to ${horizonMs} ms (horizonMs) after its first ` +
      `delivery and spend up to ${retriesMs} ms in our own retries`,
  )
}

/**
 * Policy: the checked options of a route. Wrong ones stop the start, not the first request.
 *
 * @module
 */

import { LEASE_OPTIONS, leaseSettings, type RunSettings, waitSettings } from '../job/settings.ts'
import type { Scope } from '../operation/identity.ts'
import { RETENTION_DEFAULT_MS, RETENTION_MAX_MS } from '../operation/retention.ts'
import type { TransactionSettings } from '../operation/transaction.ts'
import { booleanOption, choiceOption, describe, integerOption, refuseUnknownOptions } from '../shared/options.ts'
import type { RouteOptions } from './options.ts'
import { PROBLEM_DESCRIBED_BY, PROBLEM_TYPE_BASE, type ProblemSettings } from './problem.ts'
import { mayBeKept } from './response.ts'
import { type KeyRing, keyRing } from './stored.ts'

const KNOWN: readonly (keyof RouteOptions<unknown>)[] = [
  'scope',
  'mode',
  'run',
  'operation',
  'uniqueWithin',
  'methods',
  'required',
  'strictKeys',
  'whenInProgress',
  'waitMs',
  'statusPath',
  'mismatchStatus',
  'storeIf',
  'commitOn',
  'fingerprint',
  'fingerprintHeaders',
  'keepHeaders',
  'bodyBytesMax',
  'responseBytesMax',
  'unstorable',
  'keepResponse',
  'responseRetentionMs',
  'retentionMs',
  'reference',
  'reconstruct',
  'encryption',
  'authorizeReplay',
  'timeOrderedKeys',
  'onStoreDown',
  'problemTypeBase',
  'describedBy',
  'replayHeader',
  'timeoutMs',
  'isolation',
  'gate',
  'onError',
]

/** 24 hours. */
export const RESPONSE_RETENTION_DEFAULT_MS: number = 24 * 3_600_000
const RUN_TIMEOUT_DEFAULT_MS = 60_000
const METHODS = ['POST', 'PATCH', 'PUT', 'DELETE'] as const
const OPERATION_BYTES_MAX = 255
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}$/
const PATH = /^\/[!$&'()*+,\-./0-9:;=@A-Z_a-z~]*$/
/** What can stand in a URI reference between `<` and `>`. */
const REFERENCE = /^[!#-;=?-Z_a-z~[\]]{1,2048}$/

type Hooks<Req> = Pick<
  RouteOptions<Req>,
  'operation' | 'storeIf' | 'commitOn' | 'fingerprint' | 'reference' | 'reconstruct' | 'authorizeReplay'
>

/** A route's options after checking, defaults filled in. */
export interface Policy<Req> extends Hooks<Req> {
  readonly scopeOf: (request: Req) => Scope | Promise<Scope>
  readonly uniqueWithin: 'operation' | 'tenant'
  /** Upper case. */
  readonly methods: ReadonlySet<string>
  readonly required: boolean
  readonly strictKeys: boolean
  readonly whenInProgress: 'reject' | 'wait' | 'accept'
  readonly statusPath: string
  readonly mismatchStatus: 422 | 409
  readonly fingerprintHeaders: readonly string[]
  /** Lower case. */
  readonly keepHeaders: ReadonlySet<string>
  readonly bodyBytesMax: number
  readonly responseBytesMax: number
  readonly passUnstorable: boolean
  readonly keepResponse: boolean
  readonly responseRetentionMs: number
  readonly ring: KeyRing | undefined
  readonly checkKeyTime: boolean
  readonly problems: ProblemSettings
  /** Lower case. */
  readonly replayHeader: string
  readonly transaction: TransactionSettings
  /** undefined: the route is atomic. */
  readonly run: RunSettings | undefined
  readonly onError: (error: unknown, request: Req) => void
}

/**
 * Checks the options of one route. `where` names the caller in messages.
 *
 * @throws {TypeError} naming the option.
 */
export function readPolicy<Req>(where: string, options: RouteOptions<Req>): Policy<Req> {
  refuseUnknownOptions(where, options, KNOWN)
  const retentionMs = integerOption('retentionMs', options.retentionMs, {
    min: 1_000,
    max: RETENTION_MAX_MS,
    default: RETENTION_DEFAULT_MS,
  })
  choiceOption('onStoreDown', options.onStoreDown, ['refuse'], 'refuse')
  const whenInProgress = choiceOption('whenInProgress', options.whenInProgress, ['reject', 'wait', 'accept'], 'reject')
  for (const name of ['storeIf', 'commitOn', 'fingerprint', 'reference', 'reconstruct', 'authorizeReplay'] as const) {
    functionOption(name, options[name])
  }
  functionOption('onError', options.onError)
  const { isolation } = options
  if (isolation !== undefined) {
    choiceOption('isolation', isolation, ['read committed', 'repeatable read', 'serializable'], isolation)
  }
  const { storeIf, commitOn, fingerprint, reference, reconstruct, authorizeReplay } = options
  return {
    operation: options.operation === undefined ? undefined : operationName(options.operation),
    storeIf,
    commitOn,
    fingerprint,
    reference,
    reconstruct,
    authorizeReplay,
    scopeOf: scopeFunction(where, options.scope),
    uniqueWithin: choiceOption('uniqueWithin', options.uniqueWithin, ['operation', 'tenant'], 'operation'),
    methods: methodsOf(options.methods),
    required: booleanOption('required', options.required, true),
    strictKeys: booleanOption('strictKeys', options.strictKeys, false),
    whenInProgress,
    statusPath: statusPathOf(options.statusPath, whenInProgress === 'accept'),
    mismatchStatus: mismatchStatusOf(options.mismatchStatus),
    fingerprintHeaders: headerNames('fingerprintHeaders', options.fingerprintHeaders),
    keepHeaders: keptNames(options.keepHeaders),
    bodyBytesMax: integerOption('bodyBytesMax', options.bodyBytesMax, { min: 0, max: 67_108_864, default: 1_048_576 }),
    responseBytesMax: integerOption('responseBytesMax', options.responseBytesMax, {
      min: 0,
      max: 16_777_216,
      default: 262_144,
    }),
    passUnstorable: choiceOption('unstorable', options.unstorable, ['refuse', 'pass'], 'refuse') === 'pass',
    keepResponse: booleanOption('keepResponse', options.keepResponse, true),
    responseRetentionMs: integerOption('responseRetentionMs', options.responseRetentionMs, {
      min: 1,
      max: retentionMs,
      default: Math.min(RESPONSE_RETENTION_DEFAULT_MS, retentionMs),
    }),
    ring: options.encryption === undefined ? undefined : keyRing(options.encryption),
    checkKeyTime: choiceOption('timeOrderedKeys', options.timeOrderedKeys, ['ignore', 'check'], 'ignore') === 'check',
    problems: {
      typeBase: uriReference('problemTypeBase', options.problemTypeBase, PROBLEM_TYPE_BASE),
      describedBy: uriReference('describedBy', options.describedBy, PROBLEM_DESCRIBED_BY),
    },
    replayHeader: headerName('replayHeader', options.replayHeader ?? 'idempotent-replayed'),
    transaction: {
      whenInProgress: whenInProgress === 'wait' ? 'wait' : 'reject',
      waitMs: integerOption('waitMs', options.waitMs, { min: 1, max: 300_000, default: 10_000 }),
      gated: true,
      // A chain of middleware cannot be taken back: unless the route says that it may, none of it runs before the claim is
      // decided. What it answers is sent after that in any case.
      eager:
        choiceOption('gate', options.gate, ['before-handler', 'first-statement'], 'before-handler') !==
        'first-statement',
      decided: true,
      isolation,
      timeoutMs: integerOption('timeoutMs', options.timeoutMs, { min: 100, max: 3_600_000, default: 30_000 }),
      // Nor can it be run again.
      attemptsMax: 1,
      retentionMs,
      signal: undefined,
    },
    run: runOf(where, options, retentionMs),
    onError: options.onError === undefined ? warn : contained(options.onError),
  }
}

function runOf<Req>(where: string, options: RouteOptions<Req>, retentionMs: number): RunSettings | undefined {
  if (choiceOption('mode', options.mode, ['atomic', 'run'], 'atomic') === 'atomic') {
    if (options.run !== undefined) throw new TypeError(`${where}: run is for routes with mode: 'run'`)
    return undefined
  }
  // Without a key there is nothing that a later request could resume.
  for (const [name, wrong] of [
    ['required', options.required === false],
    ['isolation', options.isolation !== undefined],
    ['commitOn', options.commitOn !== undefined],
    ['gate', options.gate !== undefined],
    ['timeOrderedKeys', options.timeOrderedKeys === 'check'],
  ] as const) {
    if (wrong) throw new TypeError(`${where}: ${name} does not go with mode: 'run'`)
  }
  const { run = {}, timeoutMs = RUN_TIMEOUT_DEFAULT_MS, waitMs } = options
  refuseUnknownOptions('run', run, LEASE_OPTIONS)
  return {
    ...leaseSettings({ ...run, timeoutMs, retentionMs }),
    ...waitSettings({ whenInProgress: options.whenInProgress === 'wait' ? 'wait' : 'reject', waitMs }),
  }
}

function warn(error: unknown): void {
  process.emitWarning(error instanceof Error ? error : new Error(String(error)))
}

/** An error of whoever is told of errors must not become the answer of a request. */
function contained<Req>(onError: Policy<Req>['onError']): Policy<Req>['onError'] {
  return (error, request) => {
    try {
      onError(error, request)
    } catch (own) {
      warn(own)
    }
  }
}

function scopeFunction<Req>(where: string, scope: RouteOptions<Req>['scope']): Policy<Req>['scopeOf'] {
  if (typeof scope === 'function') return scope
  if (typeof scope === 'object' && scope !== null) {
    refuseUnknownOptions('scope', scope, ['anonymous'])
    const { anonymous } = scope
    if (typeof anonymous === 'string' && anonymous !== '') return () => `anonymous:${anonymous}`
  }
  throw new TypeError(
    `${where} needs scope: a function that gives the tenant or principal of a request, or { anonymous: name }`,
  )
}

function operationName(operation: string): string {
  if (typeof operation !== 'string' || operation === '' || Buffer.byteLength(operation) > OPERATION_BYTES_MAX) {
    throw new TypeError(`operation takes 1 to ${OPERATION_BYTES_MAX} bytes of text, got ${describe(operation)}`)
  }
  return operation
}

function methodsOf(methods: RouteOptions<unknown>['methods'] = ['POST', 'PATCH']): ReadonlySet<string> {
  if (!Array.isArray(methods) || methods.length === 0 || methods.some((method) => !METHODS.includes(method))) {
    throw new TypeError(`methods takes a list of ${METHODS.join(', ')}; others are safe and never guarded`)
  }
  return new Set(methods)
}

function statusPathOf(path: string | undefined, required: boolean): string {
  if (path === undefined && !required) return ''
  if (typeof path !== 'string' || !PATH.test(path)) {
    throw new TypeError(`statusPath takes a path such as /operations, got ${describe(path)}`)
  }
  return path.replace(/\/+$/, '')
}

function mismatchStatusOf(status: RouteOptions<unknown>['mismatchStatus'] = 422): 422 | 409 {
  if (status !== 422 && status !== 409) throw new TypeError(`mismatchStatus takes 422 or 409, got ${describe(status)}`)
  return status
}

function headerName(where: string, name: string): string {
  if (typeof name !== 'string' || !TOKEN.test(name)) {
    throw new TypeError(`${where} takes names of headers, got ${describe(name)}`)
  }
  return name.toLowerCase()
}

function headerNames(where: string, names: readonly string[] = []): readonly string[] {
  if (!Array.isArray(names)) throw new TypeError(`${where} takes a list of header names, got ${describe(names)}`)
  return names.map((name: string) => headerName(where, name))
}

function keptNames(names: readonly string[] | undefined): ReadonlySet<string> {
  const kept = headerNames('keepHeaders', names)
  const refused = kept.find((name) => !mayBeKept(name))
  if (refused !== undefined) {
    throw new TypeError(`keepHeaders: ${refused} belongs to one caller, connection or moment and is never replayed`)
  }
  return new Set(kept)
}

function uriReference(where: string, value: string | undefined, byDefault: string): string {
  if (value === undefined) return byDefault
  if (typeof value !== 'string' || !REFERENCE.test(value)) {
    throw new TypeError(`${where} takes a URI reference, got ${describe(value)}`)
  }
  return value
}

function functionOption(where: string, value: unknown): void {
  if (value !== undefined && typeof value !== 'function') {
    throw new TypeError(`${where} takes a function, got ${describe(value)}`)
  }
}

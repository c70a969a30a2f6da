/**
 * Classify: what an error from the driver means. One table, one test.
 *
 * @module
 */

import { OnceError } from '../../shared/errors.ts'

/**
 * - `connection`: no answer, or the server ended the session: whatever was in flight is undecided.
 * - `retry`: the transaction was rolled back and a fresh one may succeed (40001, 40P01).
 * - `conflict`: a unique violation of the named constraint.
 * - `gate`: raised by our own gate (EO001 to EO005).
 * - `replica`: standby or read-only server.
 * - `schema`: our tables or functions are not there.
 * - `privilege`: the server says that the role may not do it (42501); what a function raises under that code is `other`.
 * - `statement`: a named statement is not known on this connection (a pooler in transaction mode).
 * - `aborted`: the transaction is already failed (25P02).
 * - `tooLarge`: raised by our own limit on outcomes (EO006).
 * - `other`: any other answer of severity ERROR: certainly not applied.
 */
export type ErrorKind =
  | 'connection'
  | 'retry'
  | 'conflict'
  | 'gate'
  | 'replica'
  | 'schema'
  | 'privilege'
  | 'statement'
  | 'aborted'
  | 'tooLarge'
  | 'other'

const BY_STATE: Readonly<Record<string, ErrorKind>> = {
  '40001': 'retry',
  '40P01': 'retry',
  '23505': 'conflict',
  EO001: 'gate',
  EO002: 'gate',
  EO003: 'gate',
  EO004: 'gate',
  // BEGIN did not run and the session is ended.
  EO007: 'connection',
  EO005: 'replica',
  '25006': 'replica',
  '42P01': 'schema',
  '3F000': 'schema',
  '42883': 'schema',
  '42703': 'schema',
  '42501': 'privilege',
  '26000': 'statement',
  '42P05': 'statement',
  '25P02': 'aborted',
  EO006: 'tooLarge',
}

/** Server-side trouble that ends or refuses the session although it comes as an answer. */
const CONNECTION_STATES = /^(08...|57P0[1-5]|53300|25P03|25P04)$/

/** SQLSTATE of a driver error, when the server sent one. */
export function sqlState(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error)) return undefined
  const { code } = error
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && 'severity' in error ? code : undefined
}

/** Which constraint in our schema a violation names: the application may have one of the same name. */
export function violatedConstraint(error: unknown, schema: string): string | undefined {
  if (typeof error !== 'object' || error === null || !('constraint' in error)) return undefined
  if (!('schema' in error) || error.schema !== schema) return undefined
  return typeof error.constraint === 'string' ? error.constraint : undefined
}

/** What `error` means. No SQLSTATE (socket errors, driver time-outs) and FATAL or PANIC are `connection`. */
export function classify(error: unknown): ErrorKind {
  const state = sqlState(error)
  if (state === undefined) return 'connection'
  const severity = (error as { severity?: unknown }).severity
  if (severity === 'FATAL' || severity === 'PANIC' || CONNECTION_STATES.test(state)) return 'connection'
  if (state === '42501' && (error as { routine?: unknown }).routine === 'exec_stmt_raise') return 'other'
  return BY_STATE[state] ?? 'other'
}

/** The error a caller gets for one of OUR statements: mapped to a code where the table has one, else as it is. */
export function toOnceError(error: unknown, doing: string): unknown {
  if (error instanceof OnceError) return error
  switch (classify(error)) {
    case 'connection':
      return new OnceError('STORE_UNAVAILABLE', `${doing}: the database did not answer (${nameOf(error)})`, {
        cause: error,
      })
    case 'replica':
      return new OnceError('REPLICA_REFUSED', `${doing}: the connection leads to a standby or read-only server`, {
        cause: error,
      })
    case 'schema':
      return new OnceError('SCHEMA_MISSING', `${doing}: our tables are not in this database (${nameOf(error)})`, {
        cause: error,
      })
    case 'privilege':
      return new OnceError('SCHEMA_MISSING', `${doing}: the role lacks a right on our schema (${nameOf(error)})`, {
        cause: error,
      })
    case 'tooLarge':
      return new OnceError('OUTCOME_TOO_LARGE', `${doing}: the outcome is larger than outcomeBytesMax`, {
        cause: error,
      })
    case 'retry':
    case 'conflict':
    case 'gate':
    case 'statement':
    case 'aborted':
    case 'other':
      return error
  }
}

/** SQLSTATE or system code: names the trouble without values, which driver messages may hold. */
export function nameOf(error: unknown): string {
  if (typeof error !== 'object' || error === null) return 'unknown'
  if ('code' in error && typeof error.code === 'string') return error.code
  return error instanceof Error ? error.name : 'unknown'
}

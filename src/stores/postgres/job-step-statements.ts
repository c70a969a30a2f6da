/**
 * Statements over the steps of leased operations: every one compares the lease in itself, and holds the operation's row,
 * so that no takeover comes between. How they keep out of each other's way: ./job-statements.ts.
 *
 * @module
 */

import type { EffectChange, Lease, NewStep } from '../../store/job.ts'
import type { PgStatement } from './handle.ts'
import {
  ageMs,
  CLOCK,
  columnsOf,
  leaseValues,
  MS,
  OWNED,
  OWNED_BY_ROW,
  prepared,
  type ValueTypes,
  valueArrays,
  valueColumns,
  valued,
  valueRow,
} from './job-sql.ts'

export interface StepWrite {
  readonly lease: Lease
  readonly step: NewStep
}

const FLAGS = ['flags']
const ANSWER = ['answer']

/** The SQL of one schema; `schema` is the quoted identifier. */
export function stepStatements(schema: string): StepStatements {
  const operation = `${schema}.operation`
  const step = `${schema}.step`
  const made = (name: string, body: string, columns?: readonly string[]) => prepared(schema, name, body, columns)

  const stepTypes: ValueTypes = {
    id: 'uuid',
    token: 'uuid',
    fence: 'bigint',
    name: 'text',
    position: 'integer',
    type: `${schema}.step_type`,
    state: `${schema}.step_state`,
    result_version: 'smallint',
    result: 'text',
    delivery: 'text',
    request: 'text',
    request_hash: 'text',
    provider_key: 'text',
  }
  const givenColumns = valueColumns(stepTypes, ['fence', 'name', 'position', 'type', 'state', 'result_version'])
  const stepColumns =
    'operation_id, fence, name, position, type, state, result_version, result, delivery, request, request_hash, ' +
    'provider_key, key_generation, attempts, looks, first_attempt_at, last_attempt_at, unknown_since'
  const stepValues =
    `u.id, u.fence, u.name, u.position, u.type, u.state, u.result_version, u.result, u.delivery, u.request, u.request_hash, ` +
    `u.provider_key, case when u.delivery is not null then 0 end, case when u.delivery is not null then 1 end, ` +
    `case when u.delivery is not null then 0 end, case when u.delivery is not null then ${CLOCK} end, ` +
    `case when u.delivery is not null then ${CLOCK} end, case when u.state = 'unknown' then ${CLOCK} end`
  // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
  const writeSteps = made(
    'write_steps',
    `select ${schema}.job_write_steps(${valueArrays(givenColumns)}) as flags`,
    FLAGS,
  )
  const writeStep = made(
    'write_step',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `with given as materialized (select u.* from ${valueRow(stepTypes)}), ` +
      `mine as materialized (select u.n from given u join ${operation} o on ${OWNED_BY_ROW} for share of o), ` +
      `stored as (insert into ${step} (${stepColumns}) select ${stepValues} from given u join mine on mine.n = u.n ` +
      `on conflict (operation_id, name) do nothing returning name) ` +
      `select case when s.name is not null then 's' when m.n is null then 'f' else 'e' end as flags ` +
      `from given g left join mine m on true left join stored s on true`,
    FLAGS,
  )

  /** `$4` is the name of the step; what follows belongs to the change. */
  const effect = (name: string, set: string, tooOld = 'false') =>
    made(
      name,
      // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
      `with owner as materialized (select o.id from ${operation} o where ${OWNED} for share), ` +
        `seen as materialized (select s.state, ${tooOld} as old from ${step} s ` +
        `where s.operation_id = $1::uuid and s.name = $4::text and s.delivery is not null), ` +
        `changed as (update ${step} s set fence = $3::bigint, ${set} from owner w where s.operation_id = w.id ` +
        `and s.name = $4::text and s.delivery is not null and s.state in ('intended', 'unknown') ` +
        `and (${tooOld}) is not true returning 1) ` +
        `select case when exists (select from changed) then 'stored' when not exists (select from owner) then 'fenced' ` +
        `when not exists (select from seen) then 'missing' ` +
        `when (select old and state in ('intended', 'unknown') from seen) then 'expired' else 'decided' end as answer`,
      ANSWER,
    )
  const changes = {
    attempt: effect(
      'effect_attempt',
      `state = 'intended', attempts = least(s.attempts + 1, 32767), looks = 0, last_attempt_at = ${CLOCK}, ` +
        `first_attempt_at = coalesce(s.first_attempt_at, ${CLOCK}), ` +
        `unknown_since = case when s.looks > 0 then null else s.unknown_since end`,
      `s.first_attempt_at <= ${CLOCK} - $5::bigint * ${MS}`,
    ),
    newKey: effect(
      'effect_new_key',
      `state = 'intended', provider_key = $5::text, key_generation = least(s.key_generation + 1, 32767), looks = 0, ` +
        `first_attempt_at = null, unknown_since = null`,
    ),
    looked: effect('effect_looked', 'looks = $5::smallint'),
    unknown: effect('effect_unknown', `state = 'unknown', unknown_since = coalesce(s.unknown_since, ${CLOCK})`),
    decided: effect(
      'effect_decided',
      `state = $5::${schema}.step_state, result = $6::text, result_version = $7::smallint, unknown_since = null`,
    ),
  }

  const stepsOf = made(
    'steps',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `select r.standby, s.name, s.position, s.type, s.state, s.result, s.result_version, s.fence, s.delivery, s.request, ` +
      `s.request_hash, s.provider_key, s.key_generation, s.attempts, s.looks, ` +
      `${ageMs('s.first_attempt_at')} as first_attempt_age_ms, ${ageMs('s.last_attempt_at')} as last_attempt_age_ms, ` +
      `case when s.state = 'unknown' then ${ageMs('s.unknown_since')} end as unknown_age_ms ` +
      `from (select pg_catalog.pg_is_in_recovery() as standby) r left join ${step} s on s.operation_id = $1::uuid ` +
      `order by s.position, s.name`,
  )
  const gate = made('gate', `select ${schema}.step_gate($1::uuid, $2::uuid, $3::bigint, $4::text) as xid`, ['xid'])
  const seal = made('seal', `select ${schema}.step_seal($1::uuid, $2::uuid, $3::bigint, $4::text)`, ['sealed'])
  const store = made(
    'store_step',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `insert into ${step} (${stepColumns}) select ${stepValues} from (values ($1::uuid, $2::bigint, $3::text, $4::integer, ` +
      `$5::${schema}.step_type, $6::${schema}.step_state, $7::smallint, $8::text, $9::text, $10::text, $11::text, $12::text)) ` +
      `as u(id, fence, name, position, type, state, result_version, result, delivery, request, request_hash, provider_key)`,
  )

  return {
    writeSteps: (items) => valued(writeSteps, columnsOf(items.map(stepValuesOf), givenColumns)),
    writeStep: (item) => valued(writeStep, stepValuesOf(item)),
    changeEffect: (lease, name, change) => {
      const values = [...leaseValues(lease), name]
      switch (change.to) {
        case 'attempt':
          return valued(changes.attempt, [...values, change.keyAgeMaxMs])
        case 'newKey':
          return valued(changes.newKey, [...values, change.providerKey])
        case 'looked':
          return valued(changes.looked, [...values, change.looks])
        case 'unknown':
          return valued(changes.unknown, values)
        case 'done':
        case 'refused':
          return valued(changes.decided, [...values, change.to, change.result, change.resultVersion])
      }
    },
    steps: (id) => valued(stepsOf, [id]),
    gate: (lease, idleTimeoutMs) => valued(gate, [...leaseValues(lease), String(idleTimeoutMs)]),
    seal: (lease, transactionId) => valued(seal, [...leaseValues(lease), transactionId ?? null]),
    storeStep: (lease, given) => {
      const [id, , ...values] = stepValuesOf({ lease, step: given })
      return valued(store, [id, ...values])
    },
  }
}

function stepValuesOf({ lease, step }: StepWrite): unknown[] {
  return [
    ...leaseValues(lease),
    step.name,
    step.position,
    step.type,
    step.state,
    step.resultVersion,
    step.result,
    step.effect?.delivery ?? null,
    step.effect?.request ?? null,
    step.effect?.requestHash ?? null,
    step.effect?.providerKey ?? null,
  ]
}

export interface StepStatements {
  /** One letter for each: `s`tored, `e`xists, `f`enced or locked. */
  writeSteps(items: readonly StepWrite[]): PgStatement
  /** Waits for the row: `f` = fenced. */
  writeStep(item: StepWrite): PgStatement
  /** stored, fenced, missing, expired, decided. */
  changeEffect(lease: Lease, name: string, change: EffectChange): PgStatement
  /** Steps, each with `standby`; one row without a name when there are none. */
  steps(id: string): PgStatement
  /** BEGIN's companion of a step. */
  gate(lease: Lease, idleTimeoutMs: number): PgStatement
  /** Compares lease and transaction, and keeps takeovers out until COMMIT; `undefined` = nothing ran in it. */
  seal(lease: Lease, transactionId: string | undefined): PgStatement
  storeStep(lease: Lease, step: NewStep): PgStatement
}

/**
 * What people and webhooks do to leased operations, as statements. Every act writes its audit row in its own transaction.
 *
 * @module
 */

import type { Act, EffectProof, EffectReference, JobRecord } from '../../store/job.ts'
import type { NewRecord } from '../../store/operation.ts'
import type { PgStatement } from './handle.ts'
import { ageMs, prepared, RECORD, valued } from './job-sql.ts'

/** The SQL of one schema; `schema` is the quoted identifier. */
export function jobOperatorStatements(schema: string): JobOperatorStatements {
  const operation = `${schema}.operation`
  const step = `${schema}.step`
  const state = `${schema}.operation_state`
  const made = (name: string, body: string, columns?: readonly string[]) => prepared(schema, name, body, columns)

  const list = made(
    'list',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `select ${RECORD}, (select pg_catalog.json_agg(pg_catalog.json_build_object('name', s.name, 'ageMs', ` +
      `${ageMs('s.unknown_since')}) order by s.position) from ${step} s where s.operation_id = o.id and s.state = 'unknown') ` +
      `as unknown_effects from pg_catalog.unnest($1::${state}[]) w (state) cross join lateral (select i.* from ${operation} i ` +
      `where i.expires_at = 'infinity' and i.state = w.state and (i.created_at, i.id) > ` +
      `(coalesce((select a.created_at from ${operation} a where a.id = $3::uuid), '-infinity'), ` +
      `coalesce($3::uuid, '00000000-0000-0000-0000-000000000000')) order by i.created_at, i.id limit $2::integer) o ` +
      `order by o.created_at, o.id limit $2::integer`,
  )
  const history = made(
    'history',
    // sql-built: texts of this file and of job-sql.ts only; every value is a parameter.
    `select (extract(epoch from at) * 1000)::float8 as at_ms, fence, event, detail from ${schema}.job_event ` +
      `where operation_id = $1::uuid order by seq`,
  )

  return {
    list: ({ states, limit, after }) => valued(list, [states, limit, after ?? null]),
    history: (id) => valued(history, [id]),
    resolveEffect: (reference, proof, act) => ({
      text:
        `/* effectively-once:job.effect_resolve */ select ${schema}.effect_resolve($1::uuid, $2::text, $3::text, $4::text, ` +
        `$5::text, $6::integer, $7::text, $8::text) as answer`,
      values: [
        'id' in reference ? reference.id : null,
        'id' in reference ? reference.name : null,
        'id' in reference ? null : reference.providerKey,
        proof.state,
        proof.state === 'notApplied' ? null : proof.result,
        proof.state === 'notApplied' ? null : proof.resultVersion,
        act.actor,
        act.reason,
      ],
    }),
    resolveOperation: (record, act) => ({
      text:
        `/* effectively-once:job.resolve */ select ${schema}.job_resolve($1::uuid, $2::uuid, $3::${state}, $4::boolean, ` +
        `$5::integer, $6::text, $7::bigint, $8::bytea, $9::bigint, $10::text, $11::text) as answer`,
      values: [
        record.id,
        record.token,
        record.state,
        record.notApplied ?? null,
        record.outcomeVersion,
        record.outcome,
        record.retentionMs,
        record.response ?? null,
        record.responseRetentionMs ?? null,
        act.actor,
        act.reason,
      ],
    }),
    redrive: (id, act) => ({
      text: `/* effectively-once:job.redrive */ select ${schema}.job_redrive($1::uuid, $2::text, $3::text) as answer`,
      values: [id, act.actor, act.reason],
    }),
  }
}

export interface JobOperatorStatements {
  list(filter: {
    readonly states: readonly JobRecord['state'][]
    readonly limit: number
    readonly after?: string | undefined
  }): PgStatement
  history(id: string): PgStatement
  resolveEffect(reference: EffectReference, proof: EffectProof, act: Act): PgStatement
  resolveOperation(record: NewRecord, act: Act): PgStatement
  redrive(id: string, act: Act): PgStatement
}

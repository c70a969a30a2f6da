/** Mutants of leased operations: claims, leases, fences, steps, effects and what is believed of a provider. */
import { inFile, type Mutant } from './mutant.ts'

const SUITE = 'test/conformance/job.test.ts'
const STALE = 'SC3, SC5, SC47, B23: after takeover nothing that the former owner does has an effect'
const on = (name: string): string => `postgres, pipelined pool ${name}`

export const leasedMutants: readonly Mutant[] = [
  ...inFile('src/stores/postgres/job-sql.ts', {
    'fence-not-compared': [
      'and o.fence = ${fence} and',
      'and ${fence} is not null and',
      SUITE,
      on('B23, T12: token and fence are both compared: neither alone is an ownership'),
    ],
    'token-not-compared': [
      'and o.token = ${token} and',
      'and ${token} is not null and',
      SUITE,
      on('B23, T12: token and fence are both compared: neither alone is an ownership'),
    ],
    'lease-that-is-over-counts': [
      ' and o.lease_until > ${CLOCK}`',
      '`',
      SUITE,
      on('SC7, I5: an owner whose lease is over is refused even while it has no successor'),
    ],
  }),
  ...inFile('src/stores/postgres/job-statements.ts', {
    'complete-without-fence': [
      'from ${valueRow(completionTypes)} where ${OWNED_BY_ROW} returning u.n',
      'from ${valueRow(completionTypes)} where o.id = u.id returning u.n',
      SUITE,
      on(STALE),
    ],
    'release-without-fence': [
      '`where ${OWNED} returning o.id, o.fence) `',
      '`where o.id = $1::uuid and $2::uuid is not null and $3::bigint is not null returning o.id, o.fence) `',
      SUITE,
      on(STALE),
    ],
    'takeover-without-expiry': [
      '`(o.lease_until is null or o.lease_until <= ${CLOCK})`',
      "'true'",
      SUITE,
      on('SC3: a live lease cannot be taken over'),
    ],
    'takeover-of-any-fence': [
      'o.fence = $2::bigint ` +\n      `and o.state in',
      '$2::bigint is not null ` +\n      `and o.state in',
      SUITE,
      on('SC3: a caller that saw an older fence takes nothing over'),
    ],
    'fence-not-raised': [
      'then o.fence else o.fence + 1 end',
      'then o.fence else o.fence end',
      SUITE,
      on('SC3: of 32 callers exactly one takes an expired lease over, and its fence is greater'),
    ],
    'claims-not-counted': [
      'then o.claims else o.claims + 1 end',
      'then o.claims else o.claims end',
      SUITE,
      on('I15: an operation that has killed its owners is parked instead of claimed again, by a caller'),
    ],
    'hand-back-counts-as-death': [
      'claims = greatest(o.claims - 1, 0)',
      'claims = o.claims',
      SUITE,
      on('B32: an operation that is given back is due after its backoff, and the claim does not count'),
    ],
    'proof-during-an-ownership-forgotten': [
      "due_at = case when $4::${state} = 'unknown' and o.resolved then ${dueAfter('0')} else",
      'due_at = case when false then null else',
      SUITE,
      on('I11, I12: what is given back as unknown after a proof came during the ownership is due at once'),
    ],
  }),
  ...inFile('src/stores/postgres/job-step-statements.ts', {
    'step-without-fence': [
      'on ${OWNED_BY_ROW} for share of o), ',
      'on o.id = u.id for share of o), ',
      SUITE,
      on(STALE),
    ],
    'effect-change-without-fence': [
      'o where ${OWNED} for share)',
      'o where o.id = $1::uuid and $2::uuid is not null for share)',
      SUITE,
      on(STALE),
    ],
    'webhooks-answer-overwritten': [
      "and s.delivery is not null and s.state in ('intended', 'unknown') `",
      'and s.delivery is not null `',
      SUITE,
      on('I11: an answer that a webhook brings first is kept, and the owner is told that it is decided'),
    ],
    'proof-not-reset-by-an-attempt': [
      'attempts = least(s.attempts + 1, 32767), looks = 0, last_attempt_at',
      'attempts = least(s.attempts + 1, 32767), last_attempt_at',
      SUITE,
      on('looks are counted behind the last attempt: another attempt starts them anew'),
    ],
    'attempts-not-counted': [
      'attempts = least(s.attempts + 1, 32767)',
      'attempts = s.attempts',
      SUITE,
      on('I10, B84: each further attempt is counted before its call'),
    ],
    'age-of-the-key-ignored': [
      '`s.first_attempt_at <= ${CLOCK} - $5::bigint * ${MS}`',
      '`$5::bigint = -1`',
      SUITE,
      on('B90: no attempt is started with a key that is older than the provider keeps it'),
    ],
  }),
  ...inFile('sql/postgres/0005_job.sql', {
    'group-completes-without-fence': [
      'o.token = u.token and o.fence = coalesce(u.fence, p_fence[1])\n',
      'o.token = u.token\n',
      'test/postgres/jobs-faults.test.ts',
      'pipelined pool C15: a value that the server refuses fails its own caller only, in every group',
    ],
    'renew-without-fence': [
      'lease_ms, n)\n    join :schema.operation o on o.id = u.id and o.token = u.token and o.fence = u.fence',
      'lease_ms, n)\n    join :schema.operation o on o.id = u.id',
      SUITE,
      on(STALE),
    ],
    'group-of-steps-without-fence': [
      'from given u join :schema.operation o on o.id = u.id and o.token = u.token and o.fence = u.fence',
      'from given u join :schema.operation o on o.id = u.id and o.token = u.token',
      'test/postgres/jobs-faults.test.ts',
      'pipelined pool C15: a value that the server refuses fails its own caller only, in every group',
    ],
    'step-begins-without-lease': [
      "      and lease_until > pg_catalog.clock_timestamp();\n  if not found then\n    raise exception 'lease lost' using errcode = 'EO008';\n  end if;\n  return v_xid;",
      "      ;\n  if not found then\n    raise exception 'lease lost' using errcode = 'EO008';\n  end if;\n  return v_xid;",
      SUITE,
      on('I5: the first statement of a step fails when the lease is over, and nothing of the work is kept'),
    ],
    'step-ends-without-lease': [
      '      and lease_until > pg_catalog.clock_timestamp()\n    for share;',
      '    for share;',
      SUITE,
      on('SC7, I5: a step that began in time and ends after its lease is rolled back'),
    ],
    'step-without-transaction-id': [
      '  if p_xid is not null and pg_catalog.pg_current_xact_id_if_assigned() is distinct from p_xid::xid8 then\n    raise',
      '  if false then\n    raise',
      'test/postgres/jobs.test.ts',
      'B110: a step whose work ended its transaction by commit is not stored',
    ],
    'uncommitted-job-is-told': [
      "  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then\n    return 'busy';",
      "  if false then\n    return 'busy';",
      SUITE,
      on('B27: while a job is uncommitted nobody is told that it exists, and afterwards it is there exactly once'),
    ],
    'not-applied-while-an-owner-calls': [
      "    if v_held then\n      return 'busy';",
      "    if false then\n      return 'busy';",
      SUITE,
      on('I11: nobody can prove that a call which an owner has under way never happens'),
    ],
    'first-answer-of-an-effect-replaced': [
      "  if v_step.state in ('done', 'refused') or v_job.state in ('succeeded', 'rejected') then\n    return 'decided';",
      "  if false then\n    return 'decided';",
      SUITE,
      on('I11: an effect keeps its first answer; who comes later is told, and nothing is audited'),
    ],
  }),
  ...inFile('src/effect/decide.ts', {
    'doubt-ignored': [
      "return hasReconcile ? 'reconcile' : 'unknown'",
      "return 'call'",
      'test/effect/decide.test.ts',
      'I10, I11, R17: with doubt nothing is called but by a key that is alive',
    ],
    'earlier-doubt-forgotten': [
      'return { refused: false, doubt: !settled, keySpoiled: false }',
      'return { refused: false, doubt: false, keySpoiled: false }',
      'test/effect/decide.test.ts',
      'R44, B86, B87: transient of the attempt, doubt before: true',
    ],
    'spoiled-key-sent-again': [
      'if (keyed && keyAlive && !keySpoiled) return',
      'if (keyed && keyAlive) return',
      'test/effect/decide.test.ts',
      'I10, I11, R17: with doubt nothing is called but by a key that is alive',
    ],
    'expired-key-sent-again': [
      'if (keyed && keyAlive && !keySpoiled) return',
      'if (keyed && !keySpoiled) return',
      'test/effect/decide.test.ts',
      'I10, I11, R17: with doubt nothing is called but by a key that is alive',
    ],
    'not-applied-believed-at-once': [
      'if (left > 0) return',
      'if (left > Number.POSITIVE_INFINITY) return',
      'test/effect/decide.test.ts',
      'PROTOCOL C3: not while the last attempt may still be under way',
    ],
  }),
  ...inFile('src/effect/perform.ts', {
    'key-made-anew-for-each-attempt': [
      'idempotencyKey: known.providerKey,\n      attempt: known.attempts,\n      signal,',
      'idempotencyKey: this.#keyOf(known.attempts),\n      attempt: known.attempts,\n      signal,',
      'test/job/run-memory.test.ts',
      'R16, I10: a keyed effect whose answer was lost is charged once',
    ],
  }),
  ...inFile('src/effect/call.ts', {
    'request-shared-between-attempts': [
      'return JSON.parse(request) as Request',
      'return (((frozen as unknown as Record<string, unknown>)[request] ??= JSON.parse(request)) as Request)',
      'test/job/run-memory.test.ts',
      'I10: what an attempt does to its request, the next attempt does not send',
    ],
  }),
  ...inFile('src/job/op.ts', {
    'another-request-under-a-stored-intent': [
      'stored.effect.requestHash !== settings.requestHash',
      'false',
      'test/job/operation.test.ts',
      'changed code does not run over the stored history of another one',
    ],
  }),
  ...inFile('src/job/history.ts', {
    'order-of-steps-not-compared': [
      'if (this.#ordered && there !== undefined && there.name !== name) {',
      'if (false) {',
      'test/job/history.test.ts',
      'PROTOCOL C12: another name in its place is STEP_CHANGED',
    ],
    'step-left-out-unnoticed': [
      'if (!this.#started.has(name)) throw',
      'if (false) throw',
      'test/job/history.test.ts',
      'PROTOCOL C12: ending without a stored step is STEP_CHANGED',
    ],
  }),
  ...inFile('src/job/lease.ts', {
    'own-deadline-ignored': [
      'if (late >= 0) this.lose(',
      'if (late >= 1e9) this.lose(',
      'test/job/held-lease.test.ts',
      'I5, SC7: an owner that was held up past its lease notices before it does anything else',
    ],
    'deadline-counted-from-the-answer': [
      '          held.extend(startedMs)',
      '          held.extend(performance.now())',
      'test/job/held-lease.test.ts',
      'B25: a renewal counts from before it was sent',
    ],
  }),
]

/** Mutants of operations in one transaction: gate, record, COMMIT and what is made of its lost answer, identity. */
import { inFile, type Mutant } from './mutant.ts'

const SUITE = 'test/conformance/operation.test.ts'
const RETENTION = 'test/conformance/retention.test.ts'
const on = (name: string): string => `postgres, pipelined pool ${name}`

export const operationMutants: readonly Mutant[] = [
  ...inFile('sql/postgres/0001_operation.sql', {
    'gate-without-look-up': [
      "    if v_expires_at > pg_catalog.clock_timestamp() then\n      raise exception 'recorded'",
      "    if false then\n      raise exception 'recorded'",
      SUITE,
      on('I4: after completion a duplicate is recorded before its first statement can run'),
    ],
    'gate-looks-up-as-of-before-the-lock': [
      'returns text language plpgsql volatile as $gate$',
      'returns text language plpgsql stable as $gate$',
      'test/operation/gate.test.ts',
      'I4: the gate sees what was committed after the statement that asks it began',
    ],
    'claim-looks-up-as-of-before-the-lock': [
      'returns text language plpgsql volatile as $claim$',
      'returns text language plpgsql stable as $claim$',
      'test/operation/gate.test.ts',
      'I4: the claim sees what was committed after the statement that asks it began',
    ],
    'gate-without-lock-of-the-payload': [
      "  if not pg_catalog.pg_try_advisory_xact_lock(p_payload_lock) then\n    raise exception 'busy'",
      "  if false then\n    raise exception 'busy'",
      SUITE,
      on('I4: while one attempt works, the same payload is busy and runs nothing'),
    ],
    'gate-without-lock-of-the-key': [
      "  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then\n    raise exception 'busy with",
      "  if false then\n    raise exception 'busy with",
      SUITE,
      on('SC10, I4: while one attempt works, another payload under the key is told apart'),
    ],
    'expired-record-blocks-its-key': [
      "    if v_expires_at > pg_catalog.clock_timestamp() then\n      raise exception 'recorded'",
      "    if true then\n      raise exception 'recorded'",
      SUITE,
      on('SC20: an expired record frees its key at once'),
    ],
    'begin-that-failed-is-not-noticed': [
      "  -- The body of open, and not a call of it: the call is a sixth of what a claim costs a busy server.\n  if pg_catalog.current_setting('transaction_deferrable') <> 'on'\n    or",
      '  if false\n    or',
      'test/operation/gate.test.ts',
      'B105, I1: the gate ends the session when BEGIN failed in front of a statement that is on its way alone',
    ],
  }),
  ...inFile('src/stores/postgres/statements.ts', {
    'record-without-transaction-id': [
      'where pg_catalog.pg_current_xact_id_if_assigned() = $11::xid8',
      'where $11::xid8 is not null',
      SUITE,
      on('in(tx): succeeding in another transaction than the one that claimed writes nothing'),
    ],
    'expired-record-is-replayed': [
      'on o.id = any($1::uuid[]) and o.expires_at > pg_catalog.clock_timestamp()',
      'on o.id = any($1::uuid[])',
      SUITE,
      on('SC9: a record is live until its deadline'),
    ],
    'expired-response-is-replayed': [
      'case when o.response_expires_at > pg_catalog.clock_timestamp() then o.response end as response',
      'o.response',
      SUITE,
      on('R41: a response is found with its record, then gone while the record stays'),
    ],
  }),
  ...inFile('src/stores/postgres/gated-transaction.ts', {
    'tag-of-commit-not-looked-at': [
      "return answer.value.at(-1)?.command === 'COMMIT'",
      'return answer.value.length > 0',
      'test/operation/gate.test.ts',
      'I1: a COMMIT that is answered with ROLLBACK is no commit',
    ],
  }),
  ...inFile('src/stores/postgres/verify-commit.ts', {
    'unknown-commit-read-without-lock': [
      'await client.query(sql.lockBoth(attempt))',
      '',
      SUITE,
      on('verifyCommit stays unresolved, within its bound, while the old transaction is alive'),
    ],
    'unknown-commit-without-token': [
      "return token === attempt.token ? 'committed' : 'other'",
      "return 'committed'",
      SUITE,
      on('verifyCommit says committed to its own token, other to a foreign one'),
    ],
  }),
  ...inFile('src/stores/postgres/outbox-insert.ts', {
    'messages-without-transaction-id': [
      'select ${ONE} where ${SAME_TRANSACTION}',
      'select ${ONE} where $9::text is not null',
      'test/outbox/insert.test.ts',
      '1 rows are not inserted when the work ended our transaction',
    ],
    'notify-in-the-transaction': [
      'select ${ONE} where ${SAME_TRANSACTION}',
      "select ${ONE} where ${SAME_TRANSACTION} and pg_catalog.pg_notify('effectively_once_outbox', '') is not null",
      'test/outbox/bell.test.ts',
      'no transaction of the application notifies',
    ],
  }),
  ...inFile('src/operation/attempt.ts', {
    'swallowed-conflict-is-final': [
      'if (opened.conflict !== undefined) return',
      'if (false) return',
      'test/operation/gate.test.ts',
      'R13: a refusal by a work that swallowed a serialization failure is not final',
    ],
    'rejection-keeps-the-writes': [
      '      return decided === undefined ? await storeRejection(engine, attempt, opened, ending, options) : { kind: decided }',
      '      if (decided !== undefined) return { kind: decided }',
      'test/operation/transaction.test.ts',
      'R13: a rejection is stored, replayed, and its writes and messages are gone',
    ],
  }),
  ...inFile('src/operation/operation.ts', {
    'other-payload-gets-the-outcome': [
      '  refuseOther(record, asked, secrets)\n  if (!isFinished(record))',
      '  if (!isFinished(record))',
      'test/operation/transaction.test.ts',
      'R03, I4: the same key with another payload is refused and runs nothing',
    ],
  }),
  ...inFile('src/operation/identity.ts', {
    'length-prefix-dropped': [
      'text += `${Buffer.byteLength(part)}:${part}`',
      'text += part',
      'test/operation/identity.test.ts',
      'SC12: no choice of delimiters makes two operations one',
    ],
    'scope-left-out-of-the-id': [
      'for (const part of parts) text +=',
      'for (const part of parts.slice(0, 0)) text +=',
      'test/operation/identity.test.ts',
      'once.transaction: each has its own outcome, and nobody sees the other',
    ],
  }),
  ...inFile('src/stores/postgres/retention.ts', {
    'purge-of-live-records': [
      'o.expires_at <= ${BEFORE} as over',
      'true as over',
      RETENTION,
      on('I13, R41: an expired response is erased, its record stays'),
    ],
    'purge-of-marks-whose-message-waits': [
      'where m.expires_at < ${BEFORE} and m.expires_at >= ${FROM} and ${mark} ',
      'where m.expires_at < ${BEFORE} and m.expires_at >= ${FROM} ',
      'test/conformance/inbox.test.ts',
      on('B81, I13: marks of waiting and quarantined messages outlive their retention'),
    ],
  }),
]

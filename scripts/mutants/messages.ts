/** Mutants of outbox, relay and inbox: fences, order, confirms, marks, acknowledgements, audit. */
import { inFile, type Mutant } from './mutant.ts'

const OUTBOX = 'test/conformance/outbox.test.ts'
const INBOX = 'test/conformance/inbox.test.ts'
const RELAY = 'test/outbox/relay.test.ts'
const CONSUMER = 'test/inbox/consumer.test.ts'
const outbox = (name: string): string => `postgres ${name}`
const inbox = (name: string): string => `postgres, pipelined pool ${name}`

export const messageMutants: readonly Mutant[] = [
  ...inFile('src/stores/postgres/outbox-statements.ts', {
    'relay-fence-dropped': [
      'and fence = $3::bigint and lease_until > ${NOW} `',
      'and $3::bigint is not null and lease_until > ${NOW} `',
      OUTBOX,
      outbox('I5: a made-up fence or owner changes nothing'),
    ],
    'relay-owner-dropped': [
      'and owner = $2::uuid and fence = $3::bigint and lease_until',
      'and $2::uuid is not null and fence = $3::bigint and lease_until',
      OUTBOX,
      outbox('I5: a made-up fence or owner changes nothing'),
    ],
    'relay-lease-renewed-without-live-check': [
      'and fence = $3::bigint and lease_until > ${NOW} `',
      'and fence = $3::bigint `',
      OUTBOX,
      outbox('I5: an owner whose lease has ended changes nothing, although nobody else came'),
    ],
    'lane-taken-without-expiry': [
      '(l.lease_until is null or l.lease_until < ${NOW})',
      'true',
      OUTBOX,
      outbox('SC30: a lane is taken over when its lease has ended, never before'),
    ],
    'lane-taken-with-the-same-fence': [
      'fence = l.fence + 1',
      'fence = l.fence',
      OUTBOX,
      outbox('SC30: a lane is taken over when its lease has ended, never before'),
    ],
    'rows-in-flight-read-again': [
      '`not seq <@ ${parameter}::pg_catalog.int8multirange`',
      '`${parameter}::pg_catalog.int8multirange is not null`',
      OUTBOX,
      outbox('R27: rows are read lowest seq first, without those in flight'),
    ],
    'highest-seq-read-first': [
      '`order by lane, seq limit ${limit}::int`',
      '`order by lane, seq desc limit ${limit}::int`',
      OUTBOX,
      outbox('R27: rows are read lowest seq first, without those in flight'),
    ],
    'parked-rows-overtake-each-other': [
      'and e.seq < p.seq)',
      'and e.seq < 0)',
      OUTBOX,
      outbox('SC28: rows behind a parked row of their key wait, whatever their own delay'),
    ],
    'quarantine-does-not-stop-its-key': [
      'and q.ordering_key = p.ordering_key and q.stops_key and q.seq < p.seq)',
      'and q.ordering_key = p.ordering_key and q.stops_key and q.seq < 0)',
      OUTBOX,
      outbox('SC28: a quarantined message that stops its key holds later rows back until it is redriven'),
    ],
    'claims-alone-not-counted': [
      'else alone_claims || ${NOW} end',
      'else alone_claims end',
      OUTBOX,
      outbox('I15, SC38: a claim alone counts once per ownership'),
    ],
    'discarded-without-audit': [
      "'lastError', q.last_error, 'topic', q.topic)::text from q)",
      "'lastError', q.last_error, 'topic', q.topic)::text from q where false)",
      OUTBOX,
      outbox('I16: a discarded message is gone with an audit row'),
    ],
    'rows-of-a-copied-database-published': [
      'and (l.system_identifier is null or l.system_identifier = c.system_identifier) `',
      '`',
      OUTBOX,
      outbox('rows of another database cluster are refused until somebody adopts them'),
    ],
  }),
  ...inFile('src/outbox/window.ts', {
    'relay-reads-on-from-the-last-seq': [
      '    for (const row of rows) {\n      this.#ahead.push(row)',
      "    for (const row of rows) {\n      if (row.seq <= Number(Reflect.get(this, 'last') ?? 0)) continue\n      Reflect.set(this, 'last', row.seq)\n      this.#ahead.push(row)",
      RELAY,
      'B37, SC26, I7: a message whose transaction commits late is published although later ones are gone',
    ],
    'parked-key-ignored': [
      'return stop !== undefined && stop < row.seq',
      'return false',
      RELAY,
      'SC28, I8: while message 1 of a key is refused, 2 and 3 wait and other keys go on',
    ],
    'returned-message-counts-as-sent': [
      "      case 'confirmed':\n        if (flight.turn",
      "      case 'confirmed':\n      case 'returned':\n        if (flight.turn",
      RELAY,
      'R24, B51, SC32: an unroutable message stays pending',
    ],
    'read-ahead-sent-after-a-lost-connection': [
      'this.#confirmedTurn = -1\n    this.dropAhead()',
      'this.#confirmedTurn = -1',
      'test/outbox/relay-order.test.ts',
      'I8: what a lost connection swallowed is sent again before anything that was read ahead',
    ],
  }),
  ...inFile('src/outbox/lane.ts', {
    'marked-before-the-confirm': [
      '    this.#publisher.publish(message,',
      "    this.#answered(this.#window.answer(flight, { kind: 'confirmed' }, this.#choice))\n    this.#publisher.publish(message,",
      RELAY,
      'R24, B51, SC32: an unroutable message stays pending',
    ],
    'relay-goes-on-after-its-lane-is-lost': [
      '      this.#lost = true\n      return false\n    }\n    this.#deadline',
      '    }\n    this.#deadline',
      RELAY,
      'R25, I5: a relay whose lane was taken over publishes no more of it, and its late answers change nothing',
    ],
  }),
  ...inFile('src/inbox/consumer.ts', {
    'acknowledged-before-the-commit': [
      '    const disposition = await this.#runner.one(',
      '    if (item.delivery !== undefined) this.#acks.add([item.delivery])\n    const disposition = await this.#runner.one(',
      CONSUMER,
      'R31, SC43: nothing is acknowledged before the commit',
    ],
    'redelivery-runs-before-it-is-written-down': [
      'item.claim === undefined ? await this.#runner.claim(item, this.#owner, this.#settings.due.leaseMs) : undefined',
      'undefined',
      CONSUMER,
      'I15: redelivered messages run alone, each written down before it runs',
    ],
  }),
  ...inFile('src/inbox/key-queue.ts', {
    'claimed-messages-in-batches': [
      'const alone = this.#isAlone(item)',
      'const alone = false && this.#isAlone(item)',
      'test/inbox/key-queue.test.ts',
      'I8: two takers never hold one key, and each key comes out in the order of arrival',
    ],
  }),
  ...inFile('src/inbox/run.ts', {
    'acknowledged-although-the-claim-is-lost': [
      'return item.delivery === undefined ? DONE :',
      'return item.delivery !== null ? DONE :',
      'test/inbox/lost-claim.test.ts',
      'on memory I9, I15: a redelivered message whose claim is lost while it runs is applied all the same',
    ],
  }),
  ...inFile('sql/postgres/0003_inbox.sql', {
    'inbox-fence-dropped': [
      'where id = p_id and owner = p_owner and attempts = p_attempts;',
      'where id = p_id;',
      INBOX,
      inbox('I5: a run whose claim was taken over commits nothing'),
    ],
    'redriven-without-audit': [
      "        insert into :schema.audit (actor, act, subject, reason, detail)\n        values (p_actor, 'inbox.redrive', v_row.consumer || '/' || v_row.mark_id, p_reason,",
      "        perform (p_actor, 'inbox.redrive', v_row.consumer || '/' || v_row.mark_id, p_reason,",
      INBOX,
      inbox('R45, I16: a redriven message waits under its own id, due now, with an audit entry'),
    ],
  }),
  ...inFile('src/stores/postgres/inbox-statements.ts', {
    'waiting-claims-not-counted': [
      'claimed as (update ${schema}.inbox_waiting w set attempts = w.attempts + 1,',
      'claimed as (update ${schema}.inbox_waiting w set attempts = w.attempts,',
      INBOX,
      inbox('R34: a waiting message comes back byte for byte, and each claim is counted'),
    ],
    'waiting-message-claimed-before-it-is-due': [
      '`w.consumer = $1::text and w.due_at <= ${CLOCK} and',
      '`w.consumer = $1::text and',
      INBOX,
      inbox('I14: a message is due by the store’s clock, not before'),
    ],
    'older-version-is-newer': [
      'where v.version < excluded.version',
      'where true',
      INBOX,
      inbox('R35: only a higher version is newer, for each entity and consumer'),
    ],
    'other-content-under-the-id-is-a-duplicate': [
      "`when m.fingerprint <> pg_catalog.substr($2::bytea, 32 * u.i::int - 31, 32) then 'm' ` +\n",
      '``+\n',
      INBOX,
      inbox('R33, SC42: the same id with other content is a mismatch, alone and in a batch'),
    ],
    'waiting-claim-renewed-without-owner': [
      'where w.id = c.id and w.owner = c.owner and w.attempts = c.attempts returning w.id',
      'where w.id = c.id returning w.id',
      INBOX,
      inbox('I5: a claim that was taken over changes nothing'),
    ],
  }),
  ...inFile('src/inbox/identity.ts', {
    'consumer-left-out-of-the-mark': [
      'const text = parts + lengthPrefixed(consumer) + lengthPrefixed(source)',
      'const text = parts + lengthPrefixed(source)',
      'test/inbox/identity.test.ts',
      'SC41: another consumer, another namespace or another id is another mark',
    ],
  }),
]

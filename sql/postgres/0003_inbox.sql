-- 0003_inbox.sql (postgres)
-- why:        a message is applied once per consumer: its mark, its effects and its outputs commit together (I9), and
--             what cannot be applied now waits in the database instead of looping in the broker (R34, B75, B76).
-- lock:       none on existing objects.
-- compatible: yes, nothing existed before.

-- One row per message a consumer has applied. No check constraints: the server reads each anew for every insert.
create table :schema.inbox (
  -- First 16 bytes of SHA-256 over length-prefixed consumer, source and message id: the only key column.
  id uuid not null,
  consumer text not null,
  -- Namespace of the message id: the CloudEvents source, or what the consumer was told; '' when ids need none.
  source text not null,
  message_id text not null,
  -- SHA-256 of the content, so that the same id with other content is told (R33).
  fingerprint bytea not null,
  handled_at timestamptz not null default pg_catalog.clock_timestamp(),
  expires_at timestamptz not null,
  constraint inbox_pkey primary key (id)
);

create index inbox_expires_at on :schema.inbox (expires_at);

-- Messages that were taken off the broker and are not applied yet: failed and due later, without a handler, stopped
-- behind another message of their key, or claimed by a consumer right now. Everything needed to deliver them again.
create table :schema.inbox_waiting (
  id uuid not null,
  -- Order of arrival; the order of redelivery inside one ordering key.
  seq bigint generated always as identity (cache 1),
  consumer text not null,
  source text not null,
  message_id text not null,
  fingerprint bytea not null,
  reason text not null,
  -- Counted when claimed, not when failed: a message that ends its process is counted too (I15).
  attempts integer not null default 0,
  -- When it may be claimed; while claimed, when the claim ends by itself.
  due_at timestamptz not null,
  -- The claim: a random UUID of the consumer instance; null = not claimed. With attempts it is the fence.
  owner uuid,
  -- An operator's word that a mark past its retention does not stop this message (B81).
  override boolean not null default false,
  -- The delivery as it was received.
  queue text not null,
  topic text not null,
  type text,
  content_type text,
  ordering_key text,
  sent_at timestamptz,
  transport text not null,
  body bytea not null,
  last_error text,
  history jsonb not null default '[]',
  created_at timestamptz not null default pg_catalog.clock_timestamp(),
  constraint inbox_waiting_pkey primary key (id),
  constraint inbox_waiting_reason check (reason in ('failed', 'no-handler', 'behind', 'claimed', 'redriven')),
  constraint inbox_waiting_attempts check (attempts >= 0)
);

create index inbox_waiting_due on :schema.inbox_waiting (consumer, due_at);
create index inbox_waiting_key on :schema.inbox_waiting (consumer, ordering_key, seq) where ordering_key is not null;

-- Messages that a person has to look at. Never removed by age.
create table :schema.inbox_quarantine (
  id bigint generated always as identity (cache 1),
  -- Id of the mark the message would have; for a message without identity a hash of its content.
  mark_id uuid not null,
  consumer text not null,
  -- Null = the message has no usable identity.
  message_id text,
  source text not null,
  fingerprint bytea not null,
  reason text not null,
  attempts integer not null default 0,
  queue text not null,
  topic text not null,
  type text,
  content_type text,
  ordering_key text,
  sent_at timestamptz,
  transport text not null,
  body bytea not null,
  last_error text,
  history jsonb not null default '[]',
  received_at timestamptz not null,
  quarantined_at timestamptz not null default pg_catalog.clock_timestamp(),
  constraint inbox_quarantine_pkey primary key (id),
  constraint inbox_quarantine_reason check
    (reason in ('no-identity', 'undecodable', 'mismatch', 'expired', 'exhausted', 'refused'))
);

create index inbox_quarantine_mark on :schema.inbox_quarantine (mark_id);
create index inbox_quarantine_consumer on :schema.inbox_quarantine (consumer, id);

-- Highest version seen of each entity, per consumer (R35).
create table :schema.inbox_version (
  -- First 16 bytes of SHA-256 over length-prefixed consumer and entity.
  id uuid not null,
  consumer text not null,
  entity text not null,
  version bigint not null,
  updated_at timestamptz not null default pg_catalog.clock_timestamp(),
  constraint inbox_version_pkey primary key (id)
);

-- Refuses from inside an expression, which costs nothing while nothing is refused: turns the COMMIT behind it into a
-- rollback (EO004).
create function :schema.inbox_refuse(p_why text) returns text language plpgsql volatile as $refuse$
begin
  raise exception '%', p_why using errcode = 'EO004';
end
$refuse$;

-- The last statement before COMMIT of a message that was claimed: it must still be the transaction that took the mark
-- (a work may have ended it), and the claim must still be ours (another consumer may have taken it over).
create function :schema.inbox_seal(
  p_transaction text, p_id uuid, p_owner uuid, p_attempts integer
) returns void language plpgsql volatile as $seal$
begin
  if pg_catalog.pg_current_xact_id_if_assigned()::text is distinct from p_transaction then
    raise exception 'ended' using errcode = 'EO004';
  end if;
  delete from :schema.inbox_waiting where id = p_id and owner = p_owner and attempts = p_attempts;
  if not found then
    raise exception 'fenced' using errcode = 'EO004';
  end if;
end
$seal$;

-- Writes down that a redelivered message is about to run, before it runs: attempt 1, claimed (I15).
--   'claimed'      it runs now, alone
--   'duplicate', 'mismatch', 'expired'   a mark is there
--   'stored'       it waits already and comes again from here; the broker's copy is not needed
--   'quarantined'  it lies in quarantine with the same content
--   'busy'         it is being worked on
create function :schema.inbox_claim(
  p_id uuid, p_lock_high integer, p_lock_low integer, p_consumer text, p_source text, p_message_id text,
  p_fingerprint bytea, p_owner uuid, p_lease_ms bigint, p_queue text, p_topic text, p_type text, p_content_type text,
  p_ordering_key text, p_sent_at timestamptz, p_transport text, p_body bytea
) returns text language plpgsql volatile as $claim$
declare
  v_fingerprint bytea;
  v_expires_at timestamptz;
begin
  if pg_catalog.pg_is_in_recovery() then
    raise exception 'standby' using errcode = 'EO005';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_lock_high, p_lock_low) then
    return 'busy';
  end if;
  select fingerprint, expires_at into v_fingerprint, v_expires_at from :schema.inbox where id = p_id;
  if found then
    return case
      when v_fingerprint <> p_fingerprint then 'mismatch'
      when v_expires_at <= pg_catalog.clock_timestamp() then 'expired'
      else 'duplicate'
    end;
  end if;
  if exists (
    select from :schema.inbox_quarantine where mark_id = p_id and fingerprint = p_fingerprint and message_id is not null
  ) then
    return 'quarantined';
  end if;
  insert into :schema.inbox_waiting (id, consumer, source, message_id, fingerprint, reason, attempts, due_at, owner,
    queue, topic, type, content_type, ordering_key, sent_at, transport, body)
  values (p_id, p_consumer, p_source, p_message_id, p_fingerprint, 'claimed', 1,
    pg_catalog.clock_timestamp() + p_lease_ms * interval '1 millisecond', p_owner,
    p_queue, p_topic, p_type, p_content_type, p_ordering_key, p_sent_at, p_transport, p_body)
  on conflict (id) do nothing;
  if found then
    -- The broker still has the message: a count that a crash of the server loses is no message lost, and messages that
    -- are handled one after another should not wait for the disk twice.
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    return 'claimed';
  end if;
  -- Written, although nothing changes: 'stored' lets the broker forget the message, so the row must be on disk.
  update :schema.inbox_waiting set due_at = due_at where id = p_id returning fingerprint into v_fingerprint;
  return case when not found then 'busy' when v_fingerprint <> p_fingerprint then 'mismatch' else 'stored' end;
end
$claim$;

-- Adds one entry to a history; only the newest 50 are kept.
create function :schema.inbox_history(p_history jsonb, p_entry jsonb) returns jsonb language sql immutable as $history$
  select case when pg_catalog.jsonb_array_length(p_history) >= 50 then p_history - 0 else p_history end || p_entry
$history$;

-- Moves quarantined messages back to waiting under their own ids (R45), with an audit row in the same transaction
-- (I16). One row of answer per id given: redriven, no-identity, waiting (its id waits already), absent.
create function :schema.inbox_redrive(
  p_ids bigint[], p_override boolean, p_actor text, p_reason text
) returns table (given bigint, result text) language plpgsql volatile as $redrive$
declare
  v_row :schema.inbox_quarantine;
begin
  foreach given in array p_ids loop
    select * into v_row from :schema.inbox_quarantine q where q.id = given for update;
    if not found then
      result := 'absent';
    elsif v_row.message_id is null then
      result := 'no-identity';
    else
      insert into :schema.inbox_waiting (id, consumer, source, message_id, fingerprint, reason, attempts, due_at,
        override, queue, topic, type, content_type, ordering_key, sent_at, transport, body, last_error, history)
      values (v_row.mark_id, v_row.consumer, v_row.source, v_row.message_id, v_row.fingerprint, 'redriven', 0,
        pg_catalog.clock_timestamp(), p_override, v_row.queue, v_row.topic, v_row.type, v_row.content_type,
        v_row.ordering_key, v_row.sent_at, v_row.transport, v_row.body, v_row.last_error,
        :schema.inbox_history(v_row.history, pg_catalog.jsonb_build_object(
          'at', pg_catalog.clock_timestamp(), 'event', 'redriven', 'by', p_actor, 'reason', p_reason,
          'override', p_override)))
      on conflict (id) do nothing;
      if found then
        delete from :schema.inbox_quarantine q where q.id = given;
        insert into :schema.audit (actor, act, subject, reason, detail)
        values (p_actor, 'inbox.redrive', v_row.consumer || '/' || v_row.mark_id, p_reason,
          pg_catalog.jsonb_build_object('quarantine', given, 'was', v_row.reason, 'attempts', v_row.attempts,
            'override', p_override)::text);
        result := 'redriven';
      else
        result := 'waiting';
      end if;
    end if;
    return next;
  end loop;
end
$redrive$;

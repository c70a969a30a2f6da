-- 0001_operation.sql (postgres)
-- why:        one committed outcome per (scope, key), decided by a unique constraint (I1), and the gate that
--             lets BEGIN, the decision and the work's first statement share one round trip.
-- lock:       none on existing objects.
-- compatible: yes, nothing existed before.

-- Enums and no check constraints: the server reads every check of a table anew for each INSERT, and three of them cost
-- as much as the row itself.
-- Transactions write 'succeeded' and 'rejected' only; the other states belong to leased operations (0005_job.sql).
create type :schema.operation_state as enum ('succeeded', 'rejected', 'processing', 'unknown', 'parked');
create type :schema.operation_fingerprint_mode as enum ('canonical', 'raw', 'parsed');

create table :schema.operation (
  -- First 16 bytes of SHA-256 over length-prefixed scope and key: the only key column.
  id uuid not null,
  -- The attempt that wrote the row; an ambiguous COMMIT is decided by comparing it.
  token uuid not null,
  state :schema.operation_state not null,
  -- How the fingerprint was made: canonical, raw, parsed.
  fingerprint_mode :schema.operation_fingerprint_mode not null,
  -- Id of the secret when the fingerprint is keyed; null when it is a plain SHA-256.
  fingerprint_key text,
  fingerprint bytea not null,
  -- JSON list of the scope's parts, for listing and erasing by tenant.
  scope text not null,
  -- Format of outcome; readers know every earlier one.
  outcome_version smallint not null,
  -- JSON text (never jsonb, which refuses U+0000); null = the work returned nothing.
  outcome text,
  created_at timestamptz not null default pg_catalog.clock_timestamp(),
  expires_at timestamptz not null,
  constraint operation_pkey primary key (id)
);

-- Opens an attempt and returns its transaction's id. Alone where the constraint decides; the gate does the same.
--
-- BEGIN of ours says DEFERRABLE, which changes nothing for a transaction that writes but can be asked. When BEGIN
-- failed (cancelled, refused by a proxy), statements sent behind it in the same trip would commit one by one, so the
-- session is ended before it reads them (EO007). EO005: this server is a standby, or the role is read-only.
--
-- The server itself bounds what a vanished owner can hold: the whole transaction since PostgreSQL 17, before that one
-- statement, and silence between two. A client that has gone without a FIN is noticed by neither for hours. A shorter
-- limit of the application's own stays.
create function :schema.open(p_timeout_ms text) returns text language plpgsql volatile as $open$
declare
  v_limit text;
begin
  if pg_catalog.current_setting('transaction_deferrable') <> 'on'
    or pg_catalog.current_setting('transaction_read_only') = 'on'
  then
    perform :schema.refuse_transaction();
  end if;
  -- One expression each: plpgsql makes every expression ready anew in every transaction.
  v_limit := pg_catalog.current_setting('transaction_timeout', true);
  if v_limit = '0' then
    v_limit := pg_catalog.set_config('transaction_timeout', p_timeout_ms, true);
  else
    perform :schema.limit_transaction(p_timeout_ms, v_limit);
  end if;
  return pg_catalog.pg_current_xact_id();
end
$open$;

-- Why this transaction cannot be one of ours.
create function :schema.refuse_transaction() returns void language plpgsql volatile as $refuse$
begin
  if pg_catalog.current_setting('transaction_deferrable') <> 'on' then
    perform pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid());
    raise exception 'BEGIN did not run' using errcode = 'EO007';
  end if;
  -- On a standby every transaction is read-only.
  raise exception 'read-only' using errcode = 'EO005';
end
$refuse$;

-- The limits of open where the application has one of its own for the transaction (p_own), or the server knows none (null).
create function :schema.limit_transaction(
  p_timeout_ms text, p_own text
) returns void language plpgsql volatile as $limit$
declare
  v_limit interval := (p_timeout_ms || ' milliseconds')::interval;
  v_statement text;
begin
  if p_own is not null then
    if p_own::interval > v_limit then
      perform pg_catalog.set_config('transaction_timeout', p_timeout_ms, true);
    end if;
    return;
  end if;
  v_statement := pg_catalog.current_setting('statement_timeout');
  if v_statement = '0' or v_statement::interval > v_limit then
    perform pg_catalog.set_config('statement_timeout', p_timeout_ms, true);
  end if;
  perform pg_catalog.set_config('idle_in_transaction_session_timeout', p_timeout_ms, true);
end
$limit$;

-- Decides one attempt inside its own transaction; raising aborts it, so that a first statement sent in the same
-- trip cannot run for a duplicate (I4). VOLATILE: each statement below has a fresh snapshot in READ COMMITTED,
-- which is what lets the look-up see a record committed just before the lock was free.
--   EO001  the same payload is being worked on        EO003  another payload is being worked on under this key
--   EO002  a live record exists                       EO007, EO005  as in open
-- Order matters: every owner takes the payload's lock first, so being refused only the key's lock means that
-- another payload holds it.
-- Returns the transaction's id. The statement that writes the record compares it, so a work that ended this
-- transaction (COMMIT, ROLLBACK, COMMIT + BEGIN) can never be recorded as done.
create function :schema.gate(
  p_id uuid, p_payload_lock bigint, p_key_lock bigint, p_timeout_ms text
) returns text language plpgsql volatile as $gate$
declare
  v_expires_at timestamptz;
  v_limit text;
begin
  -- The body of open, and not a call of it: the call is a sixth of what a claim costs a busy server.
  if pg_catalog.current_setting('transaction_deferrable') <> 'on'
    or pg_catalog.current_setting('transaction_read_only') = 'on'
  then
    perform :schema.refuse_transaction();
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_payload_lock) then
    raise exception 'busy' using errcode = 'EO001';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then
    raise exception 'busy with another payload' using errcode = 'EO003';
  end if;
  select expires_at into v_expires_at from :schema.operation where id = p_id;
  if found then
    if v_expires_at > pg_catalog.clock_timestamp() then
      raise exception 'recorded' using errcode = 'EO002';
    end if;
    -- An expired record frees its key at once, without waiting for a purge; rolled back with the attempt.
    delete from :schema.operation where id = p_id and expires_at <= pg_catalog.clock_timestamp();
  end if;
  -- One expression each: plpgsql makes every expression ready anew in every transaction.
  v_limit := pg_catalog.current_setting('transaction_timeout', true);
  if v_limit = '0' then
    v_limit := pg_catalog.set_config('transaction_timeout', p_timeout_ms, true);
  else
    perform :schema.limit_transaction(p_timeout_ms, v_limit);
  end if;
  return pg_catalog.pg_current_xact_id();
end
$gate$;

-- The same question without aborting, for a transaction that belongs to the caller (once.in(tx).claim).
create function :schema.claim(
  p_id uuid, p_payload_lock bigint, p_key_lock bigint
) returns text language plpgsql volatile as $claim$
declare
  v_expires_at timestamptz;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_payload_lock) then
    return 'busy';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then
    return 'otherPayload';
  end if;
  select expires_at into v_expires_at from :schema.operation where id = p_id;
  if found then
    if v_expires_at > pg_catalog.clock_timestamp() then
      return 'recorded';
    end if;
    delete from :schema.operation where id = p_id and expires_at <= pg_catalog.clock_timestamp();
  end if;
  return 'claimed ' || pg_catalog.pg_current_xact_id();
end
$claim$;

-- Refuses an outcome above its limit before anything is committed, for outcomes that only the server sees first.
create function :schema.fit(p_outcome text, p_bytes_max int) returns text language plpgsql immutable as $fit$
begin
  if pg_catalog.octet_length(p_outcome) > p_bytes_max then
    raise exception 'outcome too large' using errcode = 'EO006', detail = pg_catalog.octet_length(p_outcome)::text;
  end if;
  return p_outcome;
end
$fit$;

-- 0005_job.sql (postgres)
-- why:        work with effects outside the database is claimed by a committed lease and worked on in steps (R11, R15).
--             The claim is the operation's own row, so that one constraint decides between all kinds of attempts, and a
--             transaction that meets a leased operation is refused by the gate as it is.
-- lock:       ACCESS EXCLUSIVE on operation, catalog only; nullable columns without default rewrite nothing. The index
--             is empty when it is made, for no row has the column.
-- compatible: yes, the previous release writes none of the columns and knows none of the states.
alter table :schema.operation
  -- Number of ownerships so far. Null for records of transactions. Unfinished rows never expire (expires_at infinity).
  add column fence bigint,
  -- Database time until which the owner can be silent; null when nobody holds it.
  add column lease_until timestamptz,
  -- When a worker may take it: the end of the lease, or of a backoff; null when no worker will. Always null for bare
  -- closures.
  add column due_at timestamptz,
  -- Claims whose end nobody has reported (I15), and attempts that reported a failure.
  add column claims smallint,
  add column failures smallint,
  -- The defined kind, the version of the code that started it and what its handler gets; null kind = a closure.
  add column kind text,
  add column kind_version integer,
  add column payload text,
  -- Why it waits or is parked.
  add column reason text,
  -- true: a person has proven that it was never applied.
  add column not_applied boolean,
  -- true: one of its effects was resolved while an owner worked. It is then due again when it is given back as unknown:
  -- the owner may have looked before the proof came.
  add column resolved boolean;

-- Each kind and version has a row of its own to wait in: jobs that no worker of this release knows are in nobody's way.
create index operation_due on :schema.operation (kind, kind_version, due_at) where due_at is not null;
-- What is unfinished, by state and oldest first, for people. Only unfinished rows never expire.
create index operation_unfinished on :schema.operation (state, created_at, id) where expires_at = 'infinity';

create type :schema.step_type as enum ('transaction', 'effect', 'memo');
create type :schema.step_state as enum ('intended', 'done', 'refused', 'unknown');

create table :schema.step (
  -- Steps go with their operation, so a key that is used again never meets the steps of its former life.
  operation_id uuid not null references :schema.operation (id) on delete cascade,
  name text not null,
  -- Place in the order in which the handler started its steps.
  position integer not null,
  type :schema.step_type not null,
  state :schema.step_state not null,
  result_version smallint not null,
  -- JSON text; null when there is none.
  result text,
  -- Fence of the owner that wrote it last.
  fence bigint not null,
  created_at timestamptz not null default pg_catalog.clock_timestamp(),
  -- From here on effects only. The request is sent as it stands here on every attempt (I10).
  delivery text,
  request text,
  request_hash text,
  provider_key text,
  key_generation smallint,
  attempts smallint,
  looks smallint,
  first_attempt_at timestamptz,
  last_attempt_at timestamptz,
  unknown_since timestamptz,
  constraint step_pkey primary key (operation_id, name)
);
-- A webhook names an effect by the key that the provider was given.
create index step_provider_key on :schema.step (provider_key) where provider_key is not null;

-- Takeovers, failures, hand-backs, parking, acts of people: what happened to an operation, for whoever has to judge it.
-- The first claim and the completion are in the operation's row and write nothing here.
create table :schema.job_event (
  operation_id uuid not null references :schema.operation (id) on delete cascade,
  seq bigint generated always as identity,
  at timestamptz not null default pg_catalog.clock_timestamp(),
  fence bigint not null,
  event text not null,
  detail text,
  constraint job_event_pkey primary key (operation_id, seq)
);

-- Statements over many operations are functions for the sake of their settings. A connection keeps a plan for as long as the
-- table is not analyzed: one that was made while the table was small would read all of it, each time, when it has grown.
-- Here the planner has no choice but to look each row up by its id.
-- Columns can be shorter than p_id: the rest has no value, or in those that always have one that of the first row.

-- Completes what is owned by live leases and locked by nobody. Answers the positions, from 1, of what it completed; null
-- when that is nothing.
create function :schema.job_complete(
  p_id uuid[], p_token uuid[], p_fence bigint[], p_state :schema.operation_state[], p_outcome_version smallint[],
  p_outcome text[], p_retention_ms bigint[], p_response bytea[], p_response_ms bigint[]
) returns text language plpgsql volatile
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $job_complete$
declare
  v_done text;
begin
  with mine as materialized (
    select u.* from rows from (
      pg_catalog.unnest(p_id), pg_catalog.unnest(p_token), pg_catalog.unnest(p_fence), pg_catalog.unnest(p_state),
      pg_catalog.unnest(p_outcome_version), pg_catalog.unnest(p_outcome), pg_catalog.unnest(p_retention_ms),
      pg_catalog.unnest(p_response), pg_catalog.unnest(p_response_ms)
    ) with ordinality as u(id, token, fence, state, outcome_version, outcome, retention_ms, response, response_ms, n)
    join :schema.operation o on o.id = u.id and o.token = u.token and o.fence = coalesce(u.fence, p_fence[1])
      and o.state = 'processing' and o.lease_until > pg_catalog.clock_timestamp()
    for no key update of o skip locked
  ), done as (
    update :schema.operation o set lease_until = null, due_at = null, payload = null, reason = null, resolved = null,
        expires_at = pg_catalog.clock_timestamp()
          + coalesce(u.retention_ms, p_retention_ms[1]) * interval '1 millisecond',
        state = coalesce(u.state, p_state[1]),
        outcome_version = coalesce(u.outcome_version, p_outcome_version[1]), outcome = u.outcome, response = u.response,
        response_expires_at = pg_catalog.clock_timestamp() + u.response_ms * interval '1 millisecond'
      from mine u where o.id = u.id
      returning u.n
  )
  select pg_catalog.string_agg(n::text, ',') into v_done from done;
  return v_done;
end
$job_complete$;

-- Renews leases that are live and whose rows nobody has locked. Answers as job_complete does.
create function :schema.job_renew(
  p_id uuid[], p_token uuid[], p_fence bigint[], p_lease_ms bigint[]
) returns text language plpgsql volatile
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $job_renew$
declare
  v_done text;
begin
  with mine as materialized (
    select u.* from rows from (
      pg_catalog.unnest(p_id), pg_catalog.unnest(p_token), pg_catalog.unnest(p_fence), pg_catalog.unnest(p_lease_ms)
    ) with ordinality as u(id, token, fence, lease_ms, n)
    join :schema.operation o on o.id = u.id and o.token = u.token and o.fence = u.fence and o.state = 'processing'
      and o.lease_until > pg_catalog.clock_timestamp()
    for no key update of o skip locked
  ), done as (
    update :schema.operation o set lease_until = pg_catalog.clock_timestamp() + u.lease_ms * interval '1 millisecond',
        due_at = case when o.kind is not null then pg_catalog.clock_timestamp() + u.lease_ms * interval '1 millisecond' end
      from mine u where o.id = u.id
      returning u.n
  )
  select pg_catalog.string_agg(n::text, ',') into v_done from done;
  return v_done;
end
$job_renew$;

-- Stores steps of operations that are owned by live leases and locked by nobody. Answers one letter for each: s = stored,
-- e = a step of this name is there, f = not owned, or locked.
create function :schema.job_write_steps(
  p_id uuid[], p_token uuid[], p_fence bigint[], p_name text[], p_position integer[], p_type :schema.step_type[],
  p_state :schema.step_state[], p_result_version smallint[], p_result text[], p_delivery text[], p_request text[],
  p_request_hash text[], p_provider_key text[]
) returns text language plpgsql volatile
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $job_write_steps$
declare
  v_flags text;
begin
  with given as materialized (
    select u.id, u.token, coalesce(u.fence, p_fence[1]) as fence, coalesce(u.name, p_name[1]) as name,
      coalesce(u.position, p_position[1]) as position, coalesce(u.type, p_type[1]) as type,
      coalesce(u.state, p_state[1]) as state, coalesce(u.result_version, p_result_version[1]) as result_version,
      u.result, u.delivery, u.request, u.request_hash, u.provider_key, u.n
    from rows from (
      pg_catalog.unnest(p_id), pg_catalog.unnest(p_token), pg_catalog.unnest(p_fence), pg_catalog.unnest(p_name),
      pg_catalog.unnest(p_position), pg_catalog.unnest(p_type), pg_catalog.unnest(p_state),
      pg_catalog.unnest(p_result_version), pg_catalog.unnest(p_result), pg_catalog.unnest(p_delivery),
      pg_catalog.unnest(p_request), pg_catalog.unnest(p_request_hash), pg_catalog.unnest(p_provider_key)
    ) with ordinality as u(id, token, fence, name, position, type, state, result_version, result, delivery, request,
      request_hash, provider_key, n)
  ), mine as materialized (
    select u.n from given u join :schema.operation o on o.id = u.id and o.token = u.token and o.fence = u.fence
      and o.state = 'processing' and o.lease_until > pg_catalog.clock_timestamp()
    for share of o skip locked
  ), stored as (
    insert into :schema.step (operation_id, fence, name, position, type, state, result_version, result, delivery, request,
      request_hash, provider_key, key_generation, attempts, looks, first_attempt_at, last_attempt_at, unknown_since)
    select u.id, u.fence, u.name, u.position, u.type, u.state, u.result_version, u.result, u.delivery, u.request,
      u.request_hash, u.provider_key, case when u.delivery is not null then 0 end,
      case when u.delivery is not null then 1 end, case when u.delivery is not null then 0 end,
      case when u.delivery is not null then pg_catalog.clock_timestamp() end,
      case when u.delivery is not null then pg_catalog.clock_timestamp() end,
      case when u.state = 'unknown' then pg_catalog.clock_timestamp() end
    from given u join mine m on m.n = u.n order by u.n
    on conflict (operation_id, name) do nothing
    returning operation_id, name
  )
  select case when (select count(*) from stored) = pg_catalog.cardinality(p_id)
      then pg_catalog.repeat('s', pg_catalog.cardinality(p_id))
      else (select pg_catalog.string_agg(
          case when s.name is not null then 's' when m.n is null then 'f' else 'e' end, '' order by g.n)
        from given g left join mine m on m.n = g.n
          left join stored s on s.operation_id = g.id and s.name = g.name) end
    into v_flags;
  return v_flags;
end
$job_write_steps$;

-- Opens a step's transaction for the owner of a live lease, and returns the transaction's id. It takes no lock: the
-- heartbeat goes on while the step works. The statement that stores the step compares the fence again and holds the
-- operation's row until COMMIT.
--   EO008  the lease is not ours any more          EO005, EO007  as in open
create function :schema.step_gate(
  p_id uuid, p_token uuid, p_fence bigint, p_timeout_ms text
) returns text language plpgsql volatile as $step_gate$
declare
  v_xid text := :schema.open(p_timeout_ms);
begin
  perform from :schema.operation
    where id = p_id and token = p_token and fence = p_fence and state = 'processing'
      and lease_until > pg_catalog.clock_timestamp();
  if not found then
    raise exception 'lease lost' using errcode = 'EO008';
  end if;
  return v_xid;
end
$step_gate$;

-- Seals a step's transaction, right before the step is stored: the lease must still be ours, and the row is kept from
-- takeovers until COMMIT. Waits for nothing but single statements of ours (a renewal, a release), which wait for nobody.
-- p_xid null: nothing ran in it so far, so nobody can have ended it.
--   EO004  it is not the transaction that opened          EO008  the lease is not ours any more
create function :schema.step_seal(
  p_id uuid, p_token uuid, p_fence bigint, p_xid text
) returns void language plpgsql volatile as $step_seal$
begin
  if p_xid is not null and pg_catalog.pg_current_xact_id_if_assigned() is distinct from p_xid::xid8 then
    raise exception 'transaction ended' using errcode = 'EO004';
  end if;
  perform from :schema.operation
    where id = p_id and token = p_token and fence = p_fence and state = 'processing'
      and lease_until > pg_catalog.clock_timestamp()
    for share;
  if not found then
    raise exception 'lease lost' using errcode = 'EO008';
  end if;
end
$step_seal$;

-- Stores a job in the caller's own transaction. The lock is the one of the key, which every kind of attempt takes or asks
-- for: somebody who has it may or may not commit, so nobody knows yet whether the job exists (B27).
-- stored, exists, busy, ended (it is not the transaction that asked for p_xid).
create function :schema.enqueue(
  p_xid text, p_id uuid, p_key_lock bigint, p_token uuid, p_fingerprint_mode :schema.operation_fingerprint_mode, p_fingerprint_key text,
  p_fingerprint bytea, p_scope text, p_kind text, p_version integer, p_payload text, p_delay_ms bigint
) returns text language plpgsql volatile as $enqueue$
declare
  v_expires_at timestamptz;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  if pg_catalog.pg_current_xact_id_if_assigned() is distinct from p_xid::xid8 then
    return 'ended';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then
    return 'busy';
  end if;
  select expires_at into v_expires_at from :schema.operation where id = p_id;
  if found then
    if v_expires_at > pg_catalog.clock_timestamp() then
      return 'exists';
    end if;
    delete from :schema.operation where id = p_id and expires_at <= pg_catalog.clock_timestamp();
  end if;
  insert into :schema.operation (id, token, state, fingerprint_mode, fingerprint_key, fingerprint, scope,
    outcome_version, expires_at, fence, due_at, claims, failures, kind, kind_version, payload)
  values (p_id, p_token, 'processing', p_fingerprint_mode, p_fingerprint_key, p_fingerprint,
    p_scope, 0, 'infinity', 0,
    case when p_kind is not null then pg_catalog.clock_timestamp() + p_delay_ms * interval '1 millisecond' end,
    0, 0, p_kind, p_version, p_payload)
  on conflict (id) do nothing;
  return case when found then 'stored' else 'exists' end;
end
$enqueue$;

-- Attaches a proven result to an effect, named by operation and name, or by the key that its provider was given.
-- p_state: done, refused, notApplied. Answers resolved, decided, notFound, busy.
-- The operation's row is locked first, as by every statement that changes a step: the owner's own change waits, and then
-- finds the effect decided.
create function :schema.effect_resolve(
  p_id uuid, p_name text, p_provider_key text, p_state text, p_result text, p_result_version int,
  p_actor text, p_reason text
) returns text language plpgsql volatile as $effect_resolve$
declare
  v_id uuid := p_id;
  v_name text := p_name;
  v_job :schema.operation;
  v_step :schema.step;
  v_held boolean;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  if p_provider_key is not null then
    select operation_id, name into v_id, v_name from :schema.step
      where provider_key = p_provider_key order by created_at desc limit 1;
  end if;
  select * into v_job from :schema.operation where id = v_id for no key update;
  if not found then
    return 'notFound';
  end if;
  select * into v_step from :schema.step
    where operation_id = v_id and name = v_name and delivery is not null for update;
  if not found then
    return 'notFound';
  end if;
  if v_step.state in ('done', 'refused') or v_job.state in ('succeeded', 'rejected') then
    return 'decided';
  end if;
  v_held := coalesce(v_job.lease_until > pg_catalog.clock_timestamp(), false);
  if p_state = 'notApplied' then
    if v_held then
      return 'busy';
    end if;
    update :schema.step set state = 'intended', looks = 32767, unknown_since = null
      where operation_id = v_id and name = v_name;
  else
    update :schema.step set state = p_state:: :schema.step_state, result = p_result,
        result_version = p_result_version, unknown_since = null
      where operation_id = v_id and name = v_name;
  end if;
  if v_held then
    update :schema.operation set resolved = true where id = v_id;
  elsif v_job.state <> 'parked' then
    update :schema.operation set state = 'processing', lease_until = null,
        due_at = case when kind is not null then pg_catalog.clock_timestamp() end
      where id = v_id;
  end if;
  insert into :schema.job_event (operation_id, fence, event, detail)
    values (v_id, v_job.fence, 'resolved', v_name || ': ' || p_state);
  insert into :schema.audit (actor, act, subject, reason, detail)
    values (p_actor, 'effect.resolve', v_id || '/' || v_name, p_reason, pg_catalog.json_build_object(
      'proof', p_state, 'effect', v_step.state, 'attempts', v_step.attempts, 'operation', v_job.state)::text);
  return 'resolved';
end
$effect_resolve$;

-- Attaches an outcome to an unfinished operation that nobody holds. Answers resolved, decided, notFound, busy.
create function :schema.job_resolve(
  p_id uuid, p_token uuid, p_state :schema.operation_state, p_not_applied boolean, p_outcome_version int, p_outcome text,
  p_retention_ms bigint, p_response bytea, p_response_ms bigint, p_actor text, p_reason text
) returns text language plpgsql volatile as $job_resolve$
declare
  v_job :schema.operation;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  select * into v_job from :schema.operation
    where id = p_id and expires_at > pg_catalog.clock_timestamp() for no key update;
  if not found then
    return 'notFound';
  end if;
  if v_job.state in ('succeeded', 'rejected') then
    return 'decided';
  end if;
  if v_job.lease_until > pg_catalog.clock_timestamp() then
    return 'busy';
  end if;
  update :schema.operation set state = p_state, token = p_token, not_applied = p_not_applied,
      outcome_version = p_outcome_version, outcome = p_outcome, response = p_response,
      response_expires_at = pg_catalog.clock_timestamp() + p_response_ms * interval '1 millisecond',
      expires_at = pg_catalog.clock_timestamp() + p_retention_ms * interval '1 millisecond',
      lease_until = null, due_at = null, payload = null, reason = null, resolved = null
    where id = p_id;
  insert into :schema.job_event (operation_id, fence, event, detail)
    values (p_id, v_job.fence, 'resolved', case when p_not_applied then 'notApplied' else p_state::text end);
  insert into :schema.audit (actor, act, subject, reason, detail)
    values (p_actor, 'operation.resolve', p_id::text, p_reason, pg_catalog.json_build_object(
      'outcome', p_state, 'notApplied', coalesce(p_not_applied, false), 'operation', v_job.state,
      'claims', v_job.claims, 'failures', v_job.failures, 'reason', v_job.reason)::text);
  return 'resolved';
end
$job_resolve$;

-- Makes an unfinished operation that nobody holds due, with nothing counted. Answers redriven, notFound, busy.
create function :schema.job_redrive(
  p_id uuid, p_actor text, p_reason text
) returns text language plpgsql volatile as $job_redrive$
declare
  v_job :schema.operation;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  select * into v_job from :schema.operation
    where id = p_id and state in ('processing', 'unknown', 'parked') for no key update;
  if not found then
    return 'notFound';
  end if;
  if v_job.lease_until > pg_catalog.clock_timestamp() then
    return 'busy';
  end if;
  update :schema.operation set state = 'processing', claims = 0, failures = 0, lease_until = null,
      due_at = case when kind is not null then pg_catalog.clock_timestamp() end
    where id = p_id;
  insert into :schema.job_event (operation_id, fence, event, detail) values (p_id, v_job.fence, 'redriven', p_reason);
  insert into :schema.audit (actor, act, subject, reason, detail)
    values (p_actor, 'operation.redrive', p_id::text, p_reason, pg_catalog.json_build_object(
      'operation', v_job.state, 'claims', v_job.claims, 'failures', v_job.failures, 'reason', v_job.reason)::text);
  return 'redriven';
end
$job_redrive$;

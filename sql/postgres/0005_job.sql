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
  -- closures, which lets their rows be updated without touching an index.
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
  add column not_applied boolean;

create index operation_due on :schema.operation (due_at) where due_at is not null;

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

-- 0006_ledger.sql (postgres)
-- why:        money and counters are movements that are only ever added (R20, R21): balances are their sums, undoing is
--             a further entry, and what was believed at an instant can be asked for ever after.
-- lock:       none on existing objects.
-- compatible: yes, nothing existed before.

create table :schema.ledger_entry (
  seq bigint generated always as identity,
  -- The caller's name of what happened; posting it again changes nothing.
  id text collate "C" not null,
  -- SHA-256 over the content, so that another content under the same id is told.
  fingerprint bytea not null,
  -- seq of the entry that this one undoes.
  reverses bigint,
  -- How many movements it has; with it none can be added later.
  lines integer not null,
  note text,
  -- Set by the trigger below, whatever is given.
  recorded_at timestamptz not null,
  constraint ledger_entry_pkey primary key (seq),
  constraint ledger_entry_id unique (id),
  constraint ledger_entry_reversed foreign key (reverses) references :schema.ledger_entry (seq),
  constraint ledger_entry_named check (pg_catalog.octet_length(id) between 1 and 255 and lines > 0)
) with (autovacuum_vacuum_insert_scale_factor = 0.02);
-- An entry is undone at most once, whoever tries at the same time.
create unique index ledger_entry_reverses on :schema.ledger_entry (reverses) where reverses is not null;
create index ledger_entry_recorded on :schema.ledger_entry (recorded_at);

create table :schema.ledger_movement (
  entry bigint not null,
  line integer not null,
  account text collate "C" not null,
  currency text collate "C" not null,
  -- Minor units. The lowest value has no counterpart, so it could not be reversed.
  amount bigint not null,
  -- That of the entry: a balance as of an instant reads one index.
  recorded_at timestamptz not null,
  constraint ledger_movement_pkey primary key (entry, line),
  constraint ledger_movement_entry foreign key (entry) references :schema.ledger_entry (seq),
  constraint ledger_movement_moves check (amount <> 0 and amount > (-9223372036854775808)),
  constraint ledger_movement_named check (
    pg_catalog.octet_length(account) between 1 and 255 and pg_catalog.octet_length(currency) between 1 and 32
  )
) with (autovacuum_vacuum_insert_scale_factor = 0.02);
-- Autovacuum after few inserts keeps its pages marked as visible to all, so that sums read the index alone.
create index ledger_movement_sum on :schema.ledger_movement (account, currency, recorded_at) include (amount);

-- Class of the advisory locks by which transactions that post are seen from outside; the second key is ledger_second().
create function :schema.ledger_lock_class() returns integer language sql immutable parallel safe as $class$
  select pg_catalog.hashtext('effectively-once ledger :schema') & 2147483647
$class$;

-- Seconds since September 2020, within what a key can hold.
create function :schema.ledger_second(p_at timestamptz) returns integer language sql immutable parallel safe as $second$
  select least(greatest(pg_catalog.floor(extract(epoch from p_at)) - 1600000000, 0), 2147483647)::integer
$second$;

-- The instant of recording. Before it is taken, the transaction shows by a shared lock that it posts since this second; the
-- lock is free when the transaction is over and its rows are seen. Who asks for an instant in the past looks for such locks
-- first (ledger_open), so an entry that commits late never changes an answer that was given.
-- A clock that was set back, as after a failover, does not bring entries between older ones: none is recorded before the
-- newest that is seen.
create function :schema.ledger_record() returns trigger language plpgsql volatile as $record$
declare
  v_newest timestamptz;
begin
  perform pg_catalog.pg_advisory_xact_lock_shared(
    :schema.ledger_lock_class(), :schema.ledger_second(pg_catalog.clock_timestamp())
  );
  select pg_catalog.max(recorded_at) into v_newest from :schema.ledger_entry;
  new.recorded_at := greatest(pg_catalog.clock_timestamp(), v_newest);
  return new;
end
$record$;
create trigger ledger_entry_record before insert on :schema.ledger_entry
  for each row execute function :schema.ledger_record();

-- Whether an answer as of an instant can still change: how many transactions that began to post up to that second are
-- open, prepared ones among them. EO005: a standby does not see the locks of its primary. EO009: not in the past.
create function :schema.ledger_open(p_at timestamptz) returns integer language plpgsql volatile as $open$
begin
  if pg_catalog.pg_is_in_recovery() then
    raise exception 'standby' using errcode = 'EO005';
  end if;
  -- Not now either: an entry could be recorded in the same microsecond.
  if p_at >= pg_catalog.clock_timestamp() then
    raise exception 'not in the past' using errcode = 'EO009';
  end if;
  return (
    select pg_catalog.count(*) from pg_catalog.pg_locks as l
      where l.locktype = 'advisory' and l.objsubid = 2
        and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database())
        and l.classid::bigint = :schema.ledger_lock_class()
        and l.objid::bigint <= :schema.ledger_second(p_at)
  );
end
$open$;

-- Every entry is balanced and whole when its statement ends, whoever inserts: per currency the movements sum up to zero,
-- there are as many as the entry says, and their instant is the entry's. EO010.
create function :schema.ledger_balanced() returns trigger language plpgsql volatile as $balanced$
begin
  if exists (
    select from :schema.ledger_movement as m
      where m.entry in (select a.entry from added as a) group by m.entry, m.currency having pg_catalog.sum(m.amount) <> 0
  ) or exists (
    select from (
      select m.entry, pg_catalog.count(*) as lines, pg_catalog.min(m.recorded_at) as first_at, pg_catalog.max(m.recorded_at) as last_at
        from :schema.ledger_movement as m where m.entry in (select a.entry from added as a) group by m.entry
    ) as m join :schema.ledger_entry as e on e.seq = m.entry
      where e.lines <> m.lines or e.recorded_at <> m.first_at or e.recorded_at <> m.last_at
  ) then
    raise exception 'the movements of a ledger entry do not sum up to zero, or are not those of the entry'
      using errcode = 'EO010';
  end if;
  return null;
end
$balanced$;
create trigger ledger_movement_balanced after insert on :schema.ledger_movement
  referencing new table as added for each statement execute function :schema.ledger_balanced();

-- Nor is there an entry without movements when its transaction ends.
create function :schema.ledger_moved() returns trigger language plpgsql volatile as $moved$
begin
  if not exists (select from :schema.ledger_movement as m where m.entry = new.seq) then
    raise exception 'a ledger entry has no movements' using errcode = 'EO010';
  end if;
  return null;
end
$moved$;
create constraint trigger ledger_entry_moved after insert on :schema.ledger_entry
  deferrable initially deferred for each row execute function :schema.ledger_moved();

-- Nothing is changed or removed, by nobody (EO011). Always: not even in sessions that skip triggers for replication.
create function :schema.ledger_refuse() returns trigger language plpgsql as $refuse$
begin
  raise exception 'the ledger is append-only: % of % is refused, post a reversal', tg_op, tg_table_name
    using errcode = 'EO011';
end
$refuse$;
create trigger ledger_entry_keep before update or delete or truncate on :schema.ledger_entry
  for each statement execute function :schema.ledger_refuse();
create trigger ledger_movement_keep before update or delete or truncate on :schema.ledger_movement
  for each statement execute function :schema.ledger_refuse();
alter table :schema.ledger_entry enable always trigger ledger_entry_keep;
alter table :schema.ledger_movement enable always trigger ledger_movement_keep;

-- Nor may anybody but the owner, whom no privilege binds, whatever default privileges this schema has.
do $revoke$
declare
  v_grant record;
begin
  for v_grant in
    select distinct c.oid::regclass::text as name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as who
      from pg_catalog.pg_class as c, pg_catalog.aclexplode(c.relacl) as a
      where c.oid in (':schema.ledger_entry'::regclass, ':schema.ledger_movement'::regclass) and a.grantee <> c.relowner
  loop
    execute 'revoke update, delete, truncate on ' || v_grant.name || ' from ' || v_grant.who;
  end loop;
end
$revoke$;

-- How long posting waits for another transaction that posts the same id, or undoes the same entry, unless the session has
-- a limit of its own. Returns what to set afterwards; null = nothing.
create function :schema.ledger_limit() returns text language plpgsql volatile as $limit$
begin
  if pg_catalog.current_setting('lock_timeout') <> '0' then
    return null;
  end if;
  perform pg_catalog.set_config('lock_timeout', '10s', true);
  return '0';
end
$limit$;

create function :schema.ledger_instant(p_at timestamptz) returns text language sql stable as $instant$
  select pg_catalog.to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$instant$;

-- Posts an entry once. kind: posted; existing (the same was posted before); mismatch (the id stands for another content).
create function :schema.ledger_post(
  p_id text, p_fingerprint bytea, p_note text, p_accounts text[], p_currencies text[], p_amounts bigint[],
  out r_kind text, out r_at text
) language plpgsql volatile as $post$
declare
  v_limit text := :schema.ledger_limit();
  v_seq bigint;
  v_at timestamptz;
begin
  insert into :schema.ledger_entry (id, fingerprint, lines, note, recorded_at)
    values (p_id, p_fingerprint, pg_catalog.cardinality(p_accounts), p_note, pg_catalog.clock_timestamp())
    on conflict do nothing returning seq, recorded_at into v_seq, v_at;
  if found then
    insert into :schema.ledger_movement (entry, line, account, currency, amount, recorded_at)
      select v_seq, u.line, u.account, u.currency, u.amount, v_at
        from rows from (pg_catalog.unnest(p_accounts), pg_catalog.unnest(p_currencies), pg_catalog.unnest(p_amounts))
          with ordinality as u (account, currency, amount, line);
    r_kind := 'posted';
  else
    select case when e.fingerprint = p_fingerprint then 'existing' else 'mismatch' end, e.recorded_at
      into r_kind, v_at from :schema.ledger_entry as e where e.id = p_id;
  end if;
  r_at := :schema.ledger_instant(v_at);
  if v_limit is not null then
    perform pg_catalog.set_config('lock_timeout', v_limit, true);
  end if;
end
$post$;

-- Posts the counterpart of an entry once. kind: as above, and missing (there is no such entry), reversed (another entry
-- has undone it, r_by).
create function :schema.ledger_reverse(
  p_id text, p_fingerprint bytea, p_note text, p_reversed text, out r_kind text, out r_at text, out r_by text
) language plpgsql volatile as $reverse$
declare
  v_limit text := :schema.ledger_limit();
  v_original bigint;
  v_lines integer;
  v_seq bigint;
  v_at timestamptz;
begin
  select e.seq, e.lines into v_original, v_lines from :schema.ledger_entry as e where e.id = p_reversed;
  if found then
    insert into :schema.ledger_entry (id, fingerprint, reverses, lines, note, recorded_at)
      values (p_id, p_fingerprint, v_original, v_lines, p_note, pg_catalog.clock_timestamp())
      on conflict do nothing returning seq, recorded_at into v_seq, v_at;
    if found then
      insert into :schema.ledger_movement (entry, line, account, currency, amount, recorded_at)
        select v_seq, m.line, m.account, m.currency, -m.amount, v_at
          from :schema.ledger_movement as m where m.entry = v_original;
      r_kind := 'posted';
    end if;
  end if;
  if r_kind is null then
    select case when e.fingerprint = p_fingerprint then 'existing' else 'mismatch' end, e.recorded_at
      into r_kind, v_at from :schema.ledger_entry as e where e.id = p_id;
  end if;
  if r_kind is null and v_original is null then
    r_kind := 'missing';
  elsif r_kind is null then
    select 'reversed', e.recorded_at, e.id into r_kind, v_at, r_by
      from :schema.ledger_entry as e where e.reverses = v_original;
  end if;
  r_at := :schema.ledger_instant(v_at);
  if v_limit is not null then
    perform pg_catalog.set_config('lock_timeout', v_limit, true);
  end if;
end
$reverse$;

-- Keeps other transactions from these accounts until this one ends, as far as they ask too: for checks of a balance that
-- a movement depends on. In the order of their keys, so that two such transactions cannot wait for each other.
create function :schema.ledger_hold(p_accounts text[]) returns void language plpgsql volatile as $hold$
declare
  v_limit text := :schema.ledger_limit();
  v_key bigint;
begin
  for v_key in
    select distinct pg_catalog.hashtextextended('effectively-once ledger :schema ' || a.account, 0) as key
      from pg_catalog.unnest(p_accounts) as a (account) order by key
  loop
    perform pg_catalog.pg_advisory_xact_lock(v_key);
  end loop;
  if v_limit is not null then
    perform pg_catalog.set_config('lock_timeout', v_limit, true);
  end if;
end
$hold$;

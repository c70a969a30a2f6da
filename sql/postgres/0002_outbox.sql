-- 0002_outbox.sql (postgres)
-- why:        messages commit with the work that made them (I6), and a row exists only while it is not settled:
--             what is pending is the table itself, so nothing can be skipped by a position (I7).
-- lock:       none on existing objects.
-- compatible: yes, nothing existed before.

-- Without check constraints: the server reads them anew for each INSERT, which is in the path of every work. Rows that
-- cannot be read go to the quarantine.
create table :schema.outbox (
  -- Written with the row; the owner of the lane publishes in seq order (I8). From 0.
  lane smallint not null,
  -- Taken when the row is inserted, after the locks of the work: order of one key's writers is order of seq.
  -- Cache must stay 1, else a session draws numbers in advance and the order is lost.
  seq bigint generated always as identity (cache 1),
  -- The message's id on every send (R23).
  id uuid not null,
  topic text not null,
  ordering_key text,
  -- Exactly what goes on the wire; base64 when it is not text. Never jsonb, which rewrites what it is given.
  payload text not null,
  -- text, base64
  encoding text not null,
  content_type text not null,
  -- JSON object of strings.
  headers text not null,
  created_at timestamptz not null default pg_catalog.clock_timestamp(),
  constraint outbox_pkey primary key (lane, seq)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Who may publish a lane's rows, and until when. One row a lane, rewritten with every settled batch.
create table :schema.outbox_lane (
  lane smallint not null check (lane >= 0),
  -- Random id of the relay that holds the lane; null = handed back.
  owner uuid,
  -- Raised by every acquisition; compared in every statement that changes something for the lane.
  fence bigint not null default 0,
  lease_until timestamptz,
  -- Owners in a row that ended without handing the lane back and without settling anything.
  deaths integer not null default 0,
  -- The row that is published alone because owners died, and when it was claimed (SC38).
  alone_seq bigint,
  alone_fence bigint,
  alone_claims timestamptz[] not null default '{}',
  -- A relay without a lane asks the owner of many for this one.
  wanted_by uuid,
  wanted_until timestamptz,
  -- The cluster whose rows these are: a copy of the database must not publish the original's messages.
  system_identifier bigint,
  constraint outbox_lane_pkey primary key (lane)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

insert into :schema.outbox_lane (lane) values (0);

-- Rows that cannot be published now: a failing message (next_at says when it is tried again), and behind it the
-- later rows of its ordering key (next_at null). seq is kept, so that they return to their place (SC29).
create table :schema.outbox_parked (
  lane smallint not null,
  seq bigint not null,
  id uuid not null,
  topic text not null,
  ordering_key text,
  payload text not null,
  encoding text not null,
  content_type text not null,
  headers text not null,
  created_at timestamptz not null,
  parked_at timestamptz not null default pg_catalog.clock_timestamp(),
  attempts integer not null default 0,
  next_at timestamptz,
  -- returned, refused, unconfirmed, behind (waits for an earlier row of its key), redriven.
  reason text not null,
  last_error text,
  constraint outbox_parked_pkey primary key (lane, seq),
  constraint outbox_parked_reason check (reason in ('returned', 'refused', 'unconfirmed', 'behind', 'redriven'))
);
create index outbox_parked_due on :schema.outbox_parked (lane, next_at) where next_at is not null;
create index outbox_parked_key on :schema.outbox_parked (lane, ordering_key, seq) where ordering_key is not null;

-- Rows that a person must look at. Never removed by age.
create table :schema.outbox_quarantine (
  lane smallint not null,
  seq bigint not null,
  id uuid not null,
  topic text not null,
  ordering_key text,
  payload text not null,
  encoding text not null,
  content_type text not null,
  headers text not null,
  created_at timestamptz not null,
  quarantined_at timestamptz not null default pg_catalog.clock_timestamp(),
  attempts integer not null default 0,
  -- invalid (the broker can never take it), undecodable (this row cannot be read), poison (it kills its relay).
  reason text not null,
  last_error text,
  -- JSON: what happened before (claims, attempts, errors), for the person who looks.
  history text not null default '{}',
  -- Later rows of its key wait until it is redriven or discarded (stopKeyOnQuarantine).
  stops_key boolean not null default false,
  constraint outbox_quarantine_pkey primary key (lane, seq),
  constraint outbox_quarantine_reason check (reason in ('invalid', 'undecodable', 'poison'))
);
create index outbox_quarantine_id on :schema.outbox_quarantine (id);
create index outbox_quarantine_age on :schema.outbox_quarantine (quarantined_at);
create index outbox_quarantine_stops on :schema.outbox_quarantine (lane, ordering_key) where stops_key;

-- Published messages, kept only when the relay is told to. No unique index: it is written in the hot path.
create table :schema.outbox_history (
  lane smallint not null,
  seq bigint not null,
  id uuid not null,
  topic text not null,
  ordering_key text,
  payload text not null,
  encoding text not null,
  content_type text not null,
  headers text not null,
  created_at timestamptz not null,
  published_at timestamptz not null default pg_catalog.clock_timestamp()
);
create index outbox_history_published on :schema.outbox_history using brin (published_at);

-- Acts of operators, written in the transaction of the act (I16).
create table :schema.audit (
  seq bigint generated always as identity,
  at timestamptz not null default pg_catalog.clock_timestamp(),
  actor text not null,
  act text not null,
  subject text not null,
  reason text not null,
  -- JSON: what was there before.
  detail text not null default '{}',
  constraint audit_pkey primary key (seq)
);

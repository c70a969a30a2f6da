-- 0007_progress.sql (postgres)
-- why:        how far a schedule or a stream has come has to be stored in the transaction that goes on from there (R37).
-- lock:       none on existing objects.
-- compatible: yes, nothing existed before.

create table :schema.progress (
  -- The first 16 bytes of SHA-256 over scope and name, as for operations.
  id uuid not null,
  scope text not null,
  name text not null,
  -- How often it was advanced: the next advance names it, so nobody goes on from an old position.
  number bigint not null,
  -- JSON text.
  position text not null,
  advanced_at timestamptz not null default pg_catalog.clock_timestamp(),
  constraint progress_pkey primary key (id),
  constraint progress_numbered check (number > 0)
);

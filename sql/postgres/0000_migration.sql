-- 0000_migration.sql (postgres)
-- why:        remembers which of these files ran here, so that each runs once (SC58).
-- lock:       none that others could wait for; the table is new.
-- compatible: yes, it is the first file.
create table :schema.migration (
  version integer primary key check (version >= 0),
  name text not null,
  checksum text not null,
  breaking boolean not null,
  applied_at timestamptz not null default clock_timestamp()
);

comment on table :schema.migration is 'Files of effectively-once applied to this schema. A release that does not know a breaking one refuses the schema.';

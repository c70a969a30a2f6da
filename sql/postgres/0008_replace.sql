-- 0008_replace.sql (postgres)
-- why:        a job that waits can be replaced by a newer one under its key, and a tick of a schedule can end the work of
--             the tick before it (SC52). Both are decided behind the operation's row, so that an owner comes before or is
--             refused.
-- lock:       none on existing objects; functions only.
-- compatible: yes, nothing existed before.

-- Gives a job that nobody has claimed yet new content. p_delay_ms null: it stays due when it was. The lock of the key is
-- taken as by enqueue. Answers replaced, started (it was claimed before, is finished, or is another kind's), missing, busy.
create function :schema.job_replace(
  p_id uuid, p_key_lock bigint, p_token uuid, p_fingerprint_mode :schema.operation_fingerprint_mode,
  p_fingerprint_key text, p_fingerprint bytea, p_kind text, p_version integer, p_payload text, p_delay_ms bigint
) returns text language plpgsql volatile as $job_replace$
declare
  v_job :schema.operation;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(p_key_lock) then
    return 'busy';
  end if;
  select * into v_job from :schema.operation
    where id = p_id and expires_at > pg_catalog.clock_timestamp() for no key update;
  if not found then
    return 'missing';
  end if;
  if v_job.state <> 'processing' or v_job.fence <> 0 or v_job.kind is distinct from p_kind then
    return 'started';
  end if;
  update :schema.operation set token = p_token, fingerprint_mode = p_fingerprint_mode,
      fingerprint_key = p_fingerprint_key, fingerprint = p_fingerprint, kind_version = p_version, payload = p_payload,
      due_at = coalesce(pg_catalog.clock_timestamp() + p_delay_ms * interval '1 millisecond', due_at)
    where id = p_id;
  insert into :schema.job_event (operation_id, fence, event) values (p_id, 0, 'replaced');
  return 'replaced';
end
$job_replace$;

-- Ends an unfinished operation with an outcome, also under the hands of an owner, who is fenced by it. An operation that
-- is parked, or one of whose effects may have happened, is kept: only its proof or a person ends it (I11).
-- Answers ended, kept, decided, missing.
create function :schema.job_end(
  p_id uuid, p_token uuid, p_state :schema.operation_state, p_outcome_version int, p_outcome text,
  p_retention_ms bigint, p_detail text
) returns text language plpgsql volatile as $job_end$
declare
  v_job :schema.operation;
begin
  if pg_catalog.current_setting('transaction_read_only') = 'on' then
    raise exception 'read-only' using errcode = 'EO005';
  end if;
  select * into v_job from :schema.operation
    where id = p_id and expires_at > pg_catalog.clock_timestamp() for no key update;
  if not found then
    return 'missing';
  end if;
  if v_job.state in ('succeeded', 'rejected') then
    return 'decided';
  end if;
  if v_job.state = 'parked' or exists (select from :schema.step where operation_id = p_id
      and (state = 'unknown' or state = 'intended' and looks < 32767)) then
    return 'kept';
  end if;
  update :schema.operation set state = p_state, token = p_token, outcome_version = p_outcome_version,
      outcome = p_outcome, expires_at = pg_catalog.clock_timestamp() + p_retention_ms * interval '1 millisecond',
      lease_until = null, due_at = null, payload = null, reason = null, resolved = null
    where id = p_id;
  insert into :schema.job_event (operation_id, fence, event, detail)
    values (p_id, v_job.fence, 'replaced', pg_catalog.left(p_detail, 500));
  return 'ended';
end
$job_end$;

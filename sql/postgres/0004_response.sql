-- 0004_response.sql (postgres)
-- why:        an HTTP response is kept for a shorter time than its key stays taken (R41): its bytes lie beside the
--             outcome, with a deadline of their own, so that they can be erased while the record stays.
--             One index leads a purge to what is due, be it the answer's deadline or the record's, whichever is next.
-- lock:       ACCESS EXCLUSIVE on operation; nullable columns without default rewrite nothing, the index reads the table.
-- compatible: yes, the previous release neither reads nor writes the columns.
alter table :schema.operation
  -- Envelope of headers and body, encrypted or not; its first byte is the version of its format.
  add column response bytea,
  -- From then on the response is not given out, whether or not it has been erased.
  add column response_expires_at timestamptz;

-- Of an expression and not of both columns: one index to keep at each insert, and an erased answer leaves it. What is
-- unfinished never expires and is not in it (0005_job.sql).
create index operation_expiry on :schema.operation (least(expires_at, response_expires_at)) where expires_at < 'infinity';

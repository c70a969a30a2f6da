-- 0004_response.sql (postgres)
-- why:        an HTTP response is kept for a shorter time than its key stays taken (R41): its bytes lie beside the
--             outcome, with a deadline of their own, so that they can be erased while the record stays.
-- lock:       ACCESS EXCLUSIVE on operation, catalog only; nullable columns without default rewrite nothing.
-- compatible: yes, the previous release neither reads nor writes the columns.
alter table :schema.operation
  -- Envelope of headers and body, encrypted or not; its first byte is the version of its format.
  add column response bytea,
  -- From then on the response is not given out, whether or not it has been erased.
  add column response_expires_at timestamptz;

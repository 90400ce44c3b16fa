-- Rows that are changed soon after they are written leave room for that on their page: the new version then needs no new index
-- entries as long as no indexed column changes (a claim, a counter, a balance). For rows that are written from now on.
ALTER TABLE outbox_events SET (fillfactor = 60);
ALTER TABLE inbox_dedup SET (fillfactor = 60);
ALTER TABLE idempotency_keys SET (fillfactor = 70);
ALTER TABLE projection_checkpoints SET (fillfactor = 20);
ALTER TABLE read_tasks SET (fillfactor = 50);
ALTER TABLE read_attempts SET (fillfactor = 50);
ALTER TABLE read_accounts SET (fillfactor = 50);
ALTER TABLE read_holds SET (fillfactor = 60);

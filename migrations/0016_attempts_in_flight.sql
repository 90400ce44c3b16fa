-- no-transaction
-- Admission counts its slots anew from the attempts that are in flight: some hundreds, among all that ever were.
CREATE INDEX CONCURRENTLY read_attempts_in_flight ON read_attempts (attempt_id)
 WHERE state IN ('SUBMITTING', 'SUBMIT_UNKNOWN', 'RUNNING');

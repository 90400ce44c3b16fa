-- no-transaction
-- The history of a task holds the postings to its account that are about it; without this index it read all of the account's.
CREATE INDEX CONCURRENTLY events_postings_by_task ON events ((body->>'task')) WHERE category = 'account';

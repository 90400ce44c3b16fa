-- Outbox and inbox by day: what is over is dropped as a whole table, not deleted row by row. Why so: docs/decisions/0009-retention-by-partition.md.

-- Large tables are read once below, which may take longer than a statement of the service may.
SET LOCAL statement_timeout = 0;

-- ---- Outbox ----
-- What is unsent has a small table of its own, which claims and marks alone touch; to publish a row moves it to the table of
-- that day. So a day that is dropped can hold nothing that is unsent or parked.
-- safe because: both tables are locked once, here, before anything else; the statements below do not wait a second time.
LOCK TABLE outbox_events, inbox_dedup IN ACCESS EXCLUSIVE MODE;

ALTER TABLE outbox_events RENAME TO outbox_sent_before;
-- safe because: no statement names these constraints but one, by the name that the new table has again.
ALTER TABLE outbox_sent_before RENAME CONSTRAINT outbox_events_pkey TO outbox_sent_before_pkey;
-- safe because: as above; statements know the name as that of the new table's constraint.
ALTER TABLE outbox_sent_before RENAME CONSTRAINT outbox_events_event_id_key TO outbox_sent_before_event_id_key;
ALTER SEQUENCE outbox_events_id_seq RENAME TO outbox_sent_before_id_seq;
DROP INDEX outbox_pending, outbox_pending_by_aggregate, outbox_published;

-- Ids go on where they were: the order of an aggregate's messages is that of their ids.
CREATE TABLE outbox_events (LIKE outbox_sent_before INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY)
    PARTITION BY LIST ((published_at IS NULL));
SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), last_value, is_called) FROM outbox_sent_before_id_seq;
ALTER TABLE outbox_sent_before ALTER COLUMN id DROP IDENTITY;

CREATE TABLE outbox_unsent PARTITION OF outbox_events (
    CONSTRAINT outbox_events_pkey PRIMARY KEY (id),
    -- The store takes a violation of this one, by its name, for a lost race.
    CONSTRAINT outbox_events_event_id_key UNIQUE (event_id)
) FOR VALUES IN (true)
  -- Its pages are needed again within a second: giving them back to the system would only take locks.
  WITH (fillfactor = 60, vacuum_truncate = off);
CREATE INDEX outbox_pending ON outbox_unsent (available_at, id) WHERE published_at IS NULL AND parked_at IS NULL;
CREATE INDEX outbox_pending_by_aggregate ON outbox_unsent (aggregate_id, id) WHERE published_at IS NULL AND parked_at IS NULL;

CREATE TABLE outbox_sent PARTITION OF outbox_events FOR VALUES IN (false) PARTITION BY RANGE (published_at);
-- For days that nobody made a table for: nothing waits for one.
CREATE TABLE outbox_sent_rest PARTITION OF outbox_sent DEFAULT;
CREATE INDEX outbox_sent_rest_published ON outbox_sent_rest (published_at);
CREATE INDEX outbox_sent_rest_event ON outbox_sent_rest (event_id);

WITH unsent AS (DELETE FROM outbox_sent_before WHERE published_at IS NULL RETURNING *)
INSERT INTO outbox_events OVERRIDING SYSTEM VALUE SELECT * FROM unsent ORDER BY id;

-- What was published until now keeps its table, which is the part of the outbox up to the end of this day.
-- safe because: it is read once, not written again.
DO $$
BEGIN
    IF EXISTS (SELECT FROM outbox_sent_before) THEN
        EXECUTE format('ALTER TABLE outbox_sent ATTACH PARTITION outbox_sent_before FOR VALUES FROM (MINVALUE) TO (%L)',
                       ((now() AT TIME ZONE 'UTC')::date + 1)::timestamp AT TIME ZONE 'UTC');
    ELSE
        DROP TABLE outbox_sent_before;
    END IF;
END $$;

-- ---- Inbox ----
-- By the day in the message's id, so that it is the same table at every delivery, and (consumer, message) is unique in all of
-- it. Rows of messages whose id tells no day, or a day without a table, are in inbox_rest: at first, all rows there are.
ALTER TABLE inbox_dedup RENAME TO inbox_rest;
-- safe because: no statement names it: conflicts are found by the columns.
ALTER TABLE inbox_rest RENAME CONSTRAINT inbox_dedup_pkey TO inbox_rest_pkey;
ALTER INDEX inbox_processed RENAME TO inbox_rest_processed;
CREATE TABLE inbox_dedup (
    LIKE inbox_rest INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (consumer_name, event_id)
) PARTITION BY RANGE (event_id);

-- The lowest id that a message of this day can have: the milliseconds of its midnight (UTC) since 1970 in the first 48 bits, as
-- in `domain::id::message_id`.
CREATE FUNCTION first_message_id(day date) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((day - date '1970-01-01') * 86400000::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Every table of one day, and when that day ends. Reads the bounds, not the names.
CREATE VIEW message_partitions AS
    SELECT parent.relname::text AS parent, part.relname::text AS name,
           CASE parent.relname
               WHEN 'inbox_dedup' THEN
                   to_timestamp(('x' || substring(replace(bound.ends, '-', '') FOR 12))::bit(48)::bigint / 1000.0)
               ELSE bound.ends::timestamptz
           END AS ends
      FROM pg_inherits
      JOIN pg_class parent ON parent.oid = inhparent
      JOIN pg_class part ON part.oid = inhrelid
     CROSS JOIN LATERAL (SELECT substring(pg_get_expr(part.relpartbound, part.oid) FROM 'TO \(''([^'']+)''\)') AS ends) bound
     WHERE parent.oid IN ('inbox_dedup'::regclass, 'outbox_sent'::regclass) AND bound.ends IS NOT NULL;

-- Makes the tables of a day that are missing; says how many it made. Nothing depends on it: without a table, rows go to the
-- rest. Rows of the day that are there already (a clock that was ahead) are moved, if they are few; if they are many, the day
-- stays in the rest, where it is pruned row by row.
--
-- Owned by who migrates, callable by the service: it can make tables of the next days, and nothing else. It never waits longer
-- than a quarter of a second for a lock, because others would queue up behind it.
CREATE FUNCTION make_message_partitions(day date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '250ms' SET timezone = 'UTC' AS $$
DECLARE
    made integer := 0;
    suffix text := to_char(day, 'YYYYMMDD');
    low uuid := first_message_id(day);
    high uuid := first_message_id(day + 1);
    early bigint;
BEGIN
    IF day < (now() AT TIME ZONE 'UTC')::date OR day > (now() AT TIME ZONE 'UTC')::date + 400 THEN
        RAISE EXCEPTION 'a table for % is not made: only for today and the next 400 days', day;
    END IF;
    PERFORM pg_advisory_xact_lock(11::bigint << 56);
    -- safe because: outbox_sent and its rest are not what claims and appends use; to publish waits for a moment.
    IF to_regclass('outbox_sent_' || suffix) IS NULL
       AND NOT EXISTS (SELECT FROM outbox_sent_rest WHERE published_at >= day AND published_at < day + 1)
       AND NOT EXISTS (SELECT FROM message_partitions WHERE parent = 'outbox_sent' AND name = 'outbox_sent_before' AND ends > day) THEN
        EXECUTE format('CREATE TABLE outbox_sent_%s (LIKE outbox_sent INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', suffix);
        EXECUTE format('CREATE INDEX outbox_sent_%1$s_event ON outbox_sent_%1$s (event_id)', suffix);
        EXECUTE format('ALTER TABLE outbox_sent ATTACH PARTITION outbox_sent_%s FOR VALUES FROM (%L) TO (%L)',
                       suffix, day, day + 1);
        made := made + 1;
    END IF;
    IF to_regclass('inbox_' || suffix) IS NULL THEN
        EXECUTE format('CREATE TABLE inbox_%s (LIKE inbox_dedup INCLUDING DEFAULTS INCLUDING CONSTRAINTS) WITH (fillfactor = 60)',
                       suffix);
        IF to_regclass('inbox_rest') IS NOT NULL THEN
            LOCK TABLE inbox_rest IN SHARE ROW EXCLUSIVE MODE;
            SELECT count(*) INTO early
              FROM (SELECT FROM inbox_rest WHERE event_id >= low AND event_id < high LIMIT 1001) it;
        END IF;
        IF early > 1000 THEN
            EXECUTE format('DROP TABLE inbox_%s', suffix);
            RETURN made;
        ELSIF early > 0 THEN
            EXECUTE format('WITH early AS (DELETE FROM inbox_rest WHERE event_id >= %L AND event_id < %L RETURNING *)
                            INSERT INTO inbox_%s SELECT * FROM early', low, high, suffix);
        END IF;
        EXECUTE format('ALTER TABLE inbox_dedup ATTACH PARTITION inbox_%s FOR VALUES FROM (%L) TO (%L)', suffix, low, high);
        made := made + 1;
    END IF;
    RETURN made;
END $$;

-- Drops the table of a day that ended longer ago than this; NULL: it is dropped, else why it is kept. Of an inbox, rows that
-- are claimed, or were finished later than that, are moved to the rest first; a table with very many of them is kept.
--
-- The table alone is locked while it is searched: nobody uses it any more. The whole is locked only to take it out, and
-- never waited for longer than a quarter of a second.
CREATE FUNCTION drop_message_partition(partition text, kept interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '250ms' SET timezone = 'UTC' AS $$
DECLARE
    found message_partitions;
    late inbox_dedup[];
BEGIN
    IF kept < interval '1 day' THEN
        RAISE EXCEPTION 'outbox and inbox are kept for a day at least, not for %', kept;
    END IF;
    PERFORM pg_advisory_xact_lock(11::bigint << 56);
    SELECT * INTO found FROM message_partitions WHERE name = partition;
    IF found IS NULL THEN
        RETURN 'there is no such table of a day';
    ELSIF found.ends > now() - kept THEN
        RETURN 'it is not old enough';
    END IF;
    EXECUTE format('LOCK TABLE %I IN SHARE MODE', partition);
    IF found.parent = 'inbox_dedup' THEN
        EXECUTE format('SELECT array_agg(it) FROM (SELECT it FROM %I AS it WHERE phase = ''claimed'' OR processed_at > $1 LIMIT 1001) x',
                       partition) INTO late USING now() - kept;
        IF cardinality(late) > 1000 THEN
            RETURN 'more than 1000 of its messages are not finished, or were only lately';
        END IF;
    END IF;
    EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', found.parent, partition);
    INSERT INTO inbox_dedup SELECT (it).* FROM unnest(late) AS it;
    EXECUTE format('DROP TABLE %I', partition);
    RETURN NULL;
END $$;

-- A function that runs as its owner looks for tables nowhere but here, whatever the caller's path; and not everybody may call it.
-- safe because: it touches the two functions that were made above, and no table.
DO $$
DECLARE
    routine text;
BEGIN
    FOREACH routine IN ARRAY ARRAY['make_message_partitions(date)', 'drop_message_partition(text, interval)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', routine, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', routine);
    END LOOP;
END $$;

-- Made long ahead this once where there are rows of before: as long as inbox_rest has them, each new day has to read it.
SELECT sum(make_message_partitions((now() AT TIME ZONE 'UTC')::date + n))
  FROM generate_series(0, CASE WHEN EXISTS (SELECT FROM inbox_rest) THEN 45 ELSE 7 END) AS n;
-- An id of before that looks like one of these days goes where such ids go.
WITH alike AS (
    DELETE FROM inbox_rest
     WHERE event_id >= first_message_id((now() AT TIME ZONE 'UTC')::date)
       AND event_id < first_message_id((now() AT TIME ZONE 'UTC')::date + 46) RETURNING *)
INSERT INTO inbox_dedup SELECT * FROM alike;
-- safe because: it is read once, not written again, and its primary key becomes a part of the whole one's.
ALTER TABLE inbox_dedup ATTACH PARTITION inbox_rest DEFAULT;

-- ---- The other tables that only grow ----
-- safe because: this table has some rows a task at most, and writers wait only while an index of one column is built.
CREATE INDEX repairs_created ON repairs (created_at);
-- A repair is one repair, however many scans make it at the same time.
-- safe because: this table has some rows a task at most, and writers wait only while an index of one column is built.
CREATE UNIQUE INDEX repairs_once ON repairs (event_id);
-- safe because: this table has some rows a task at most, and writers wait only while an index of one column is built.
CREATE INDEX notifications_created ON notifications (created_at);
-- safe because: this table has some rows a task at most, and writers wait only while an index of one column is built.
CREATE INDEX provider_callbacks_received ON provider_callbacks (received_at);
-- safe because: this table has some rows a task at most, and writers wait only while an index of one column is built.
CREATE INDEX quarantine_last_failed ON message_quarantine (last_failed_at);

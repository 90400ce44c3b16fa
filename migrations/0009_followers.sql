-- For programs that follow the log: the next events after a position, in the order of positions, and none that something could
-- still come before. What they get is what the projector gets: up to readable_position(), read by a statement that begins after it.
CREATE FUNCTION log_events_after(after bigint, max_events integer) RETURNS SETOF events LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    readable bigint;
BEGIN
    -- In a transaction that sees the database as of one moment, events of before readable_position() may be missing.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'log_events_after() needs READ COMMITTED: in % it would skip events that are committed late',
              upper(current_setting('transaction_isolation')) USING ERRCODE = 'invalid_transaction_state';
    END IF;
    SELECT up_to INTO readable FROM readable_position();
    RETURN QUERY SELECT * FROM events WHERE position > after AND position <= readable ORDER BY position LIMIT max_events;
END $$;
COMMENT ON FUNCTION log_events_after IS 'The next events after a position. Keep the last position in the transaction of what was done with them.';

-- Groups of readers that share the log by partition of the stream. A partition is read by one member at a time, in the order of
-- positions, and has a checkpoint of its own, which the member moves in the transaction of what it did with the events. Whoever
-- may read the log may have groups: nothing of it touches the facts.

CREATE TABLE reader_groups (
    name       text        PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    -- Fixed: with another number, a stream's events would be in another partition, with another checkpoint.
    partitions integer     NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
    -- The login that made it. Others are kept away, unless they are members of that role.
    owner      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE reader_group_members (
    group_name  text        NOT NULL REFERENCES reader_groups ON DELETE CASCADE,
    member      uuid        NOT NULL,
    joined_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Until then it is taken to be alive, and its partitions are its own.
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (group_name, member)
);

CREATE TABLE reader_group_partitions (
    group_name text        NOT NULL REFERENCES reader_groups ON DELETE CASCADE,
    partition  integer     NOT NULL,
    -- Everything up to here is read.
    position   bigint      NOT NULL,
    member     uuid,
    -- Fencing: a new one whenever a member is given the partition.
    token      bigint      NOT NULL DEFAULT 0,
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50);

-- No token is given twice, so none of a group that was forgotten is good for one that is made again under its name.
CREATE SEQUENCE reader_group_tokens;

-- The partition of a stream, of so many: from 0. PostgreSQL partitions tables by this hash, so it stays what it is.
CREATE FUNCTION log_partition(stream_id uuid, partitions integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((uuid_hash_extended(stream_id, 0) & 9223372036854775807) % partitions)::integer
$$;

-- Makes a group that reads what comes after a position, unless there is one already; that must be of the same number of partitions.
CREATE FUNCTION make_reader_group(of_group text, partitions integer, after bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    made reader_groups;
    given bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO given FROM events_position_seq;
    IF of_group !~ '^[a-z][a-z0-9_.-]{0,62}$' THEN
        RAISE EXCEPTION 'a reader group''s name has 1 to 63 lower-case letters, digits, and "_", ".", "-", and begins with a letter'
              USING ERRCODE = 'invalid_parameter_value';
    ELSIF make_reader_group.partitions NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'a reader group has 1 to 1024 partitions, not %', make_reader_group.partitions
              USING ERRCODE = 'invalid_parameter_value';
    ELSIF after IS NULL OR after NOT BETWEEN 0 AND given THEN
        RAISE EXCEPTION 'the log has positions from 1 to %: a reader group can not begin after %', given, after
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO reader_groups (name, partitions, owner) VALUES (of_group, make_reader_group.partitions, session_user)
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        INSERT INTO reader_group_partitions (group_name, partition, position)
        SELECT of_group, n, after FROM generate_series(0, make_reader_group.partitions - 1) AS n;
        RETURN;
    END IF;
    made := lock_reader_group(of_group);
    IF made.partitions <> make_reader_group.partitions THEN
        RAISE EXCEPTION 'the reader group "%" has % partitions, not %: their number is fixed when a group is made; take that number, or make a group of another name',
              of_group, made.partitions, make_reader_group.partitions USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- The group, locked, so that one member at a time finds out what is its own.
CREATE FUNCTION lock_reader_group(of_group text) RETURNS reader_groups
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '5s' AS $$
DECLARE
    it reader_groups;
BEGIN
    SELECT * INTO it FROM reader_groups WHERE name = of_group FOR UPDATE;
    IF it.name IS NULL THEN
        RAISE EXCEPTION 'there is no reader group "%": make it by make_reader_group()', of_group
              USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT coalesce(pg_has_role(session_user, to_regrole(quote_ident(it.owner)), 'MEMBER'), false) THEN
        RAISE EXCEPTION 'the reader group "%" belongs to %, and % is no member of that role', of_group, it.owner, session_user
              USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN it;
END $$;

-- Renews a member's lease, and says which partitions are the member's now: an equal share, what one has more than another is one at
-- most. It gives back what is more than its share and takes what is free. In a transaction of its own, between two batches: at once
-- when the member begins, then each second or so.
CREATE FUNCTION claim_partitions(of_group text, by_member uuid, lease interval)
RETURNS TABLE (partition integer, token bigint, "position" bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    parts integer := (lock_reader_group(of_group)).partitions;
    -- After the wait for the lock.
    moment timestamptz := clock_timestamp();
    members integer;
    before integer;
    quota integer;
    held integer;
BEGIN
    IF lease IS NULL OR lease NOT BETWEEN interval '100 milliseconds' AND interval '1 hour' THEN
        RAISE EXCEPTION 'a lease is of 0.1 seconds to 1 hour, not of %', lease USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Whose lease has run out is no member any more, the caller included: it gets its partitions under new tokens, if at all, so
    -- that nothing it began before counts. Rows that are locked are those of a checkpoint that is about to be committed.
    DELETE FROM reader_group_members WHERE group_name = of_group AND lease_until <= moment;
    WITH left_behind AS MATERIALIZED (
        SELECT q.partition FROM reader_group_partitions q
         WHERE q.group_name = of_group AND q.member IS NOT NULL
           AND NOT EXISTS (SELECT FROM reader_group_members m WHERE m.group_name = of_group AND m.member = q.member)
           FOR UPDATE SKIP LOCKED)
    UPDATE reader_group_partitions p SET member = NULL FROM left_behind q
     WHERE p.group_name = of_group AND p.partition = q.partition;
    INSERT INTO reader_group_members AS m (group_name, member, joined_at, lease_until) VALUES (of_group, by_member, moment, moment + lease)
        ON CONFLICT (group_name, member) DO UPDATE SET lease_until = excluded.lease_until;
    -- Whoever came first has one more, where it does not come out even: a newcomer moves as few as can be.
    SELECT count(*), count(*) FILTER (WHERE (m.joined_at, m.member) < (me.joined_at, me.member)) INTO members, before
      FROM reader_group_members m, reader_group_members me
     WHERE m.group_name = of_group AND me.group_name = of_group AND me.member = by_member;
    quota := parts / members + CASE WHEN before < parts % members THEN 1 ELSE 0 END;
    WITH too_many AS MATERIALIZED (
        SELECT q.partition FROM reader_group_partitions q WHERE q.group_name = of_group AND q.member = by_member
         ORDER BY q.partition OFFSET quota FOR UPDATE SKIP LOCKED)
    UPDATE reader_group_partitions p SET member = NULL FROM too_many q
     WHERE p.group_name = of_group AND p.partition = q.partition;
    SELECT count(*) INTO held FROM reader_group_partitions p WHERE p.group_name = of_group AND p.member = by_member;
    WITH free AS MATERIALIZED (
        SELECT q.partition FROM reader_group_partitions q WHERE q.group_name = of_group AND q.member IS NULL
         ORDER BY q.partition LIMIT greatest(quota - held, 0) FOR UPDATE SKIP LOCKED)
    UPDATE reader_group_partitions p SET member = by_member, token = nextval('reader_group_tokens') FROM free q
     WHERE p.group_name = of_group AND p.partition = q.partition;
    RETURN QUERY SELECT p.partition, p.token, p.position FROM reader_group_partitions p
                  WHERE p.group_name = of_group AND p.member = by_member ORDER BY p.partition;
END $$;

-- The next events of a partition after a position, up to one that may be read: readable_position(), asked before, by a statement of
-- its own. In the order of positions. To start parallel workers takes longer than to read a batch.
CREATE FUNCTION partition_events_after(of_group text, of_partition integer, after bigint, up_to bigint, max_events integer)
RETURNS SETOF events LANGUAGE plpgsql VOLATILE SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    parts integer;
BEGIN
    -- As in log_events_after().
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'partition_events_after() needs READ COMMITTED: in % it would skip events that are committed late',
              upper(current_setting('transaction_isolation')) USING ERRCODE = 'invalid_transaction_state';
    END IF;
    SELECT partitions INTO parts FROM reader_groups WHERE name = of_group;
    IF parts IS NULL THEN
        RAISE EXCEPTION 'there is no reader group "%": make it by make_reader_group()', of_group
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY SELECT * FROM events e
                  WHERE e.position > after AND e.position <= up_to AND log_partition(e.stream_id, parts) = of_partition
                  ORDER BY e.position LIMIT max_events;
END $$;

-- Moves a partition's checkpoint. In the transaction of what was done with the events, as its last statement: where it fails,
-- another member does it, and nothing of this transaction may count.
CREATE FUNCTION move_checkpoint(of_group text, of_partition integer, with_token bigint, from_position bigint, to_position bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    given bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO given FROM events_position_seq;
    IF to_position IS NULL OR to_position < from_position OR to_position > given THEN
        RAISE EXCEPTION 'a checkpoint at position % can not be moved to %: the last position of the log is %', from_position, to_position, given
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE reader_group_partitions p SET position = to_position, moved_at = clock_timestamp()
      FROM reader_groups g
     WHERE g.name = of_group AND pg_has_role(session_user, to_regrole(quote_ident(g.owner)), 'MEMBER')
       AND p.group_name = of_group AND p.partition = of_partition AND p.token = with_token AND p.position = from_position
       AND EXISTS (SELECT FROM reader_group_members m
                    WHERE m.group_name = of_group AND m.member = p.member AND m.lease_until > clock_timestamp());
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % of the reader group "%" is not this member''s any more: its lease ran out, or others came; what was done with the events since position % is for whoever has it now',
              of_partition, of_group, from_position USING ERRCODE = 'LR001';
    END IF;
END $$;

-- A member that ends gives back what it has, so that nobody waits for its lease.
CREATE FUNCTION leave_reader_group(of_group text, by_member uuid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM lock_reader_group(of_group);
    DELETE FROM reader_group_members m WHERE m.group_name = of_group AND m.member = by_member;
    UPDATE reader_group_partitions p SET member = NULL WHERE p.group_name = of_group AND p.member = by_member;
END $$;

-- Forgets a group and its checkpoints, if nobody reads.
CREATE FUNCTION drop_reader_group(of_group text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    alive bigint;
BEGIN
    PERFORM lock_reader_group(of_group);
    SELECT count(*) INTO alive FROM reader_group_members m WHERE m.group_name = of_group AND m.lease_until > clock_timestamp();
    IF alive > 0 THEN
        RAISE EXCEPTION 'the reader group "%" has % members that read: stop them first', of_group, alive USING ERRCODE = 'object_in_use';
    END IF;
    DELETE FROM reader_groups WHERE name = of_group;
END $$;

-- Functions that run as their owner look for tables nowhere but here, whatever the caller's path; and not everybody may call them.
-- safe because: it touches the functions that were made above, and no table.
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosecdef AND proname IN
            ('make_reader_group', 'lock_reader_group', 'claim_partitions', 'move_checkpoint', 'leave_reader_group', 'drop_reader_group')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', routine, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', routine);
    END LOOP;
END $$;

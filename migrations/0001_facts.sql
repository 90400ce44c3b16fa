-- Facts: the append-only events, and the messages and marks that commit together with them.
-- Rules for migrations: migrations/README.md

CREATE TABLE events (
    position        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id        uuid        NOT NULL UNIQUE,
    category        text        NOT NULL,
    stream_id       uuid        NOT NULL,
    version         bigint      NOT NULL CHECK (version > 0),
    name            text        NOT NULL,
    schema_version  smallint    NOT NULL,
    body            jsonb       NOT NULL,
    tenant_id       uuid        NOT NULL,
    correlation_id  uuid        NOT NULL,
    causation_id    uuid        NOT NULL,
    actor           text        NOT NULL,
    recorded_at     timestamptz NOT NULL,
    -- The version check: of two writers at one version, one gets a unique violation and decides again.
    CONSTRAINT events_stream_version UNIQUE (category, stream_id, version)
);
COMMENT ON TABLE events IS 'Append-only. Positions are handed out at insert; readers go by readable_position().';

-- The log is append-only for everybody, its owner included.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Writers of events announce themselves before they are given positions: a shared advisory lock on the position that was
-- the last one given out then. Every position that the writer is given is higher. Readers stop below the lowest such
-- lock, so they never pass a position that may still appear, and never wait for one that was rolled back: the lock
-- ends with the transaction. The top byte keeps these locks apart from all others.
CREATE FUNCTION announce_writer() RETURNS void LANGUAGE sql VOLATILE AS $$
    -- Before the first position is given out, last_value already says 1.
    SELECT pg_advisory_xact_lock_shared((7::bigint << 56) | CASE WHEN is_called THEN last_value ELSE 0 END)
      FROM events_position_seq
$$;

-- The highest position up to which nothing can appear any more, and the session that holds readers back, if one does.
-- The sequence is read first: a position up to that value belongs to a writer that had announced itself by then.
CREATE FUNCTION readable_position(OUT up_to bigint, OUT held_back_by integer) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lowest bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO up_to FROM events_position_seq;
    SELECT ((l.classid::bigint & 16777215) << 32) | l.objid::bigint, l.pid INTO lowest, held_back_by
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid::bigint >> 24 = 7
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     ORDER BY 1 LIMIT 1;
    IF lowest IS NOT NULL AND lowest < up_to THEN
        up_to := lowest;
    ELSE
        held_back_by := NULL;
    END IF;
END $$;

CREATE TABLE outbox_events (
    id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id          uuid        NOT NULL UNIQUE,
    original_event_id uuid,
    aggregate_type    text        NOT NULL,
    aggregate_id      uuid        NOT NULL,
    event_type        text        NOT NULL,
    schema_version    smallint    NOT NULL,
    topic             text        NOT NULL,
    tag               text        NOT NULL,
    payload           jsonb       NOT NULL,
    tenant_id         uuid        NOT NULL,
    trace_id          text        NOT NULL,
    correlation_id    uuid        NOT NULL,
    causation_id      uuid        NOT NULL,
    occurred_at       timestamptz NOT NULL,
    -- When the broker is to deliver it; NULL: at once.
    deliver_at        timestamptz,
    -- Not sent before this time: back-off after a failure, or a delay longer than the broker carries.
    available_at      timestamptz NOT NULL,
    published_at      timestamptz,
    parked_at         timestamptz,
    publish_attempts  integer     NOT NULL DEFAULT 0,
    -- Failures in a row after which trying again is no use (too large, no such topic): they lead to parking.
    refusals          integer     NOT NULL DEFAULT 0,
    -- Fencing: a relay may finish a row only with the token it claimed it with.
    lease_token       uuid,
    lease_until       timestamptz,
    last_error_code   text,
    last_error        text,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_pending ON outbox_events (available_at, id) WHERE published_at IS NULL AND parked_at IS NULL;
CREATE INDEX outbox_pending_by_aggregate ON outbox_events (aggregate_id, id) WHERE published_at IS NULL AND parked_at IS NULL;
CREATE INDEX outbox_published ON outbox_events (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE inbox_dedup (
    consumer_name text        NOT NULL,
    event_id      uuid        NOT NULL,
    aggregate_id  uuid        NOT NULL,
    -- claimed: being handled, or its handler died; the facts say how far it got. done: never handled again.
    phase         text        NOT NULL CHECK (phase IN ('claimed', 'done')),
    result_code   text,
    result_detail text,
    deliveries    integer     NOT NULL DEFAULT 1,
    payload_hash  bytea       NOT NULL,
    claimed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at  timestamptz,
    PRIMARY KEY (consumer_name, event_id)
);
CREATE INDEX inbox_processed ON inbox_dedup (processed_at);

CREATE TABLE message_quarantine (
    id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_name     text        NOT NULL,
    original_event_id uuid,
    topic             text        NOT NULL,
    message_key       text,
    payload_hash      bytea       NOT NULL,
    payload_snapshot  bytea       NOT NULL,
    error_class       text        NOT NULL,
    error_message     text        NOT NULL,
    first_failed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivery_count    integer     NOT NULL DEFAULT 1,
    status            text        NOT NULL DEFAULT 'parked',
    CONSTRAINT quarantine_once UNIQUE (consumer_name, payload_hash)
);

-- One row per request that carries an idempotency key. The key belongs to a tenant and an operation.
CREATE TABLE idempotency_keys (
    tenant_id   uuid        NOT NULL,
    operation   text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    result      jsonb       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, operation, key)
);

-- What a user asked for, in full. Events and messages only name it.
CREATE TABLE generation_requests (
    task_id    uuid        PRIMARY KEY,
    tenant_id  uuid        NOT NULL,
    prompt     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE uploads (
    asset_id     uuid        PRIMARY KEY,
    tenant_id    uuid        NOT NULL,
    object_key   text        NOT NULL UNIQUE,
    bytes        bigint      NOT NULL,
    sha256       text        NOT NULL,
    content_type text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE provider_callbacks (
    provider    text        NOT NULL,
    delivery_id text        NOT NULL,
    attempt_id  uuid        NOT NULL,
    task_id     uuid        NOT NULL,
    job_id      text        NOT NULL,
    body_sha256 bytea       NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, delivery_id)
);

CREATE TABLE notifications (
    task_id      uuid        NOT NULL,
    task_version bigint      NOT NULL,
    tenant_id    uuid        NOT NULL,
    state        text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, task_version)
);

-- What the scan for stalled tasks did: a repair is never silent.
CREATE TABLE repairs (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id    uuid        NOT NULL,
    state      text        NOT NULL,
    message    text        NOT NULL,
    event_id   uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX repairs_by_task ON repairs (task_id, created_at);

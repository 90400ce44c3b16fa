-- Proof against tampering: the hash of every event, and signed seals over them. Written by the sealer alone, which reads the log
-- like any other reader: appends do not know of it, and an older release may go on writing beside it. Events of before are sealed
-- as soon as a sealer runs: it begins at the first position.

CREATE TABLE event_hashes (
    position  bigint NOT NULL PRIMARY KEY,
    -- Which event it was: a deleted one can still be named.
    category  text   NOT NULL,
    stream_id uuid   NOT NULL,
    version   bigint NOT NULL,
    hash      bytea  NOT NULL CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE event_hashes IS 'Append-only. The hash of each sealed event: docs/event-store.md, "Proof".';

CREATE TABLE seals (
    number         bigint      NOT NULL PRIMARY KEY CHECK (number > 0),
    first_position bigint      NOT NULL,
    last_position  bigint      NOT NULL UNIQUE CHECK (last_position >= first_position),
    events         bigint      NOT NULL CHECK (events > 0),
    root           bytea       NOT NULL CHECK (octet_length(root) = 32),
    previous       bytea       NOT NULL CHECK (octet_length(previous) = 32),
    sealed_at      timestamptz NOT NULL,
    key_id         text        NOT NULL,
    signature      bytea       NOT NULL CHECK (octet_length(signature) = 64)
);
COMMENT ON TABLE seals IS 'Append-only. Each seals the events of an interval of positions: docs/event-store.md, "Proof".';

CREATE TRIGGER event_hashes_append_only BEFORE UPDATE OR DELETE ON event_hashes FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER event_hashes_no_truncate BEFORE TRUNCATE ON event_hashes FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER seals_append_only BEFORE UPDATE OR DELETE ON seals FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER seals_no_truncate BEFORE TRUNCATE ON seals FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

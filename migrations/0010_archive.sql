-- The archive: which streams were copied to which file of the object store, up to which version. The events stay in the log. Rows
-- are written after the file is durable, by `aivideo archive run` alone: appends do not know of them, and an old binary needs none.

CREATE TABLE archives (
    number         bigint      NOT NULL PRIMARY KEY CHECK (number > 0),
    file_key       text        NOT NULL UNIQUE,
    sha256         bytea       NOT NULL CHECK (octet_length(sha256) = 32),
    bytes          bigint      NOT NULL CHECK (bytes > 0),
    events         bigint      NOT NULL CHECK (events > 0),
    streams        bigint      NOT NULL CHECK (streams > 0),
    first_position bigint      NOT NULL,
    last_position  bigint      NOT NULL CHECK (last_position >= first_position),
    written_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE archives IS 'Append-only. The files of the archive: docs/event-store.md, "Archive".';

CREATE TABLE archived_streams (
    category    text   NOT NULL,
    stream_id   uuid   NOT NULL,
    -- Everything from version 1 to this one. A stream that grew afterwards gets another row, in a later file.
    version     bigint NOT NULL CHECK (version > 0),
    -- The hash of its last event, which vouches for all of them.
    hash        bytea  NOT NULL CHECK (octet_length(hash) = 32),
    archive     bigint NOT NULL REFERENCES archives (number),
    -- Where its part of the file begins, and how long it is.
    part_offset bigint NOT NULL CHECK (part_offset >= 0),
    part_bytes  bigint NOT NULL CHECK (part_bytes > 0),
    PRIMARY KEY (category, stream_id, version),
    UNIQUE (archive, part_offset)
);
COMMENT ON TABLE archived_streams IS 'Append-only. Where each archived stream is: docs/event-store.md, "Archive".';

CREATE TRIGGER archives_append_only BEFORE UPDATE OR DELETE ON archives FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER archives_no_truncate BEFORE TRUNCATE ON archives FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER archived_streams_append_only BEFORE UPDATE OR DELETE ON archived_streams FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER archived_streams_no_truncate BEFORE TRUNCATE ON archived_streams FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

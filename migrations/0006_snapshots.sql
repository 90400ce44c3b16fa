-- Folded states of long streams, so that a cold start need not read them from their first event. Only ever a shortcut: every row
-- may be deleted at any time, and a row that is not what the service wrote is found, ignored and replaced. An old binary knows
-- nothing of them and needs none.
CREATE TABLE snapshots (
    category   text        NOT NULL,
    stream_id  uuid        NOT NULL,
    -- The number of events folded.
    version    bigint      NOT NULL CHECK (version > 0),
    -- Which encoding the state has: see domain/src/snapshot.rs.
    shape      smallint    NOT NULL,
    -- Over the shape, the stream, the version, the event it ends with, and the canonical state.
    digest     bytea       NOT NULL,
    state      jsonb       NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (category, stream_id)
);
-- Ids hardly compress, and taking them apart again would cost each cold start more than reading them.
ALTER TABLE snapshots ALTER COLUMN state SET STORAGE EXTERNAL;
COMMENT ON TABLE snapshots IS 'Shortcuts for cold starts. Not facts: rows may be deleted at any time.';

-- Callbacks that are proven and name an attempt that nobody knows: after a database was put back to an earlier time, the provider
-- knows more than we do. Kept for a while, and applied should the attempt turn up.
CREATE TABLE unmatched_callbacks (
    provider    text        NOT NULL,
    delivery_id text        NOT NULL,
    attempt_id  uuid        NOT NULL,
    job_id      text        NOT NULL,
    body_sha256 bytea       NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, delivery_id, attempt_id)
);
CREATE INDEX unmatched_callbacks_received ON unmatched_callbacks (received_at);

-- Providers that a process leaves alone because they fail: for people who look. No decision rests on it.
CREATE TABLE provider_outages (
    process    text        NOT NULL,
    provider   text        NOT NULL,
    since      timestamptz NOT NULL,
    looks_at   timestamptz NOT NULL,
    cause      text        NOT NULL,
    noted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (process, provider)
);

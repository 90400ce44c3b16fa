-- Read models: folded from the events by position, rebuilt at will. No foreign keys to facts, and nothing else writes them.

CREATE TABLE projection_checkpoints (
    name       text        PRIMARY KEY,
    position   bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What stops the projector, as long as it does: it never passes an event that it can not fold.
    fault          text,
    fault_position bigint,
    fault_at       timestamptz
);

CREATE TABLE read_tasks (
    task_id          uuid        PRIMARY KEY,
    tenant_id        uuid        NOT NULL,
    version          bigint      NOT NULL,
    state            text        NOT NULL,
    provider         text        NOT NULL,
    model            text        NOT NULL,
    duration_seconds integer     NOT NULL,
    input_assets     uuid[]      NOT NULL,
    hold             bigint      NOT NULL,
    charge           bigint,
    attempt_no       integer     NOT NULL DEFAULT 0,
    error_class      text,
    error_code       text,
    error_message    text,
    review_reason    text,
    canceled_by      text,
    -- When the task is to go on by itself, as far as the events say; NULL at the end and in review.
    wake_at          timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    finished_at      timestamptz,
    position         bigint      NOT NULL
);
CREATE INDEX read_tasks_by_tenant ON read_tasks (tenant_id, created_at DESC, task_id DESC);
CREATE INDEX read_tasks_wake ON read_tasks (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE read_attempts (
    attempt_id       uuid        PRIMARY KEY,
    task_id          uuid        NOT NULL,
    tenant_id        uuid        NOT NULL,
    version          bigint      NOT NULL,
    number           integer     NOT NULL,
    provider         text        NOT NULL,
    state            text        NOT NULL,
    provider_job_id  text,
    round            integer     NOT NULL DEFAULT 0,
    polls            integer     NOT NULL DEFAULT 0,
    percent          integer,
    orphans          text[]      NOT NULL DEFAULT '{}',
    error_class      text,
    error_code       text,
    error_message    text,
    submit_started_at timestamptz,
    submit_finished_at timestamptz,
    wake_at          timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    position         bigint      NOT NULL,
    UNIQUE (task_id, number)
);
CREATE INDEX read_attempts_job ON read_attempts (provider, provider_job_id);

CREATE TABLE read_assets (
    asset_id        uuid        PRIMARY KEY,
    task_id         uuid        NOT NULL,
    tenant_id       uuid        NOT NULL,
    kind            text        NOT NULL,
    object_key      text        NOT NULL,
    bytes           bigint      NOT NULL,
    sha256          text        NOT NULL,
    content_type    text        NOT NULL,
    duration_millis bigint,
    width           integer,
    height          integer,
    video_codec     text,
    audio_codec     text,
    created_at      timestamptz NOT NULL,
    position        bigint      NOT NULL
);
CREATE INDEX read_assets_by_task ON read_assets (task_id, kind);

CREATE TABLE read_accounts (
    account_id uuid        PRIMARY KEY,
    tenant_id  uuid        NOT NULL,
    version    bigint      NOT NULL,
    available  bigint      NOT NULL,
    held       bigint      NOT NULL,
    charged    bigint      NOT NULL,
    updated_at timestamptz NOT NULL,
    position   bigint      NOT NULL
);

-- One row per posting: the business key is unique, whatever the events say.
CREATE TABLE read_account_entries (
    account_id   uuid        NOT NULL,
    version      bigint      NOT NULL,
    kind         text        NOT NULL,
    business_key text        NOT NULL,
    amount       bigint      NOT NULL,
    charged      bigint      NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL,
    position     bigint      NOT NULL,
    PRIMARY KEY (account_id, version),
    UNIQUE (account_id, business_key)
);

CREATE TABLE read_holds (
    task_id    uuid        PRIMARY KEY,
    account_id uuid        NOT NULL,
    reserved   bigint      NOT NULL,
    settled    bigint      NOT NULL DEFAULT 0,
    released   bigint      NOT NULL DEFAULT 0,
    state      text        NOT NULL,
    updated_at timestamptz NOT NULL,
    position   bigint      NOT NULL
);
CREATE INDEX read_holds_open ON read_holds (task_id) WHERE state = 'OPEN';

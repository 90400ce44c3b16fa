//! The checks: for each invariant a query that lists what breaks it, in words. `limits` is a one-row table of intervals. They
//! go by the events wherever events tell; read tables are only asked for what they alone know.

/// One invariant.
pub(super) struct Check {
    /// Its name in the design.
    pub(super) invariant: &'static str,
    /// What was looked at, said when nothing was found.
    pub(super) holds: &'static str,
    /// Lists the offenders as one text column.
    pub(super) offenders: &'static str,
}

/// All checks but the one that folds.
pub(super) const CHECKS: &[Check] = &[
    ONE_TASK_PER_KEY,
    GAPLESS_STREAM,
    NO_LOST_MESSAGE,
    EFFECT_ONCE,
    NO_BLIND_RESUBMIT,
    ONE_WINNER,
    TERMINAL_IS_TERMINAL,
    CONSERVED_CREDITS,
    NO_SILENT_STALL,
    POISON_ONCE,
    TENANT_WALL,
];

/// A key's result says which version it reached: 1 only for the request that submitted the task.
const ONE_TASK_PER_KEY: Check = Check {
    invariant: "one-task-per-key",
    holds: "each idempotency key has one result, and each submitted task at most one key",
    offenders: "
        SELECT 'key of ' || operation || ' at ' || created_at || ' has no result'
          FROM idempotency_keys WHERE result = 'null'
        UNION ALL
        SELECT 'task ' || (k.result->>'task') || ' of a key does not exist for its tenant'
          FROM idempotency_keys k
         WHERE k.result->>'task' IS NOT NULL AND k.result->>'version' = '1'
           AND NOT EXISTS (SELECT FROM events e WHERE e.category = 'task' AND e.version = 1 AND e.tenant_id = k.tenant_id
                                                  AND e.stream_id = (k.result->>'task')::uuid)
        UNION ALL
        SELECT 'task ' || (result->>'task') || ' has ' || count(*) || ' submitting keys'
          FROM idempotency_keys WHERE result->>'task' IS NOT NULL AND result->>'version' = '1'
         GROUP BY result->>'task' HAVING count(*) > 1
        UNION ALL
        SELECT 'task ' || stream_id || ' was submitted ' || count(*) || ' times'
          FROM events WHERE name = 'task.submitted' GROUP BY stream_id HAVING count(*) > 1",
};

const GAPLESS_STREAM: Check = Check {
    invariant: "gapless-stream",
    holds: "the versions of each stream are 1 to n",
    offenders: "
        SELECT category || '-' || stream_id || ' has ' || count(*) || ' events, versions ' || min(version) || ' to '
               || max(version)
          FROM events GROUP BY category, stream_id
        HAVING count(*) <> max(version) OR min(version) <> 1 OR count(DISTINCT version) <> count(*)",
};

/// What a task waits for after an event is announced together with that event.
const NO_LOST_MESSAGE: Check = Check {
    invariant: "no-lost-message",
    holds: "each recent event of a task has the message it waits for, none is overdue, none is parked",
    offenders: "
        SELECT 'message ' || event_id || ' (' || event_type || ') is unsent since ' || created_at
          FROM outbox_events, limits
         WHERE published_at IS NULL AND parked_at IS NULL
           AND greatest(created_at, deliver_at - interval '2 days') < clock_timestamp() - unsent
        UNION ALL
        SELECT 'message ' || event_id || ' (' || event_type || ') is parked: ' || coalesce(last_error_code, 'unknown')
          FROM outbox_events WHERE parked_at IS NOT NULL AND published_at IS NULL
        UNION ALL
        SELECT 'event ' || e.name || ' of task ' || e.stream_id || ', version ' || e.version || ', was never announced'
          FROM limits, events e
          JOIN (VALUES ('task.submitted', ARRAY['generation.submit.requested', 'render.export.requested']),
                       ('task.deferred', ARRAY['generation.submit.due']),
                       ('task.attempt_replaced', ARRAY['generation.submit.due']),
                       ('task.fetch_begun', ARRAY['asset.fetch.requested']),
                       ('task.fetch_delayed', ARRAY['asset.fetch.due']),
                       ('task.video_stored', ARRAY['asset.postprocess.requested', 'asset.postprocess.due']),
                       ('task.video_ready', ARRAY['asset.postprocess.due']),
                       ('task.succeeded', ARRAY['billing.settle.requested']),
                       ('task.failed', ARRAY['billing.settle.requested']),
                       ('task.canceled', ARRAY['billing.settle.requested']),
                       ('task.canceled_with_output', ARRAY['billing.settle.requested'])) AS waits (name, for_one_of)
            ON waits.name = e.name
         WHERE e.category = 'task' AND e.recorded_at > clock_timestamp() - announced
           AND NOT EXISTS (SELECT FROM outbox_events o
                            WHERE o.aggregate_id = e.stream_id AND o.event_type = ANY (waits.for_one_of)
                              AND coalesce(o.payload->>'task_version', o.payload->>'version')::bigint = e.version)",
};

/// Of one message, an effect that is final can only come once. Effects that the answers of two callers may both record
/// (polls, look-ups) are not counted.
const EFFECT_ONCE: Check = Check {
    invariant: "effect-once",
    holds: "no message had a final effect twice, and none is left half handled",
    offenders: "
        SELECT consumer_name || ' has claimed ' || event_id || ' since ' || claimed_at || ' and not finished it'
          FROM inbox_dedup, limits WHERE phase = 'claimed' AND claimed_at < clock_timestamp() - claimed
        UNION ALL
        SELECT name || ' of ' || category || '-' || stream_id || ' was recorded ' || count(*) || ' times for message '
               || causation_id
          FROM events
         WHERE actor LIKE 'cg.%'
           AND name IN ('task.submitted', 'task.video_stored', 'task.succeeded', 'task.failed', 'task.canceled',
                        'task.canceled_with_output', 'attempt.planned')
         GROUP BY name, category, stream_id, causation_id HAVING count(*) > 1
        UNION ALL
        SELECT name || ' was recorded ' || count(*) || ' times for task ' || (body->>'task')
          FROM events WHERE name IN ('account.held', 'account.settled', 'account.released', 'account.hold_expired')
         GROUP BY name, stream_id, body->>'task' HAVING count(*) > 1
        UNION ALL
        SELECT 'a notice tells task ' || n.task_id || ' about version ' || n.task_version || ', which does not exist'
          FROM notifications n
         WHERE NOT EXISTS (SELECT FROM events e WHERE e.category = 'task' AND e.stream_id = n.task_id
                                                  AND e.version = n.task_version)",
};

const NO_BLIND_RESUBMIT: Check = Check {
    invariant: "no-blind-resubmit",
    holds: "each further submission of an attempt follows the word that nothing had been created",
    offenders: "
        SELECT 'attempt ' || stream_id || ' was submitted again at version ' || version || ' without that word'
          FROM (SELECT stream_id, version, name, lag(name) OVER w AS before
                  FROM events
                 WHERE category = 'attempt' AND name IN ('attempt.submission_begun', 'attempt.deferred')
                WINDOW w AS (PARTITION BY stream_id ORDER BY version)) it
         WHERE name = 'attempt.submission_begun' AND before = 'attempt.submission_begun'
        UNION ALL
        SELECT 'attempt ' || stream_id || ' counts round ' || counted || ' where it is ' || round
          FROM (SELECT stream_id, (body->>'round')::bigint AS counted,
                       row_number() OVER (PARTITION BY stream_id ORDER BY version) AS round
                  FROM events WHERE category = 'attempt' AND name = 'attempt.submission_begun') it
         WHERE counted <> round
        UNION ALL
        SELECT 'attempt ' || stream_id || ' was accepted as ' || count(DISTINCT body->>'job') || ' jobs'
          FROM events WHERE category = 'attempt' AND name = 'attempt.accepted'
         GROUP BY stream_id HAVING count(DISTINCT body->>'job') > 1",
};

/// Which attempt a video is of, its asset's key says: the attempt's id is the folder. An export has no attempt.
const ONE_WINNER: Check = Check {
    invariant: "one-winner",
    holds: "each task has at most one video, and it is of an attempt that succeeded, or of an export's render",
    offenders: "
        SELECT 'task ' || stream_id || ' has ' || count(*) || ' of ' || name
          FROM events WHERE category = 'task' AND name IN ('task.video_stored', 'task.succeeded')
         GROUP BY stream_id, name HAVING count(*) > 1
        UNION ALL
        SELECT 'task ' || v.stream_id || ' delivers the video of no attempt that succeeded'
          FROM events v
         WHERE v.category = 'task' AND v.name = 'task.video_stored'
           AND NOT EXISTS (SELECT FROM events o
                            WHERE o.category = 'task' AND o.stream_id = v.stream_id AND o.version = 1
                              AND o.body#>>'{order,work,kind}' = 'export')
           AND NOT EXISTS (
               SELECT FROM events p
                 JOIN events s ON s.category = 'attempt' AND s.stream_id = p.stream_id AND s.name = 'attempt.succeeded'
                WHERE p.category = 'attempt' AND p.version = 1 AND p.body->>'task' = v.stream_id::text
                  AND position(p.stream_id::text IN v.body#>>'{video,object,key}') > 0)",
};

const TERMINAL_IS_TERMINAL: Check = Check {
    invariant: "terminal-is-terminal",
    holds: "no task has an event after its end",
    offenders: "
        SELECT 'task ' || e.stream_id || ': ' || e.name || ' at version ' || e.version || ' comes after its end'
          FROM events e
          JOIN (SELECT stream_id, min(version) AS version FROM events
                 WHERE category = 'task'
                   AND name IN ('task.succeeded', 'task.failed', 'task.canceled', 'task.canceled_with_output')
                 GROUP BY stream_id) ended
            ON ended.stream_id = e.stream_id AND e.version > ended.version
         WHERE e.category = 'task'",
};

/// A posting moves credits between what is available, what is held and what is charged; their sum, less what was
/// refunded, only changes by grants and adjustments.
const CONSERVED_CREDITS: Check = Check {
    invariant: "conserved-credits",
    holds: "each hold is kept or closed once and whole, no account was below nothing, one posting a key, refunds are of charges",
    offenders: "
        SELECT 'task ' || coalesce(h.task, c.task) || ' has reserved ' || coalesce(h.reserved, 0) || ', settled and released '
               || coalesce(c.closed, 0) || ' in ' || coalesce(c.closings, 0) || ' postings'
          FROM (SELECT stream_id, body->>'task' AS task, sum((body->>'amount')::bigint) AS reserved FROM events
                 WHERE category = 'account' AND name = 'account.held' GROUP BY 1, 2) h
          FULL JOIN (SELECT stream_id, body->>'task' AS task, count(*) AS closings,
                            sum(coalesce((body->>'charged')::bigint, 0) + (body->>'released')::bigint) AS closed
                       FROM events WHERE category = 'account'
                        AND name IN ('account.settled', 'account.released', 'account.hold_expired')
                      GROUP BY 1, 2) c USING (stream_id, task)
         WHERE c.closings IS NOT NULL AND (c.closings > 1 OR c.closed IS DISTINCT FROM h.reserved)
        UNION ALL
        SELECT 'account ' || stream_id || ' had ' || available || ' available at version ' || version
          FROM (SELECT stream_id, version,
                       sum(CASE WHEN name = 'account.held' THEN -(body->>'amount')::bigint
                                WHEN body ? 'released' THEN (body->>'released')::bigint
                                ELSE (body->>'amount')::bigint END)
                           OVER (PARTITION BY stream_id ORDER BY version) AS available
                  FROM events WHERE category = 'account') it
         WHERE available < 0
        UNION ALL
        SELECT 'account ' || stream_id || ' has ' || count(*) || ' of ' || name || ' with one key'
          FROM events WHERE category = 'account' AND name IN ('account.granted', 'account.refunded', 'account.adjusted')
         GROUP BY stream_id, name, body->>'key' HAVING count(*) > 1
        UNION ALL
        SELECT 'task ' || task || ' was refunded ' || r.refunded || ' of ' || coalesce(s.charged, 0)
          FROM (SELECT stream_id, body->>'task' AS task, sum((body->>'amount')::bigint) AS refunded FROM events
                 WHERE category = 'account' AND name = 'account.refunded' GROUP BY 1, 2) r
          LEFT JOIN (SELECT stream_id, body->>'task' AS task, max((body->>'charged')::bigint) AS charged FROM events
                      WHERE category = 'account' AND name = 'account.settled' GROUP BY 1, 2) s USING (stream_id, task)
         WHERE r.refunded > coalesce(s.charged, 0)
        UNION ALL
        SELECT 'the hold of task ' || (x.body->>'task') || ' expired, and its charge is due'
          FROM events x
          JOIN events t ON t.category = 'task' AND t.name = 'task.succeeded' AND t.stream_id = (x.body->>'task')::uuid
         WHERE x.category = 'account' AND x.name = 'account.hold_expired'
        UNION ALL
        SELECT 'task ' || s.stream_id || ' was submitted without its hold'
          FROM events s
         WHERE s.category = 'task' AND s.name = 'task.submitted'
           AND NOT EXISTS (SELECT FROM events h
                            WHERE h.category = 'account' AND h.name = 'account.held'
                              AND h.stream_id = (s.body#>>'{order,account}')::uuid
                              AND h.body->>'task' = s.stream_id::text AND h.body->>'amount' = s.body#>>'{order,hold}')
        UNION ALL
        SELECT 'task ' || (s.body->>'task') || ' was charged ' || (s.body->>'charged') || ', which is not its price'
          FROM events s
         WHERE s.category = 'account' AND s.name = 'account.settled'
           AND NOT EXISTS (SELECT FROM events t
                            WHERE t.category = 'task' AND t.name = 'task.succeeded'
                              AND t.stream_id = (s.body->>'task')::uuid AND t.body->>'charge' = s.body->>'charged')",
};

/// Which task waits since when only the read table says. A task that it lacks is stalled as well.
const NO_SILENT_STALL: Check = Check {
    invariant: "no-silent-stall",
    holds: "each task that is overdue was set going again or is with a person",
    offenders: "
        SELECT 'task ' || t.task_id || ' is ' || t.state || ' and was to go on at ' || t.wake_at
          FROM read_tasks t, limits
         WHERE t.wake_at < clock_timestamp() - stall
           AND NOT EXISTS (SELECT FROM repairs r
                            WHERE r.task_id = t.task_id AND r.created_at > greatest(t.wake_at, clock_timestamp() - stall * 2))
        UNION ALL
        SELECT 'task ' || task_id || ' is ' || state || ' and nothing wakes it'
          FROM read_tasks WHERE wake_at IS NULL AND finished_at IS NULL AND state <> 'MANUAL_REVIEW'
        UNION ALL
        SELECT 'task ' || e.stream_id || ' was submitted at ' || e.recorded_at || ' and is not in the read table'
          FROM events e, limits
         WHERE e.category = 'task' AND e.version = 1 AND e.recorded_at < clock_timestamp() - stall
           AND NOT EXISTS (SELECT FROM read_tasks t WHERE t.task_id = e.stream_id)",
};

const POISON_ONCE: Check = Check {
    invariant: "poison-once",
    holds: "each message that can not be handled has one quarantine row a consumer",
    offenders: "
        SELECT consumer_name || ' has ' || count(*) || ' quarantine rows for one body'
          FROM message_quarantine GROUP BY consumer_name, payload_hash HAVING count(*) > 1
        UNION ALL
        SELECT consumer_name || ' has ' || count(*) || ' quarantine rows for message ' || original_event_id
          FROM message_quarantine WHERE original_event_id IS NOT NULL
         GROUP BY consumer_name, original_event_id HAVING count(*) > 1",
};

/// A message of another tenant would be refused by its consumer, so whoever acts on a task does so in its owner's name.
/// Accounts have their tenant's id; who grants credits may be an operator, so their events are not asked.
const TENANT_WALL: Check = Check {
    invariant: "tenant-wall",
    holds: "events, messages, requests and read rows of a task all name its owner",
    offenders: "
        WITH owners AS (
            SELECT stream_id AS task_id, (body#>>'{order,tenant}')::uuid AS tenant_id, (body#>>'{order,account}')::uuid AS account
              FROM events WHERE category = 'task' AND version = 1)
        SELECT 'task ' || o.task_id || ' is paid by the account of another tenant'
          FROM owners o WHERE o.account <> o.tenant_id
        UNION ALL
        SELECT e.name || ' of task ' || e.stream_id || ' names another tenant'
          FROM events e JOIN owners o ON o.task_id = e.stream_id
         WHERE e.category = 'task' AND e.tenant_id <> o.tenant_id
        UNION ALL
        SELECT e.name || ' of attempt ' || e.stream_id || ' names another tenant'
          FROM events e
          JOIN events p ON p.category = 'attempt' AND p.stream_id = e.stream_id AND p.version = 1
          JOIN owners o ON o.task_id = (p.body->>'task')::uuid
         WHERE e.category = 'attempt' AND e.tenant_id <> o.tenant_id
        UNION ALL
        SELECT 'message ' || m.event_id || ' about task ' || m.aggregate_id || ' names another tenant'
          FROM outbox_events m JOIN owners o ON o.task_id = m.aggregate_id WHERE m.tenant_id <> o.tenant_id
        UNION ALL
        SELECT 'the request of task ' || g.task_id || ' belongs to another tenant'
          FROM generation_requests g JOIN owners o USING (task_id) WHERE g.tenant_id <> o.tenant_id
        UNION ALL
        SELECT 'a notice about task ' || n.task_id || ' goes to another tenant'
          FROM notifications n JOIN owners o USING (task_id) WHERE n.tenant_id <> o.tenant_id
        UNION ALL
        SELECT 'the read row of task ' || t.task_id || ' belongs to another tenant'
          FROM read_tasks t JOIN owners o USING (task_id) WHERE t.tenant_id <> o.tenant_id
        UNION ALL
        SELECT 'the read row of attempt ' || a.attempt_id || ' belongs to another tenant'
          FROM read_attempts a JOIN owners o USING (task_id) WHERE a.tenant_id <> o.tenant_id",
};

-- Every statement of the previous release, as its sources have them: made by
--   BLESS=previous cargo test -p eventstore --test rules previous
-- at a release, never by hand. The test prepares and runs each on the newest schema.

-- eventstore.append
WITH fence AS MATERIALIZED (SELECT announce_writer() WHERE cardinality($1::uuid[]) > 0),
             rows AS MATERIALIZED (
                 SELECT r.* FROM fence, unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[],
                                               $6::smallint[], $7::jsonb[])
                        WITH ORDINALITY AS r (event_id, category, stream_id, version, name, schema_version, body, ord)),
             recorded AS (
                 INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body,
                                     tenant_id, correlation_id, causation_id, actor, recorded_at)
                 SELECT event_id, category, stream_id, version, name, schema_version, body, $8, $9, $10, $11, $12
                   FROM rows ORDER BY ord),
             announced AS (
                 INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                            payload, deliver_at, tenant_id, trace_id, correlation_id, causation_id,
                                            occurred_at, available_at)
                 SELECT event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload, deliver_at,
                        $8, $22, $9, $10, $12, $12
                   FROM unnest($13::uuid[], $14::text[], $15::uuid[], $16::text[], $17::smallint[], $18::text[],
                               $19::text[], $20::jsonb[], $21::timestamptz[])
                        WITH ORDINALITY AS r (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                              payload, deliver_at, ord)
                  ORDER BY ord),
             noticed AS (
                 INSERT INTO notifications (task_id, task_version, tenant_id, state)
                 SELECT * FROM unnest($23::uuid[], $24::bigint[], $25::uuid[], $26::text[])
                 ON CONFLICT DO NOTHING)
             UPDATE inbox_dedup SET phase = 'done', result_code = $29, result_detail = $30, processed_at = clock_timestamp()
              WHERE consumer_name = $27 AND event_id = $28 AND phase = 'claimed';

-- eventstore.attempt_origin
SELECT (body->>'task')::uuid, tenant_id, correlation_id FROM events
              WHERE category = 'attempt' AND stream_id = $1 AND version = 1;

-- eventstore.check_schema
SELECT version FROM _sqlx_migrations WHERE success;

-- eventstore.claim
INSERT INTO inbox_dedup AS row (consumer_name, event_id, aggregate_id, phase, payload_hash)
             VALUES ($1, $2, $3, 'claimed', $4)
             ON CONFLICT (consumer_name, event_id) DO UPDATE SET deliveries = row.deliveries + 1
             RETURNING phase, clock_timestamp();

-- eventstore.claim_key
INSERT INTO idempotency_keys (tenant_id, operation, key, fingerprint, result) VALUES ($1, $2, $3, $4, 'null')
             ON CONFLICT DO NOTHING;

-- eventstore.correlation
SELECT correlation_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1;

-- eventstore.generation_request
SELECT prompt FROM generation_requests WHERE task_id = $1 AND tenant_id = $2;

-- eventstore.keep_result
UPDATE idempotency_keys SET result = $4 WHERE tenant_id = $1 AND operation = $2 AND key = $3;

-- eventstore.load
SELECT e.*
               FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS wanted (category, stream_id, version)
              CROSS JOIN LATERAL (
                    SELECT category, stream_id, version, name, schema_version, body FROM events
                     WHERE category = wanted.category AND stream_id = wanted.stream_id AND version >= wanted.version
                     ORDER BY version LIMIT $4) AS e;

-- eventstore.notify
SELECT set_config('synchronous_commit', 'off', true),
                    CASE WHEN $1 THEN pg_notify('aivideo_events', '') END,
                    CASE WHEN $2 THEN pg_notify('aivideo_outbox', '') END;

-- eventstore.now
SELECT clock_timestamp();

-- eventstore.quarantine
INSERT INTO message_quarantine AS row (consumer_name, original_event_id, topic, message_key, payload_hash,
                                                    payload_snapshot, error_class, error_message)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT ON CONSTRAINT quarantine_once
             DO UPDATE SET delivery_count = row.delivery_count + 1, last_failed_at = clock_timestamp();

-- eventstore.queue_up
SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k ORDER BY k;

-- eventstore.read_key
SELECT fingerprint, result FROM idempotency_keys WHERE tenant_id = $1 AND operation = $2 AND key = $3;

-- eventstore.read_log
SELECT position, event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                causation_id, actor, recorded_at
           FROM events WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3;

-- eventstore.record_callback
INSERT INTO provider_callbacks (provider, delivery_id, attempt_id, task_id, job_id, body_sha256)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING;

-- eventstore.record_upload
INSERT INTO uploads (asset_id, tenant_id, object_key, bytes, sha256, content_type)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (asset_id) DO NOTHING;

-- eventstore.repair
INSERT INTO repairs (task_id, state, message, event_id) VALUES ($1, $2, $3, $4);

-- eventstore.store_request
INSERT INTO generation_requests (task_id, tenant_id, prompt) VALUES ($1, $2, $3);

-- eventstore.tenant_of
SELECT tenant_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1;

-- eventstore.uploads
SELECT asset_id, object_key, bytes, sha256, content_type FROM uploads
              WHERE tenant_id = $1 AND asset_id = ANY ($2);

-- fold.asset_stored
INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at,
                                  position)
         SELECT $1, task_id, tenant_id, $3, $4, $5, $6, $7, $8, $9 FROM read_tasks WHERE task_id = $2;

-- fold.attempt_changed
UPDATE read_attempts
            SET version = $2, state = coalesce($3, state), wake_at = CASE WHEN $3 IS NULL THEN wake_at ELSE $4 END,
                round = coalesce($5, round), provider_job_id = coalesce($6, provider_job_id),
                -- Progress never goes back, whatever a provider says.
                percent = greatest(percent, $7), polls = polls + $8,
                orphans = CASE WHEN $9::text IS NULL THEN orphans ELSE orphans || $9 END,
                error_class = coalesce($10, error_class), error_code = coalesce($11, error_code),
                error_message = coalesce($12, error_message),
                submit_started_at = CASE WHEN $13 THEN $15 ELSE submit_started_at END,
                submit_finished_at = CASE WHEN $13 THEN NULL WHEN $14 THEN coalesce(submit_finished_at, $15)
                                          ELSE submit_finished_at END,
                updated_at = $15, position = $16
          WHERE attempt_id = $1 AND version = $2 - 1
         RETURNING task_id, number;

-- fold.attempt_planned
INSERT INTO read_attempts (attempt_id, task_id, tenant_id, version, number, provider, state, created_at, updated_at,
                                    position)
         VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $7, $8);

-- fold.current_attempt
SELECT attempt_no FROM read_tasks WHERE task_id = $1;

-- fold.hold_closed
WITH rest AS (UPDATE read_tasks SET wake_at = NULL WHERE task_id = $1 AND finished_at IS NOT NULL)
         UPDATE read_holds SET settled = $3, released = $4, state = $5, updated_at = $6, position = $7
          WHERE task_id = $1 AND account_id = $2 AND state = $8;

-- fold.hold_opened
INSERT INTO read_holds (task_id, account_id, reserved, state, expires_at, updated_at, position)
         VALUES ($1, $2, $3, $4, $5, $6, $7);

-- fold.posted
WITH entry AS (
             INSERT INTO read_account_entries (account_id, version, kind, business_key, amount, charged, created_at, position)
             VALUES ($1, $2, $3, $4, $5, $7, $9, $10))
         INSERT INTO read_accounts AS a (account_id, tenant_id, version, available, held, charged, refunded, updated_at, position)
         SELECT $1, $1, $2, $5, $6, $7, $8, $9, $10
          WHERE $2 = 1 OR EXISTS (SELECT FROM read_accounts WHERE account_id = $1)
         ON CONFLICT (account_id) DO UPDATE
            SET version = $2, available = a.available + $5, held = a.held + $6, charged = a.charged + $7,
                refunded = a.refunded + $8, updated_at = $9, position = $10
          WHERE a.version = $2 - 1;

-- fold.read
SELECT position, category, stream_id, version, name, schema_version, body, tenant_id, recorded_at
           FROM events WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3;

-- fold.refunded
UPDATE read_holds SET refunded = refunded + $3, updated_at = $4, position = $5
          WHERE task_id = $1 AND account_id = $2 AND state = $6 AND refunded + $3 <= settled;

-- fold.task_changed
UPDATE read_tasks
            SET version = $2,
                state = CASE WHEN $3::text IS NULL OR stays THEN read_tasks.state
                             WHEN canceled_by IS NULL THEN $3 ELSE coalesce($16, $3) END,
                wake_at = CASE WHEN $4 OR stays THEN wake_at ELSE $5 END,
                attempt_no = coalesce($6, attempt_no), charge = coalesce($7, charge),
                error_class = coalesce($8, error_class), error_code = coalesce($9, error_code),
                error_message = coalesce($10, error_message),
                review_reason = CASE WHEN stays THEN review_reason ELSE $11 END,
                canceled_by = coalesce($12, canceled_by), updated_at = $13,
                finished_at = CASE WHEN $14 THEN $13 ELSE finished_at END, position = $15
           FROM (SELECT $17 AND state = $18 AS stays FROM read_tasks WHERE task_id = $1) review
          WHERE task_id = $1 AND version = $2 - 1;

-- fold.task_submitted
INSERT INTO read_tasks (task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold,
                                 wake_at, created_at, updated_at, position)
         VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- fold.video_measured
UPDATE read_assets
            SET duration_millis = $2, width = $3, height = $4, video_codec = $5, audio_codec = $6, position = $7
          WHERE task_id = $1 AND kind = 'video';

-- fold.wake_task
UPDATE read_tasks
            SET wake_at = CASE WHEN attempt_no = $2 AND state <> ALL ($4) THEN $3 ELSE wake_at END
          WHERE task_id = $1;

-- operations.counts
SELECT (SELECT count(*) FROM message_quarantine WHERE status = 'parked'),
                (SELECT count(*) FROM repairs WHERE created_at > clock_timestamp() - interval '1 hour');

-- operations.tasks
SELECT state, count(*) FROM read_tasks GROUP BY state ORDER BY state;

-- projections.account
SELECT account_id, tenant_id, version, available, held, charged, refunded, updated_at
               FROM read_accounts WHERE account_id = $1 AND tenant_id = $2;

-- projections.asset
SELECT asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, duration_millis, width, height,
                    video_codec, audio_codec, created_at
               FROM read_assets
              WHERE asset_id = $1 AND ($2::uuid IS NULL OR tenant_id = $2);

-- projections.assets
SELECT asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, duration_millis, width, height,
                    video_codec, audio_codec, created_at
               FROM read_assets
              WHERE task_id = ANY ($1) AND ($2::uuid IS NULL OR tenant_id = $2)
              ORDER BY task_id, kind DESC;

-- projections.attempt
SELECT attempt_id, task_id, tenant_id, version, number, provider, state, provider_job_id, round, polls, percent,
                    orphans, error_class, error_code, error_message, submit_started_at, submit_finished_at, created_at,
                    updated_at
               FROM read_attempts
              WHERE attempt_id = $1 AND ($2::uuid IS NULL OR tenant_id = $2);

-- projections.attempts
SELECT attempt_id, task_id, tenant_id, version, number, provider, state, provider_job_id, round, polls, percent,
                    orphans, error_class, error_code, error_message, submit_started_at, submit_finished_at, created_at,
                    updated_at
               FROM read_attempts
              WHERE task_id = ANY ($1) AND ($2::uuid IS NULL OR tenant_id = $2)
              ORDER BY task_id, number;

-- projections.entries
SELECT version, kind, business_key, amount, charged, created_at
               FROM read_account_entries WHERE account_id = $1 AND version < $2 ORDER BY version DESC LIMIT $3;

-- projections.history
WITH found AS MATERIALIZED (
                 SELECT * FROM events WHERE category = 'task' AND stream_id = $1
                 UNION ALL
                 SELECT * FROM events WHERE category = 'attempt' AND stream_id = ANY ($2)
                 UNION ALL
                 SELECT * FROM events
                  WHERE category = 'account' AND stream_id = $3 AND body->>'task' = $1::text)
             SELECT position, category, stream_id, version, name, schema_version, recorded_at, actor, correlation_id,
                    causation_id, body
               FROM found WHERE position > $4 ORDER BY position LIMIT $5;

-- projections.history_outline
SELECT first.tenant_id, (first.body->'order'->>'account')::uuid,
                    (SELECT coalesce(max((e.body->>'attempt_no')::int), 0) FROM events e
                      WHERE e.category = 'task' AND e.stream_id = $1 AND e.name = 'task.submission_begun')
               FROM events first WHERE first.category = 'task' AND first.stream_id = $1 AND first.version = 1;

-- projections.ping
SELECT 1;

-- projections.stalled
SELECT task_id, (extract(epoch FROM clock_timestamp()) / 30)::bigint
               FROM read_tasks t
              WHERE wake_at < clock_timestamp() - make_interval(secs => $1)
                AND NOT EXISTS (SELECT 1 FROM repairs r WHERE r.task_id = t.task_id
                                   AND r.created_at > clock_timestamp() - interval '30 seconds')
              ORDER BY wake_at LIMIT $2;

-- projections.task_exists
SELECT tenant_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1;

-- projections.tasks_where
SELECT task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold, charge,
        attempt_no, error_class, error_code, error_message, review_reason, created_at, updated_at, finished_at
   FROM read_tasks WHERE true;

-- projector.announce
SELECT pg_notify('aivideo_read', jsonb_build_object('t', task_id, 'v', version, 'tenant', tenant_id)::text)
           FROM read_tasks WHERE task_id = ANY ($1);

-- projector.create_checkpoint
INSERT INTO projection_checkpoints (name, position) VALUES ($1, 0) ON CONFLICT DO NOTHING;

-- projector.lock
SELECT position FROM projection_checkpoints, set_config('synchronous_commit', 'off', true)
              WHERE name = $1 FOR UPDATE OF projection_checkpoints SKIP LOCKED;

-- projector.lock_waiting
SELECT position FROM projection_checkpoints WHERE name = $1 FOR UPDATE;

-- projector.note
UPDATE projection_checkpoints
                SET fault = $2, fault_position = $3,
                    fault_at = CASE WHEN fault_position = $3 THEN fault_at ELSE clock_timestamp() END
              WHERE name = $1;

-- projector.readable
SELECT up_to, held_back_by FROM readable_position();

-- projector.save_checkpoint
UPDATE projection_checkpoints
            SET position = $2, updated_at = clock_timestamp(), fault = NULL, fault_position = NULL, fault_at = NULL
          WHERE name = $1;

-- projector.status
SELECT coalesce(c.position, 0) AS position, r.up_to AS readable, r.held_back_by, b.events AS behind_events,
                coalesce(extract(epoch FROM clock_timestamp() - b.oldest), 0)::float8 AS behind_seconds,
                c.fault, c.fault_position,
                extract(epoch FROM clock_timestamp() - c.fault_at)::float8 AS fault_seconds
           FROM readable_position() r
           LEFT JOIN projection_checkpoints c ON c.name = $1
          CROSS JOIN LATERAL (SELECT count(*) AS events, min(recorded_at) AS oldest FROM events
                               WHERE position > coalesce(c.position, 0)) b;

-- relay.claim
WITH due AS (
             SELECT o.id FROM outbox_events o
              WHERE o.published_at IS NULL AND o.parked_at IS NULL AND o.available_at <= statement_timestamp()
                AND (o.lease_until IS NULL OR o.lease_until <= statement_timestamp())
                AND o.id <= coalesce(
                    (SELECT e.id FROM outbox_events e
                      WHERE e.aggregate_id = o.aggregate_id AND e.published_at IS NULL AND e.parked_at IS NULL
                        AND (e.deliver_at IS NULL OR e.deliver_at <= statement_timestamp() + interval '2 days')
                      ORDER BY e.id LIMIT 1), o.id)
              ORDER BY o.available_at, o.id
              LIMIT $1
                FOR UPDATE SKIP LOCKED)
         UPDATE outbox_events o
            SET lease_token = $2, lease_until = clock_timestamp() + $3 * interval '1 millisecond',
                publish_attempts = o.publish_attempts + 1
           FROM due, set_config('synchronous_commit', 'off', true) WHERE o.id = due.id
         RETURNING o.id, o.lease_token, o.publish_attempts, o.event_id, o.original_event_id, o.aggregate_type, o.aggregate_id,
                   o.event_type, o.schema_version, o.topic, o.tag, o.payload, o.tenant_id, o.trace_id, o.correlation_id,
                   o.causation_id, o.occurred_at, o.deliver_at,
                   coalesce(o.deliver_at > statement_timestamp() + interval '2 days', false) AS is_far_ahead;

-- relay.give_back
UPDATE outbox_events o SET lease_token = NULL, lease_until = NULL
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL;

-- relay.mark_failed
WITH changed AS (
             UPDATE outbox_events o
                SET available_at = clock_timestamp() + r.pause * interval '1 millisecond',
                    refusals = CASE WHEN r.permanent THEN o.refusals + 1 ELSE 0 END,
                    parked_at = CASE WHEN r.permanent AND o.refusals + 1 >= $7 THEN clock_timestamp() END,
                    last_error_code = r.code, last_error = r.text, lease_token = NULL, lease_until = NULL
               FROM unnest($1::bigint[], $2::uuid[], $3::boolean[], $4::text[], $5::text[], $6::bigint[])
                    AS r (id, token, permanent, code, text, pause)
              WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL
             RETURNING o.id, o.parked_at, o.last_error_code)
         SELECT id, last_error_code FROM changed WHERE parked_at IS NOT NULL;

-- relay.mark_published
UPDATE outbox_events o SET published_at = clock_timestamp(), lease_token = NULL, lease_until = NULL, refusals = 0
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token), set_config('synchronous_commit', 'off', true)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL;

-- relay.next_due
SELECT (extract(epoch FROM min(available_at) - clock_timestamp()) * 1000)::float8 FROM outbox_events
          WHERE published_at IS NULL AND parked_at IS NULL AND available_at > statement_timestamp();

-- relay.postpone
UPDATE outbox_events o
            SET available_at = o.deliver_at - interval '2 days', publish_attempts = o.publish_attempts - 1,
                lease_token = NULL, lease_until = NULL
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL;

-- relay.prune_inbox
DELETE FROM inbox_dedup WHERE (consumer_name, event_id) IN (
             SELECT consumer_name, event_id FROM inbox_dedup
              WHERE processed_at < statement_timestamp() - $1 * interval '1 second' AND phase = 'done'
              ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED);

-- relay.prune_published
DELETE FROM outbox_events WHERE id IN (
             SELECT id FROM outbox_events WHERE published_at < statement_timestamp() - $1 * interval '1 second'
              ORDER BY published_at LIMIT $2 FOR UPDATE SKIP LOCKED);

-- relay.release_parked
WITH released AS (
             UPDATE outbox_events SET parked_at = NULL, refusals = 0, available_at = clock_timestamp()
              WHERE parked_at IS NOT NULL AND published_at IS NULL
             RETURNING id)
         SELECT pg_notify('aivideo_outbox', '') FROM released;

-- relay.status
SELECT count(*) FILTER (WHERE parked_at IS NULL) AS unsent,
                coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (
                    WHERE parked_at IS NULL
                      AND (deliver_at IS NULL OR deliver_at <= clock_timestamp() + interval '2 days'))), 0)::float8
                    AS oldest_seconds,
                count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked
           FROM outbox_events WHERE published_at IS NULL;

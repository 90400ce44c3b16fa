//! Messages that can never be handled: one row each, acknowledged, alarmed. They block nobody.

use crate::connect::Store;
use crate::delivery::{Ack, Again, Delivery, Outcome};
use domain::message::{BadMessage, Envelope};
use sha2::{Digest, Sha256};

/// How much of a body is kept for the person who looks at it.
const SNAPSHOT_BYTES: usize = 64 * 1024;

impl Store {
    /// Puts a delivery into quarantine; the same one again is counted, not repeated.
    pub(crate) async fn quarantine(
        &self,
        consumer: &'static str,
        delivery: &Delivery,
        envelope: Option<&Envelope>,
        bad: &BadMessage,
    ) -> Result<Ack, Again> {
        let kept = &delivery.body[..delivery.body.len().min(SNAPSHOT_BYTES)];
        let text = bad.to_string().replace('\0', "\u{fffd}");
        sqlx::query(
            "/* eventstore.quarantine */
             INSERT INTO message_quarantine AS row (consumer_name, original_event_id, topic, message_key, payload_hash,
                                                    payload_snapshot, error_class, error_message)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT ON CONSTRAINT quarantine_once
             DO UPDATE SET delivery_count = row.delivery_count + 1, last_failed_at = clock_timestamp()",
        )
        .bind(consumer)
        .bind(envelope.map(|it| it.event_id.0))
        .bind(&delivery.topic)
        .bind(delivery.key.as_ref().map(|key| key.replace('\0', "\u{fffd}")))
        .bind(Sha256::digest(&delivery.body).as_slice())
        .bind(kept)
        .bind(bad.class())
        .bind(&text)
        .execute(&self.pool)
        .await
        .map_err(|error| Again::Database(Box::new(error)))?;
        tracing::error!(consumer, topic = %delivery.topic, class = bad.class(), error = %text, "a message is in quarantine");
        Ok(Ack::new(Outcome::Parked))
    }
}

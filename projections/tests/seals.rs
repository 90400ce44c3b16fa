//! What `aivideo doctor` says of the seals.

use anyhow::Result;
use eventstore::audit::{Sealer, SigningKey, TrustedKeys};
use projections::doctor::{Finding, Limits, tamper_evident};
use sqlx::PgPool;
use std::time::Duration;

mod support;

async fn doctor(pool: &PgPool, trusted: &TrustedKeys, unsealed: u64) -> Result<Finding> {
    let limits = Limits { unsealed: Duration::from_secs(unsealed), ..Limits::default() };
    Ok(tamper_evident(pool, trusted, limits).await?)
}

#[tokio::test]
async fn the_doctor_looks_at_the_newest_seals_and_at_what_is_not_sealed() -> Result<()> {
    support::on_database(looks).await
}

async fn looks(pool: PgPool) -> Result<()> {
    sqlx::query(
        "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                 causation_id, actor, recorded_at)
             SELECT gen_random_uuid(), 'task', gen_random_uuid(), 1, 'test.happened', 1, '{}', gen_random_uuid(),
                    gen_random_uuid(), gen_random_uuid(), 'user:test', clock_timestamp() - interval '1 minute'
               FROM generate_series(1, 5)",
        )
        .execute(&pool).await?;
    let key = SigningKey::from_seed([7; 32]);
    let trusted: TrustedKeys = [key.public()].into_iter().collect();
    let off = doctor(&pool, &TrustedKeys::default(), 30).await?;
    assert!(off.ok && off.detail.contains("sealing is off"), "{off:?}");
    assert!(doctor(&pool, &trusted, 90).await?.ok, "they are young");
    let late = doctor(&pool, &trusted, 30).await?;
    assert!(!late.ok && late.detail.contains("5 events are not sealed"), "{late:?}");
    Sealer::new(pool.clone(), key, 2, Duration::ZERO).catch_up().await?;
    let sealed = doctor(&pool, &trusted, 30).await?;
    assert!(sealed.ok && sealed.detail.contains("5 events of the newest 3 seals"), "{sealed:?}");
    assert!(!doctor(&pool, &TrustedKeys::default(), 30).await?.ok, "signed, and no key to believe");
    sqlx::query("ALTER TABLE events DISABLE TRIGGER USER").execute(&pool).await?;
    sqlx::query("UPDATE events SET actor = 'me' WHERE position = 4").execute(&pool).await?;
    let changed = doctor(&pool, &trusted, 30).await?;
    assert_eq!((changed.ok, changed.count), (false, 1));
    assert!(changed.detail.contains("version 1 at position 4 is not as it was sealed"), "{changed:?}");
    Ok(())
}

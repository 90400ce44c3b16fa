//! Whatever is done to the seals is found; a log that was cut off, by a seal that was kept elsewhere.

use super::{Anyhow, against, edited, key, record, report, restore, sealed_history, sealer, trusted};
use eventstore::audit::{
    Finding, Scope, SealError, SealStep, Sealer, SigningKey, TrustedKeys, latest_seals, seal_status, verify,
};
use serde_json::json;
use uuid::Uuid;

#[tokio::test]
async fn every_column_of_a_seal_is_guarded() -> Anyhow {
    let database = sealed_history().await?;
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'seals' ORDER BY ordinal_position",
    )
    .fetch_all(database.pool())
    .await?;
    let edits = [
        ("number", "number + 100"),
        ("first_position", "first_position - 1"),
        ("last_position", "last_position + 1"),
        ("events", "events + 1"),
        ("root", "sha256('x')"),
        ("previous", "sha256('x')"),
        ("sealed_at", "sealed_at + interval '1 microsecond'"),
        ("key_id", "'0123456789abcdef'"),
        ("signature", "set_byte(signature, 3, get_byte(signature, 3) # 1)"),
    ];
    assert_eq!(columns, edits.map(|(column, _)| column), "seals have columns that this test does not edit");
    for number in 1..=3 {
        for (column, value) in edits {
            let edit = format!("UPDATE seals SET {column} = {value} WHERE number = {number}");
            let findings = edited(&database, &edit).await?;
            let named = findings.iter().any(|it| match it {
                Finding::SealChanged(named) => *named == number || *named == number + 100,
                Finding::UnknownKey { number: named, .. } => column == "key_id" && *named == number,
                _ => false,
            });
            assert!(named, "{edit}: {findings:?}");
            // The events are not blamed.
            assert!(findings.iter().all(|it| it.stream().is_none()), "{edit}: {findings:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_seal_is_named() -> Anyhow {
    let database = sealed_history().await?;
    for number in 1..=2 {
        let findings = edited(&database, &format!("DELETE FROM seals WHERE number = {number}")).await?;
        assert_eq!(findings, [Finding::SealDeleted(number)]);
    }
    // A changed one before a hole does not hide it.
    let findings =
        edited(&database, "UPDATE seals SET events = 7 WHERE number = 1; DELETE FROM seals WHERE number = 2").await?;
    assert_eq!(findings, [Finding::SealChanged(1), Finding::SealDeleted(2)]);
    // Of the last one only its hashes tell.
    let findings = edited(&database, "DELETE FROM seals WHERE number = 3").await?;
    assert_eq!(findings, [Finding::HashesUnsealed { count: 3, first: 14 }]);
    Ok(())
}

#[tokio::test]
async fn seals_of_a_strange_key_are_named() -> Anyhow {
    let database = sealed_history().await?;
    let other: TrustedKeys = [SigningKey::from_seed([8; 32]).public()].into_iter().collect();
    let report = verify(database.pool(), &other, &[], Scope::All, |_| {}).await?;
    assert_eq!(report.findings, [Finding::UnknownKey { number: 1, key: key().public().id() }]);
    assert_eq!((report.seals, report.events), (3, 15));
    Ok(())
}

/// Whoever cuts the log off cleanly is found out by an exported seal only, whether or not it is sealed anew.
#[tokio::test]
async fn a_log_that_was_cut_off_is_found_by_an_exported_seal() -> Anyhow {
    let database = sealed_history().await?;
    let exported = latest_seals(database.pool(), 1).await?;
    assert_eq!(against(&database, &exported).await?, []);
    database
        .sql("DELETE FROM events WHERE position >= 14; DELETE FROM event_hashes WHERE position >= 14; DELETE FROM seals WHERE number = 3")
        .await?;
    assert_eq!(report(&database).await?.findings, [], "nothing in the database can tell");
    assert_eq!(against(&database, &exported).await?, [Finding::CutOff(3)]);
    record(&database, "task", Uuid::from_u128(9), 1, json!({})).await?;
    sealer(&database, 6).catch_up().await?;
    assert_eq!(against(&database, &exported).await?, [Finding::Replaced(3)]);
    restore(&database).await?;
    let mut forged = exported;
    forged[0].seal.events += 1;
    assert_eq!(against(&database, &forged).await?, [Finding::ExportedForged(3)]);
    Ok(())
}

/// A sealer that runs does not seal anew what was cut back behind its back.
#[tokio::test]
async fn a_running_sealer_refuses_a_log_that_was_cut_back() -> Anyhow {
    let database = sealed_history().await?;
    let sealer = sealer(&database, 6);
    assert_eq!(sealer.step().await?, SealStep::Nothing);
    database.sql("DELETE FROM event_hashes WHERE position >= 14; DELETE FROM seals WHERE number = 3").await?;
    assert!(matches!(sealer.step().await, Err(SealError::CutBack { number: 3 })));
    database.sql("UPDATE events SET actor = 'me' WHERE position = 14").await?;
    super::sealer(&database, 6).catch_up().await?;
    assert!(matches!(sealer.step().await, Err(SealError::CutBack { number: 3 })), "another one is in its place");
    assert_eq!(report(&database).await?.findings, []);
    restore(&database).await?;
    assert_eq!(sealer.step().await?, SealStep::Nothing);
    // Hashes that stand where the next ones belong: said, not written over.
    record(&database, "task", Uuid::from_u128(9), 1, json!({})).await?;
    database
        .sql("INSERT INTO event_hashes SELECT 17, category, stream_id, 9, hash FROM event_hashes WHERE position = 2")
        .await?;
    assert!(matches!(sealer.step().await, Err(SealError::Occupied)));
    Ok(())
}

/// A seal that nobody signed could end the sealing in silence, by pretending that all is sealed.
#[tokio::test]
async fn a_sealer_does_not_go_on_from_a_seal_that_it_can_not_believe() -> Anyhow {
    let database = sealed_history().await?;
    record(&database, "task", Uuid::from_u128(9), 1, json!({})).await?;
    database
        .sql(
            "INSERT INTO seals SELECT 4, 17, 1000000, 5, root, previous, sealed_at, key_id, signature FROM seals WHERE number = 3",
        )
        .await?;
    let stopped = sealer(&database, 6).step().await;
    assert!(matches!(stopped, Err(SealError::Untrusted { number: 4, .. })), "{stopped:?}");
    assert!(report(&database).await?.findings.contains(&Finding::SealChanged(4)));
    database.sql("DELETE FROM seals WHERE number = 4").await?;
    // A new key goes on where the old one is known.
    let (old, new) = (key().public(), SigningKey::from_seed([9; 32]));
    let renewed = || Sealer::new(database.pool().clone(), new.clone(), 6, std::time::Duration::ZERO);
    assert!(matches!(renewed().step().await, Err(SealError::Untrusted { number: 3, .. })));
    let both: TrustedKeys = [old, new.public()].into_iter().collect();
    assert_eq!(renewed().trusting(both.clone()).catch_up().await?, 1);
    let report = verify(database.pool(), &both, &[], Scope::All, |_| {}).await?;
    assert_eq!((report.findings.len(), report.seals), (0, 4));
    Ok(())
}

/// The quick look: the newest seals and what they seal, no more.
#[tokio::test]
async fn the_newest_seals_can_be_verified_alone() -> Anyhow {
    let database = sealed_history().await?;
    let newest = async |count| verify(database.pool(), &trusted(), &[], Scope::Newest(count), |_| {}).await;
    let report = newest(1).await?;
    assert_eq!((report.seals, report.events, report.findings.len()), (1, 3, 0));
    database.sql("UPDATE events SET actor = 'me' WHERE position IN (1, 15)").await?;
    assert_eq!(newest(1).await?.findings.len(), 1);
    assert_eq!(newest(2).await?.findings.len(), 1);
    assert_eq!(newest(3).await?.findings.len(), 2);
    assert_eq!(newest(9).await?.findings.len(), 2);
    let status = seal_status(database.pool()).await?;
    assert_eq!((status.newest.map(|it| it.seal.number), status.unsealed), (Some(3), 0));
    Ok(())
}

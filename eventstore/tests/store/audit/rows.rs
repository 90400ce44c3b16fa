//! Whatever is done to the hashes is found too, and told apart from what is done to events.

use super::{Anyhow, edited, events, hashes, report, restore, sealed_history};
use eventstore::audit::{Finding, Hash, StreamName, event_hash};
use std::collections::HashMap;

#[tokio::test]
async fn every_column_of_a_hash_row_is_guarded() -> Anyhow {
    let database = sealed_history().await?;
    for position in [1, 9, 16] {
        for change in
            ["hash = sha256('x')", "category = 'attempt'", "stream_id = gen_random_uuid()", "version = version + 1"]
        {
            let findings =
                edited(&database, &format!("UPDATE event_hashes SET {change} WHERE position = {position}")).await?;
            let named = matches!(&findings[..], [Finding::HashChanged(it)] if it.position == position);
            assert!(named, "{change} at {position}: {findings:?}");
        }
        let findings = edited(&database, &format!("DELETE FROM event_hashes WHERE position = {position}")).await?;
        let named = matches!(&findings[..], [Finding::HashDeleted(it)] if it.position == position);
        assert!(named, "deleted at {position}: {findings:?}");
    }
    let findings = edited(&database, "UPDATE event_hashes SET position = 7 WHERE position = 9").await?;
    assert_eq!(findings.iter().map(Finding::kind).collect::<Vec<_>>(), ["inserted", "deleted"], "{findings:?}");
    let add =
        "INSERT INTO event_hashes SELECT 7, category, stream_id, 9, sha256('x') FROM event_hashes WHERE position = 2";
    let findings = edited(&database, add).await?;
    assert!(matches!(&findings[..], [Finding::HashInserted(it)] if it.position == 7), "{findings:?}");
    let ahead =
        "INSERT INTO event_hashes SELECT 800, category, stream_id, 9, hash FROM event_hashes WHERE position = 2";
    let findings = edited(&database, ahead).await?;
    assert_eq!(findings, [Finding::HashesUnsealed { count: 1, first: 800 }]);
    Ok(())
}

/// An event is edited and its hash with it: the next event of its stream no longer fits, and the seal does not.
#[tokio::test]
async fn an_event_edited_together_with_its_hash_is_found() -> Anyhow {
    let database = sealed_history().await?;
    let events = events(&database).await?;
    let mut forged = events[3].clone();
    forged.actor = "me".to_owned();
    let previous = hashes(&database).await?[0];
    let hash = event_hash(&forged, previous)?;
    let position = forged.position;
    let findings = edited(
        &database,
        &format!(
            "UPDATE events SET actor = 'me' WHERE position = {position};
             UPDATE event_hashes SET hash = decode('{hash}', 'hex') WHERE position = {position}"
        ),
    )
    .await?;
    assert!(findings.iter().any(|it| matches!(it, Finding::IntervalChanged { number: 1, sealed: 6, now: 6, .. })));
    Ok(())
}

/// Somebody who knows the format edits an event and computes all hashes anew: only the signature is beyond them.
#[tokio::test]
async fn a_log_that_was_hashed_anew_is_found_by_its_seals() -> Anyhow {
    let database = sealed_history().await?;
    database.sql("UPDATE events SET actor = 'me' WHERE position = 4").await?;
    let mut ends: HashMap<StreamName, Hash> = HashMap::new();
    for event in events(&database).await? {
        let stream = StreamName { category: event.category.clone(), id: event.stream_id };
        let hash = event_hash(&event, ends.get(&stream).copied().unwrap_or(Hash::ZERO))?;
        ends.insert(stream, hash);
        sqlx::query("UPDATE event_hashes SET hash = $2 WHERE position = $1")
            .bind(event.position)
            .bind(hash.0.as_slice())
            .execute(database.owner())
            .await?;
    }
    let findings = report(&database).await?.findings;
    let seals: Vec<_> =
        findings.iter().map(|it| if let Finding::IntervalChanged { number, .. } = it { *number } else { 0 }).collect();
    // Its stream goes on in every later seal.
    assert_eq!(seals, [1, 2, 3], "{findings:?}");
    restore(&database).await?;
    assert!(report(&database).await?.findings.is_empty());
    Ok(())
}

/// An event that was deleted before it was sealed leaves a hole in the versions.
#[tokio::test]
async fn a_hole_from_before_the_seal_is_named() -> Anyhow {
    let database = sealed_history().await?;
    database.sql("DELETE FROM event_hashes; DELETE FROM seals; DELETE FROM events WHERE position = 4").await?;
    super::sealer(&database, 6).catch_up().await?;
    let findings = report(&database).await?.findings;
    assert!(
        matches!(&findings[..], [Finding::OutOfSequence { at, after: 1 }] if at.version == 3 && at.position == 8),
        "{findings:?}"
    );
    Ok(())
}

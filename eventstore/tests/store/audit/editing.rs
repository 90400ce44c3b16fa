//! Whatever is edited in the log is found, and named.

use super::{Anyhow, edited, events, sealed_history};
use eventstore::LoggedEvent;
use eventstore::audit::{Finding, Place, StreamName};
use eventstore::testkit::TestDatabase;

fn place(event: &LoggedEvent) -> Place {
    let stream = StreamName { category: event.category.clone(), id: event.stream_id };
    Place { stream, version: event.version, position: event.position }
}

/// What each column is changed to. A column that is not here fails the test: it would not be known whether the hash covers it.
const EDITS: &[(&str, &[&str])] = &[
    ("position", &["position + 1000000", "position - 1000000"]),
    ("event_id", &["gen_random_uuid()"]),
    ("category", &["'attempt'", "''"]),
    ("stream_id", &["gen_random_uuid()"]),
    ("version", &["version + 100"]),
    ("name", &["name || 'x'", "upper(name)", "''"]),
    ("schema_version", &["schema_version + 1"]),
    (
        "body",
        &[
            "jsonb_set(body, '{n}', '999')",
            "jsonb_set(body, '{n}', to_jsonb((body->>'n')::numeric + 0.0))",
            "jsonb_set(body, '{n}', '1e400')",
            "jsonb_set(body, '{what}', '\"a paper boat\"')",
            "body - 'what'",
            "body || '{\"more\": null}'",
            "body #- '{é,0}'",
            "'null'",
        ],
    ),
    ("tenant_id", &["gen_random_uuid()"]),
    ("correlation_id", &["gen_random_uuid()"]),
    ("causation_id", &["gen_random_uuid()"]),
    ("actor", &["'user:somebody else'"]),
    ("recorded_at", &["recorded_at + interval '1 microsecond'", "'infinity'", "'-infinity'", "'4000-01-01 BC'"]),
];

async fn columns(database: &TestDatabase) -> Anyhow<Vec<String>> {
    let columns = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'events' ORDER BY ordinal_position",
    );
    Ok(columns.fetch_all(database.pool()).await?)
}

#[tokio::test]
async fn every_column_of_an_event_is_guarded() -> Anyhow {
    let database = sealed_history().await?;
    let known: Vec<&str> = EDITS.iter().map(|(column, _)| *column).collect();
    assert_eq!(columns(&database).await?, known, "the log has columns that this test does not edit");
    let events = events(&database).await?;
    // The first, one amid a stream and a seal, and the last.
    for event in [&events[0], &events[8], &events[14]] {
        let place = place(event);
        for (column, values) in EDITS {
            for value in *values {
                let edit = format!("UPDATE events SET {column} = {value} WHERE position = {}", event.position);
                let findings = edited(&database, &edit).await?;
                let (first, rest) = findings.split_first().ok_or_else(|| format!("not found: {edit}"))?;
                match first {
                    Finding::Changed { sealed, .. } => assert_eq!((sealed, rest), (&place, &[][..]), "{edit}"),
                    // Where it went to, it is a stranger too.
                    Finding::Reordered { sealed, .. } if *column == "position" => assert_eq!(sealed, &place, "{edit}"),
                    // Moved before all others, it is met there first.
                    Finding::Inserted(stranger) if *column == "position" => {
                        assert_eq!((&stranger.stream, stranger.version), (&place.stream, place.version), "{edit}");
                        assert!(
                            matches!(rest, [Finding::Reordered { sealed, .. }] if *sealed == place),
                            "{edit}: {rest:?}"
                        );
                    }
                    other => return Err(format!("{edit}: {other}").into()),
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_event_is_named_and_nothing_else() -> Anyhow {
    let database = sealed_history().await?;
    for event in events(&database).await? {
        let findings = edited(&database, &format!("DELETE FROM events WHERE position = {}", event.position)).await?;
        assert_eq!(findings, [Finding::Deleted(place(&event))]);
    }
    let findings = edited(&database, "DELETE FROM events").await?;
    assert_eq!(findings.len(), 15, "{findings:?}");
    Ok(())
}

#[tokio::test]
async fn an_inserted_event_is_named() -> Anyhow {
    let database = sealed_history().await?;
    let hole: i64 = 7;
    for (position, version, stream) in [(hole, 6, "stream_id"), (hole, 1, "gen_random_uuid()"), (-3, 6, "stream_id")] {
        let edit = format!(
            "INSERT INTO events SELECT {position}, gen_random_uuid(), category, {stream}, {version}, name, schema_version, body,
                                       tenant_id, correlation_id, causation_id, actor, recorded_at
               FROM events WHERE position = 1"
        );
        let findings = edited(&database, &edit).await?;
        let named =
            matches!(&findings[..], [Finding::Inserted(it)] if (it.position, it.version) == (position, version));
        assert!(named, "{edit}: {findings:?}");
    }
    // Where the log has not come to yet, nothing is sealed; but nobody was given that position.
    let beyond =
        "INSERT INTO events SELECT 900, gen_random_uuid(), category, gen_random_uuid(), 1, name, schema_version, body,
                                            tenant_id, correlation_id, causation_id, actor, recorded_at
                    FROM events WHERE position = 1";
    let findings = edited(&database, beyond).await?;
    assert!(matches!(&findings[..], [Finding::BeyondTheEnd(it)] if it.position == 900), "{findings:?}");
    Ok(())
}

/// Two events change places: within a seal, and across seals.
#[tokio::test]
async fn reordered_events_are_named() -> Anyhow {
    let database = sealed_history().await?;
    for (a, b) in [(1, 2), (2, 12)] {
        let swap = format!(
            "UPDATE events SET position = -1 WHERE position = {a}; UPDATE events SET position = {a} WHERE position = {b};
             UPDATE events SET position = {b} WHERE position = -1"
        );
        let mut findings = edited(&database, &swap).await?;
        findings.sort_by_key(|it| if let Finding::Reordered { now, .. } = it { *now } else { i64::MAX });
        let [Finding::Reordered { sealed: x, now: to_a }, Finding::Reordered { sealed: y, now: to_b }] = &findings[..]
        else {
            return Err(format!("{findings:?}").into());
        };
        assert_eq!((x.position, *to_a, y.position, *to_b), (b, a, a, b));
    }
    // Into the hole: it is missed where it was, and strange where it is.
    let findings = edited(&database, "UPDATE events SET position = 7 WHERE position = 2").await?;
    let kinds: Vec<_> = findings.iter().map(Finding::kind).collect();
    assert_eq!(kinds, ["reordered", "inserted"], "{findings:?}");
    Ok(())
}

/// Several edits at once are each named.
#[tokio::test]
async fn many_edits_are_all_named() -> Anyhow {
    let database = sealed_history().await?;
    let findings = edited(
        &database,
        "UPDATE events SET actor = 'me' WHERE position IN (1, 4, 13); DELETE FROM events WHERE position = 5",
    )
    .await?;
    let named: Vec<_> = findings
        .iter()
        .map(|it| {
            (
                it.kind(),
                if let Finding::Changed { sealed: it, .. } | Finding::Deleted(it) = it { it.position } else { 0 },
            )
        })
        .collect();
    let mut sorted = named.clone();
    sorted.sort_by_key(|it| it.1);
    assert_eq!(sorted, [("changed", 1), ("changed", 4), ("deleted", 5), ("changed", 13)]);
    Ok(())
}

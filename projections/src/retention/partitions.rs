//! The tables of days: made ahead, dropped when they are over. The work itself is done by functions of the database that run as
//! the owner of the tables (see the migration); they wait a quarter of a second for a lock and then give up.

use super::{RetentionConfig, Round};
use rand::RngExt;
use sqlx::PgConnection;
use std::time::Duration;

/// How often a lock is tried for before the next round has to.
const TRIES: u32 = 5;
/// Most tables dropped in one round.
const MOST: i64 = 100;

/// Makes the tables of today and the next days that are missing. Says how many it made. Days whose tables can not be made just
/// now are left to the next round: their rows go to the rest meanwhile.
///
/// # Errors
/// The database can not be used.
pub async fn make_ahead(connection: &mut PgConnection, days: u16) -> Result<u64, sqlx::Error> {
    let mut made = 0;
    for day in 0..=i32::from(days) {
        let mut tries = 0;
        made += loop {
            tries += 1;
            let answer = sqlx::query_scalar::<_, i32>(
                "/* retention.make_ahead */ SELECT make_message_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date + $1)",
            )
            .bind(day)
            .fetch_one(&mut *connection)
            .await;
            match answer {
                Ok(count) => break u64::from(count.unsigned_abs()),
                Err(error) if !is_in_the_way(&error) => return Err(error),
                Err(_) if tries < TRIES => pause().await,
                Err(error) => {
                    tracing::warn!(day, error = &error as &dyn std::error::Error, "a day's tables are made later");
                    break 0;
                }
            }
        };
    }
    Ok(made)
}

pub(super) async fn drop_old(
    connection: &mut PgConnection,
    config: &RetentionConfig,
    round: &mut Round,
) -> Result<(), sqlx::Error> {
    let over: Vec<(String, i32)> = sqlx::query_as(
        "/* retention.over */
         SELECT name, days
           FROM (SELECT name, ends, CASE parent WHEN 'inbox_dedup' THEN $1 ELSE $2 END AS days FROM message_partitions) it
          WHERE ends < clock_timestamp() - make_interval(days => days) ORDER BY ends LIMIT $3",
    )
    .bind(i32::from(config.inbox_days))
    .bind(i32::from(config.sent_days))
    .bind(MOST)
    .fetch_all(&mut *connection)
    .await?;
    for (name, days) in over {
        match drop_one(connection, &name, days).await? {
            None => round.dropped.push(name),
            Some(reason) => round.kept.push((name, reason)),
        }
    }
    Ok(())
}

/// `None`: it is dropped; else why it is not.
async fn drop_one(connection: &mut PgConnection, name: &str, days: i32) -> Result<Option<String>, sqlx::Error> {
    for _ in 0..TRIES {
        let answer =
            sqlx::query_scalar("/* retention.drop_old */ SELECT drop_message_partition($1, make_interval(days => $2))")
                .bind(name)
                .bind(days)
                .fetch_one(&mut *connection)
                .await;
        match answer {
            Err(error) if is_in_the_way(&error) => pause().await,
            other => return other,
        }
    }
    Ok(Some("others use it or the whole table in long transactions".to_owned()))
}

/// A lock that was not to be had in time (55P03) or would have led to a deadlock (40P01); or rows of the day came to the rest
/// while its table was being made (23514).
fn is_in_the_way(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|it| it.code());
    matches!(code.as_deref(), Some("55P03" | "40P01" | "23514"))
}

async fn pause() {
    let millis = rand::rng().random_range(100..=400);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

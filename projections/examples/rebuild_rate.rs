//! How fast a rebuild is, beside a plain `COPY` of the same rows.
//!
//! `DATABASE_URL=… cargo run --release -p projections --example rebuild_rate -- 1000000 5` multiplies the histories that the
//! database has, under fresh ids, to that many events; then it copies, reads, rebuilds and verifies, in turn, so many rounds.

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use projections::rebuild::{read_only, rebuild, verify};
use sqlx::PgPool;
use std::time::{Duration, Instant};

/// So many copies of the histories happen at the same time.
const AT_ONCE: i64 = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL names a database with some histories in it")?;
    let wanted: i64 = std::env::args().nth(1).context("say how many events there shall be")?.parse()?;
    let rounds: usize = std::env::args().nth(2).context("say how many rounds")?.parse()?;
    let pool = PgPool::connect(&url).await?;
    eventstore::MIGRATOR.run(&pool).await?;
    multiply(&pool, wanted).await?;
    let mut taken = [const { Vec::new() }; 4];
    let mut events = 0;
    for round in 1..=rounds {
        let (copied, copying) = timed(copy(&pool)).await?;
        let (read, reading) = timed(async { Ok(read_only(&pool).await?) }).await?;
        let (done, rebuilding) = timed(async { Ok(rebuild(&pool, |_| ()).await?) }).await?;
        let (tables, verifying) = timed(async { Ok(verify(&pool, |_| ()).await?) }).await?;
        ensure!(tables.iter().all(|table| table.is_equal()), "{tables:?}");
        ensure!(done.events == read, "{} folded, {read} read", done.events);
        events = read;
        let round_is = [copying, reading, rebuilding, verifying];
        println!("round {round}: {} MB; copy, read, rebuild, verify: {round_is:.2?}", copied >> 20);
        for (all, one) in taken.iter_mut().zip(round_is) {
            all.push(one);
        }
    }
    let copying = median(&mut taken[0]);
    for (what, all) in ["copy", "read", "rebuild", "verify"].into_iter().zip(&mut taken) {
        let seconds = median(all);
        println!(
            "{what:<8} {seconds:>7.2} s  {:>9.0} events/s  {:>4.0} % of copy",
            events as f64 / seconds,
            100.0 * copying / seconds
        );
    }
    Ok(())
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    let result = work.await?;
    Ok((result, begun.elapsed()))
}

fn median(all: &mut [Duration]) -> f64 {
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64()
}

async fn copy(pool: &PgPool) -> Result<usize> {
    let mut connection = pool.acquire().await?;
    let mut stream = connection.copy_out_raw("COPY (SELECT * FROM events ORDER BY position) TO STDOUT").await?;
    let mut bytes = 0;
    while let Some(chunk) = stream.try_next().await? {
        bytes += chunk.len();
    }
    Ok(bytes)
}

/// Every id keeps its first 20 digits and gets the number of the copy for the last 12, wherever it stands.
async fn multiply(pool: &PgPool, wanted: i64) -> Result<()> {
    let have: i64 = sqlx::query_scalar("SELECT count(*) FROM events").fetch_one(pool).await?;
    ensure!(have > 0, "the database has no history to begin with");
    let copies = (wanted - have).max(0).div_euclid(have);
    println!("{have} events, and {copies} copies of them");
    for first in (1..=copies).step_by(100) {
        sqlx::query(
            r"INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                  causation_id, actor, recorded_at)
              SELECT gen_random_uuid(), category, (left(stream_id::text, 24) || last)::uuid, version, name, schema_version,
                     regexp_replace(body::text, '([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-)[0-9a-f]{12}', '\1' || last,
                                    'g')::jsonb,
                     (left(tenant_id::text, 24) || last)::uuid, correlation_id, causation_id, actor,
                     recorded_at + make_interval(secs => copy)
                FROM generate_series($1, $2) AS copy CROSS JOIN LATERAL (SELECT lpad(to_hex(copy), 12, '0') AS last) AS id
               CROSS JOIN (SELECT * FROM events ORDER BY position LIMIT $3) AS known
               ORDER BY copy / $4, position, copy",
        )
        .bind(first)
        .bind((first + 99).min(copies))
        .bind(have)
        .bind(AT_ONCE)
        .execute(pool)
        .await?;
    }
    sqlx::query("VACUUM (ANALYZE) events").execute(pool).await?;
    Ok(())
}

//! `aivideo status`: what is unsent, waiting, stuck or in quarantine.

use crate::audit::at;
use crate::config::Settings;
use admission::{Desk, Kind, WhenDown};
use eventstore::Store;
use eventstore::audit::seal_status;
use projections::horizon::horizon;
use projections::operations::operations;
use projections::projector::projection_status;
use projections::relay::relay_status;
use projections::subscription::{GroupStatus, group_status};
use std::time::Duration;

/// Prints the status of a running system.
///
/// # Errors
/// The database can not be used. A broker that does not answer is part of the status.
pub async fn print(settings: &Settings) -> anyhow::Result<()> {
    let store = Store::open(settings.database()?, settings.policy.clone()).await?;
    let outbox = relay_status(store.pool()).await?;
    println!(
        "outbox       {} unsent, the oldest for {:.1} s; {} parked",
        outbox.unsent, outbox.oldest_seconds, outbox.parked
    );
    let read = projection_status(store.pool()).await?;
    println!(
        "read models  at position {} of {}, {}{} events and {:.1} s behind",
        read.position,
        read.readable,
        if read.is_reckoned() { "about " } else { "" },
        read.behind_events,
        read.behind_seconds
    );
    if let Some(it) = &read.held_back_by {
        println!(
            "             held back by database session {} ({:?}, {}), whose transaction is open for {:.1} s",
            it.pid, it.application, it.state, it.seconds
        );
    }
    if let Some(fault) = &read.fault {
        println!("             STOPPED at position {:?}: {fault}", read.fault_position);
    }
    group_status(store.pool()).await?.iter().for_each(print_readers);
    print_seals(&store, settings).await?;
    let counts = operations(store.pool()).await?;
    for (state, count) in &counts.tasks {
        println!("tasks        {count:>8} {state}");
    }
    for (it, processes) in store.outages().await? {
        println!(
            "provider     {} FAILS since {} ({}): {processes} processes leave it alone, and look again at {}",
            it.provider,
            it.since.format("%F %T UTC"),
            it.cause,
            it.looks_at.format("%T")
        );
    }
    let unmatched = store.unmatched_callbacks().await?;
    if unmatched > 0 {
        println!(
            "callbacks    {unmatched} of attempts that nobody knows: was the database put back to an earlier time?"
        );
    }
    println!("quarantine   {} messages", counts.quarantined);
    println!("repairs      {} in the last hour", counts.repairs_last_hour);
    let horizon = horizon(store.pool()).await?;
    for holder in horizon.older_than(Duration::from_secs(settings.retention.snapshot_seconds)) {
        println!("snapshot     {holder}: dead rows pile up until it ends");
    }
    if horizon.hidden > 0 {
        println!("snapshot     {} sessions of other roles can not be seen: grant pg_read_all_stats", horizon.hidden);
    }
    print_admission(settings).await?;
    print_lag(settings).await;
    store.close().await;
    Ok(())
}

/// A group of readers of the log, of this program or of others.
fn print_readers(group: &GroupStatus) {
    let idle = group.partitions.iter().filter(|it| it.member.is_none()).count();
    println!(
        "readers      {}: {} members, {} partitions{}, {}{} events and {:.1} s behind",
        group.group,
        group.members,
        group.partitions.len(),
        if idle > 0 { format!(" ({idle} of them read by nobody)") } else { String::new() },
        if group.is_reckoned() { "about " } else { "" },
        group.behind_events(),
        group.slowest().map_or(0.0, |it| it.behind_seconds)
    );
}

async fn print_seals(store: &Store, settings: &Settings) -> anyhow::Result<()> {
    let status = seal_status(store.pool()).await?;
    match &status.newest {
        Some(it) => {
            println!("seals        up to position {}, by seal {} of {}", it.seal.last_position, it.seal.number, at(it))
        }
        None => println!("seals        none"),
    }
    if status.unsealed > 0 {
        println!("             {} events not sealed, the oldest for {:.1} s", status.unsealed, status.oldest_seconds);
    }
    // With a verification key alone this machine is one that only looks.
    if settings.audit.trusted().is_empty() {
        println!("             SEALING IS OFF: no audit.signing_key (AIVIDEO_AUDIT__SIGNING_KEY) is set");
    }
    Ok(())
}

/// Only Redis can be asked from here; each process that counts for itself knows only by itself.
async fn print_admission(settings: &Settings) -> anyhow::Result<()> {
    let config = &settings.admission;
    let desk = Desk::new(config)?;
    if desk.is_open() {
        println!("admission    nothing is limited");
        return Ok(());
    }
    if config.kind == Kind::Process {
        println!("admission    each process counts for itself");
        return Ok(());
    }
    match desk.count().await {
        Ok(count) => {
            let providers: Vec<String> =
                count.providers.iter().map(|(name, held)| format!("{held} at {name}")).collect();
            println!(
                "admission    Redis: {} slots held ({}), {} of them kept for tasks that were called; {} tasks wait",
                count.held,
                if providers.is_empty() { "none".to_owned() } else { providers.join(", ") },
                count.called,
                count.waiting
            );
            if count.lost {
                println!("             its counts are lost: the next worker that runs makes them again");
            }
        }
        Err(error) => {
            let how = match config.when_down {
                WhenDown::Admit => "each process admits by its own counts",
                WhenDown::Wait => "nothing is submitted",
            };
            println!("admission    Redis DOES NOT ANSWER ({error}): {how}");
        }
    }
    Ok(())
}

async fn print_lag(settings: &Settings) {
    let lag = async {
        let client = messaging::client::Client::new(settings.broker.clone())?;
        let lag = messaging::admin::lag(&client).await;
        client.stop(Duration::from_secs(2)).await;
        anyhow::Ok(lag?)
    };
    match tokio::time::timeout(Duration::from_secs(15), lag).await {
        Ok(Ok(lag)) => {
            for it in lag {
                println!("group        {:>8} waiting in {} for {}", it.waiting, it.topic, it.group.name());
            }
        }
        Ok(Err(error)) => println!("broker       does not answer: {error}"),
        Err(_) => println!("broker       does not answer"),
    }
}

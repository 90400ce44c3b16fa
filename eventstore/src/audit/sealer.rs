//! The sealer: reads the log like any other reader, and writes hashes and seals behind it. See docs/decisions/0008.

use super::AuditConfig;
use super::chain::{Hash, NO_LINK, Place, StreamName, event_hash, links_before, write_hashes};
use super::keys::{KeyId, SigningKey, TrustedKeys};
use super::merkle::RootBuilder;
use super::seal::{Seal, SealFormat, SignedSeal, newest_seals, write_seal};
use crate::logged::{LoggedEvent, read_log};
use domain::time::Timestamp;
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The lock of the one who seals. The top byte keeps it apart from the locks of writers (7) and streams (9).
const SEALING: i64 = 10 << 56;

/// Pause between two looks, where a full batch is not waiting.
const TICK: Duration = Duration::from_secs(1);
/// Longest pause after a fault.
const FAULT_CAP: Duration = Duration::from_secs(30);

/// Why nothing could be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[source] sqlx::Error),
    /// Something could not be written as JSON.
    #[error("a value could not be encoded")]
    Encode(#[from] serde_json::Error),
    /// The computing of a seal was cut off, because the process ends.
    #[error("the computing of a seal was cut off")]
    CutOff(#[from] tokio::task::JoinError),
    /// Hash rows or a seal are already where the next ones belong.
    #[error("there are hashes after the last seal, which no sealer wrote: `aivideo audit verify` says where")]
    Occupied,
    /// The newest seal has no signature that can be believed: what it says may be there to stop the sealing.
    #[error(
        "the newest seal, {number}, has no valid signature of a known key ({key}): after a change of keys, the old one belongs in \
         audit.verification_keys; otherwise `aivideo audit verify` says more"
    )]
    Untrusted {
        /// The seal.
        number: i64,
        /// The key that it names.
        key: KeyId,
    },
    /// A seal that this process has made or met is gone, or another one stands in its place.
    #[error(
        "seal {number} is not in the database as it was made: the log was cut back or restored. Compare it with an exported seal \
         (`aivideo audit verify --against FILE`); restart the sealer to accept the database as it is"
    )]
    CutBack {
        /// The seal.
        number: i64,
    },
}

impl From<sqlx::Error> for SealError {
    fn from(error: sqlx::Error) -> Self {
        let occupied = error.as_database_error().is_some_and(|it| it.is_unique_violation());
        if occupied { Self::Occupied } else { Self::Database(error) }
    }
}

/// What one step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealStep {
    /// Another sealer is at it.
    Standby,
    /// There is nothing to seal, or it may wait for more.
    Nothing,
    /// A seal was made, and more may be waiting.
    Sealed(Box<SignedSeal>),
}

/// Seals the log. Several may run: one works, the others stand by.
#[derive(Debug)]
pub struct Sealer {
    pool: PgPool,
    key: SigningKey,
    trusted: TrustedKeys,
    batch: u32,
    every: Duration,
    /// Number and digest of the newest seal that was made or met here.
    newest: Mutex<Option<(i64, Hash)>>,
}

impl Sealer {
    /// A sealer that makes a seal of `batch` events, or of those there are once the last seal is older than `every`.
    #[must_use]
    pub fn new(pool: PgPool, key: SigningKey, batch: u32, every: Duration) -> Self {
        let trusted = [key.public()].into_iter().collect();
        Self { pool, key, trusted, batch, every, newest: Mutex::default() }
    }

    /// With these keys for the seals that are there already.
    #[must_use]
    pub fn trusting(self, trusted: TrustedKeys) -> Self {
        Self { trusted, ..self }
    }

    /// A sealer as it is configured; `None` where there is no key to sign with.
    #[must_use]
    pub fn configured(pool: &PgPool, config: &AuditConfig) -> Option<Self> {
        let key = config.signing_key.clone()?;
        Some(Self::new(pool.clone(), key, config.seal_events, config.every()).trusting(config.trusted()))
    }

    /// Seals until `stop` is ready. A fault never ends it: it is logged, and tried again.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut faults: u32 = 0;
        loop {
            // A step that is cut off leaves nothing behind: it is one transaction.
            let step = tokio::select! {
                biased;
                () = &mut stop => return,
                step = self.step() => step,
            };
            let pause = match step {
                Ok(SealStep::Sealed(signed)) => {
                    faults = 0;
                    log(&signed.seal);
                    Duration::ZERO
                }
                Ok(SealStep::Standby | SealStep::Nothing) => {
                    faults = 0;
                    TICK
                }
                Err(error) => {
                    faults += 1;
                    let fault = &error as &dyn std::error::Error;
                    match &error {
                        SealError::Database(_) => tracing::warn!(error = fault, faults, "the sealer waits"),
                        _ => tracing::error!(error = fault, faults, "nothing is sealed"),
                    }
                    FAULT_CAP.min(TICK * (1 << (faults - 1).min(5)))
                }
            };
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Makes one seal, if one is due, in one transaction with the hashes that it is over.
    ///
    /// # Errors
    /// [`SealError`].
    pub async fn step(&self) -> Result<SealStep, SealError> {
        self.seal(self.every).await
    }

    /// Seals everything that may be read now, whether or not it is time. For tools and tests; says how many events it sealed.
    ///
    /// # Errors
    /// [`SealError`].
    pub async fn catch_up(&self) -> Result<i64, SealError> {
        let mut events = 0;
        loop {
            match self.seal(Duration::ZERO).await? {
                SealStep::Sealed(signed) => events += signed.seal.events,
                SealStep::Nothing => return Ok(events),
                SealStep::Standby => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn seal(&self, every: Duration) -> Result<SealStep, SealError> {
        let mut tx = self.pool.begin().await?;
        if !alone(&mut tx).await? {
            tx.rollback().await?;
            return Ok(SealStep::Standby);
        }
        // Statements of their own, before the one that reads the rows: what had ended by now is visible to that one.
        let last = newest_seals(&mut tx, 1).await?.pop();
        self.compare(last.as_ref())?;
        let (up_to, now) = readable(&mut tx).await?;
        let due = last.as_ref().is_none_or(|it| (now - it.seal.sealed_at).abs().to_std().is_ok_and(|age| age >= every));
        let sealed = last.as_ref().map_or(0, |it| it.seal.last_position);
        let batch = i64::from(self.batch);
        if !due && up_to - sealed < batch {
            tx.rollback().await?;
            return Ok(SealStep::Nothing);
        }
        let events = read_log(&mut tx, sealed, up_to, batch).await?;
        if events.is_empty() {
            tx.rollback().await?;
            return Ok(SealStep::Nothing);
        }
        let links = links_before(&mut tx, &firsts(&events).iter().collect::<Vec<_>>(), sealed + 1).await?;
        let before = links.into_iter().map(|(stream, link)| (stream, link.hash)).collect();
        let key = self.key.clone();
        // Some ten milliseconds of computing: not on a thread that serves others.
        let computed = tokio::task::spawn_blocking(move || compute(events, before, last.as_ref(), now, &key));
        let (events, hashes, signed) = computed.await??;
        write_hashes(&mut tx, &events, &hashes).await?;
        write_seal(&mut tx, &signed).await?;
        tx.commit().await?;
        self.remember(&signed)?;
        Ok(SealStep::Sealed(Box::new(signed)))
    }

    /// Whoever removes the newest seals could have what they changed sealed anew, by our own key. As long as a sealer runs, it
    /// knows better.
    fn compare(&self, last: Option<&SignedSeal>) -> Result<(), SealError> {
        let known = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, digest)) = known {
            let same = match last {
                None => false,
                Some(it) if it.seal.number == number => it.seal.digest()? == digest,
                Some(it) => it.seal.number > number,
            };
            if !same {
                return Err(SealError::CutBack { number });
            }
        }
        let Some(last) = last else { return Ok(()) };
        if last.check(&self.trusted).is_err() {
            return Err(SealError::Untrusted { number: last.seal.number, key: last.seal.key.clone() });
        }
        self.remember(last)
    }

    fn remember(&self, signed: &SignedSeal) -> Result<(), SealError> {
        let newest = Some((signed.seal.number, signed.seal.digest()?));
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = newest;
        Ok(())
    }
}

/// The log of the process often goes elsewhere: there the digest is a witness that nobody can change in the database.
fn log(seal: &Seal) {
    let digest = seal.digest().map(|it| it.to_string()).unwrap_or_default();
    tracing::info!(number = seal.number, events = seal.events, up_to = seal.last_position, %digest, "sealed");
}

async fn alone(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("/* audit.alone */ SELECT pg_try_advisory_xact_lock($1)")
        .bind(SEALING)
        .fetch_one(connection)
        .await
}

async fn readable(connection: &mut PgConnection) -> Result<(i64, Timestamp), sqlx::Error> {
    sqlx::query_as("/* audit.readable */ SELECT up_to, clock_timestamp() FROM readable_position()")
        .fetch_one(connection)
        .await
}

/// The first event of each stream in a batch.
fn firsts(events: &[LoggedEvent]) -> Vec<Place> {
    let mut seen = std::collections::HashSet::new();
    events.iter().filter(|it| seen.insert((it.category.as_str(), it.stream_id))).map(Place::of).collect()
}

type Computed = (Vec<LoggedEvent>, Vec<Hash>, SignedSeal);

fn compute(
    events: Vec<LoggedEvent>,
    mut before: HashMap<StreamName, Hash>,
    last: Option<&SignedSeal>,
    now: Timestamp,
    key: &SigningKey,
) -> Result<Computed, SealError> {
    let mut root = RootBuilder::default();
    let mut hashes = Vec::with_capacity(events.len());
    for event in &events {
        let stream = StreamName { category: event.category.clone(), id: event.stream_id };
        let end = before.entry(stream).or_insert(NO_LINK.hash);
        *end = event_hash(event, *end)?;
        root.push(*end);
        hashes.push(*end);
    }
    let sealed = last.map_or(0, |it| it.seal.last_position);
    let seal = Seal {
        format: SealFormat::V1,
        number: last.map_or(1, |it| it.seal.number + 1),
        first_position: sealed + 1,
        last_position: events.last().map_or(sealed, |it| it.position),
        events: i64::try_from(events.len()).unwrap_or(i64::MAX),
        root: root.root(),
        previous: last.map_or(Ok(Hash::ZERO), |it| it.seal.digest())?,
        sealed_at: now,
        key: key.public().id(),
    };
    Ok((events, hashes, seal.sign(key)?))
}

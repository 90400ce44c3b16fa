//! Verifying the log against its seals: page by page, so that any log fits.

mod finding;
mod interval;

pub use finding::Finding;

use super::Hash;
use super::chain::{HashRow, Link, Place, StreamName, links_before, read_hashes};
use super::keys::{KeyId, TrustedKeys};
use super::seal::{Seal, SignatureFault, SignedSeal, seals_after};
use super::status::{SealStatus, seal_status};
use crate::logged::{LoggedEvent, read_log, read_log_at};
use interval::Interval;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use std::collections::{HashMap, HashSet, VecDeque};

/// Events that are in memory at a time.
const PAGE: i64 = 4096;
/// Seals that are read at a time.
const SEALS: i64 = 64;
/// Findings that are kept; the rest is counted.
const KEPT: usize = 1000;

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[from] sqlx::Error),
    /// Something could not be written as JSON.
    #[error("a value could not be encoded")]
    Encode(#[from] serde_json::Error),
}

/// What is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that was sealed.
    All,
    /// The newest seals, so many, and what they seal.
    Newest(u32),
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Verified up to here.
    pub position: i64,
    /// The last sealed position.
    pub up_to: i64,
    /// Events seen so far.
    pub events: u64,
}

/// What a verification came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What is not as it was sealed, in the order of positions.
    pub findings: Vec<Finding>,
    /// Findings beyond those that are kept.
    pub left_out: u64,
    /// Events that were compared.
    pub events: u64,
    /// Seals that were compared.
    pub seals: u64,
    /// How far the log was sealed when it began. What is not sealed yet, nobody can vouch for.
    pub status: SealStatus,
}

impl Report {
    fn find(&mut self, finding: Finding) {
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        } else {
            self.left_out += 1;
        }
    }
}

/// Verifies the log: every event against its hash, the hashes against the seals, the seals against each other, against the keys
/// that are believed, and against seals that were exported. Reads only, and holds no transaction open.
///
/// # Errors
/// [`VerifyError`]. Findings are no errors: they are in the report.
pub async fn verify(
    pool: &PgPool,
    trusted: &TrustedKeys,
    exported: &[SignedSeal],
    scope: Scope,
    progress: impl FnMut(Progress) + Send,
) -> Result<Report, VerifyError> {
    let status = seal_status(pool).await?;
    let report = Report { findings: vec![], left_out: 0, events: 0, seals: 0, status };
    let mut run = Verification {
        connection: pool.acquire().await?,
        trusted,
        report,
        position: i64::MIN,
        number: 0,
        digest: Some(Hash::ZERO),
        corrections: HashMap::new(),
        unknown: HashSet::new(),
        progress,
    };
    run.start(scope).await?;
    run.seals().await?;
    run.ends().await?;
    for signed in exported {
        run.compare_exported(signed).await?;
    }
    Ok(run.report)
}

struct Verification<'a, P> {
    connection: PoolConnection<Postgres>,
    trusted: &'a TrustedKeys,
    report: Report,
    /// Verified up to here.
    position: i64,
    /// The last seal that was verified.
    number: i64,
    /// Its digest, where it can be believed.
    digest: Option<Hash>,
    /// Ends of chains that the tables do not tell as they were sealed.
    corrections: HashMap<StreamName, Link>,
    unknown: HashSet<KeyId>,
    progress: P,
}

impl<P: FnMut(Progress) + Send> Verification<'_, P> {
    /// Goes to where the scope begins.
    async fn start(&mut self, scope: Scope) -> Result<(), VerifyError> {
        let (Scope::Newest(count), Some(newest)) = (scope, &self.report.status.newest) else { return Ok(()) };
        let before = newest.seal.number.saturating_sub(count.into());
        if before > 0
            && let Some(base) = seals_after(&mut self.connection, before - 1, 1).await?.pop()
            && base.seal.number < newest.seal.number
        {
            self.position = base.seal.last_position;
            self.number = base.seal.number;
            self.digest = Some(base.seal.digest()?);
        }
        Ok(())
    }

    async fn seals(&mut self) -> Result<(), VerifyError> {
        let Some(newest) = self.report.status.newest.as_ref().map(|it| it.seal.number) else { return Ok(()) };
        let mut waiting: VecDeque<SignedSeal> = VecDeque::new();
        let mut read = self.number;
        loop {
            if waiting.len() < 2 && read < newest {
                let more = seals_after(&mut self.connection, read, SEALS).await?;
                read = more.last().map_or(newest, |it| it.seal.number);
                waiting.extend(more.into_iter().filter(|it| it.seal.number <= newest));
            }
            let Some(signed) = waiting.pop_front() else { return Ok(()) };
            self.seal(signed, waiting.front().map(|it| it.seal.first_position)).await?;
        }
    }

    /// Verifies one seal and its interval. `next_first`: where the seal after it begins.
    async fn seal(&mut self, signed: SignedSeal, next_first: Option<i64>) -> Result<(), VerifyError> {
        let seal = &signed.seal;
        let believed = match signed.check(self.trusted) {
            Ok(()) => true,
            Err(SignatureFault::UnknownKey) => {
                if self.unknown.insert(seal.key.clone()) {
                    self.report.find(Finding::UnknownKey { number: seal.number, key: seal.key.clone() });
                }
                true
            }
            Err(SignatureFault::Forged) => {
                self.report.find(Finding::SealChanged(seal.number));
                false
            }
        };
        if believed {
            self.follow(seal).await?;
            self.interval(seal.last_position, Some(seal)).await?;
        } else {
            // What it says of itself is worth nothing: it ends where the next one begins.
            let end = next_first.map_or(seal.last_position, |first| first - 1);
            self.interval(end, None).await?;
        }
        self.digest = if believed { Some(seal.digest()?) } else { None };
        // The number of a changed one may be anything: it stands where the next one belongs.
        self.number = if believed { seal.number } else { self.number + 1 };
        self.report.seals += 1;
        Ok(())
    }

    /// Whether a seal follows the one before it; what lies between them where some are gone is compared with its hashes alone.
    async fn follow(&mut self, seal: &Seal) -> Result<(), VerifyError> {
        if seal.number != self.number + 1 {
            for number in (self.number + 1..seal.number).take(KEPT) {
                self.report.find(Finding::SealDeleted(number));
            }
            return self.interval(seal.first_position - 1, None).await;
        }
        let Some(digest) = self.digest else { return Ok(()) };
        let begins = if seal.number == 1 { 1 } else { self.position.saturating_add(1) };
        if seal.previous != digest || seal.first_position != begins {
            self.report.find(Finding::SealOutOfSequence(seal.number));
        }
        Ok(())
    }

    /// Verifies the events from where it stands up to a position.
    async fn interval(&mut self, up_to: i64, seal: Option<&Seal>) -> Result<(), VerifyError> {
        let begins_before = self.position.saturating_add(1);
        let mut interval = Interval::default();
        let mut at = self.position;
        while at < up_to {
            let (events, rows, end) = self.page(at, up_to).await?;
            self.begin_streams(&mut interval, &events, begins_before).await?;
            merge(&mut interval, events, rows)?;
            at = end;
        }
        self.position = at;
        let judged = interval.judge(seal);
        self.report.events += judged.events;
        self.report.left_out += judged.left_out;
        judged.findings.into_iter().for_each(|it| self.report.find(it));
        for (row, now) in judged.missing {
            let finding = self.look_for(row, now).await?;
            self.report.find(finding);
        }
        self.corrections.extend(judged.corrections);
        let up_to = self.report.status.newest.as_ref().map_or(0, |it| it.seal.last_position);
        (self.progress)(Progress { position: self.position, up_to, events: self.report.events });
        Ok(())
    }

    /// Reads events and hashes of the next positions, and says up to where both are complete.
    async fn page(&mut self, after: i64, up_to: i64) -> Result<(Vec<LoggedEvent>, Vec<HashRow>, i64), VerifyError> {
        let (mut events, events_end) = self.events(after, up_to).await?;
        let mut rows = read_hashes(&mut self.connection, after, up_to, PAGE).await?;
        let rows_end =
            if rows.len() as i64 == PAGE { rows.last().map_or(up_to, |it| it.place.position) } else { up_to };
        let end = events_end.min(rows_end);
        events.retain(|it| it.position <= end);
        rows.retain(|it| it.place.position <= end);
        Ok((events, rows, end))
    }

    async fn events(&mut self, after: i64, up_to: i64) -> Result<(Vec<LoggedEvent>, i64), VerifyError> {
        let (events, read, last) = match read_log(&mut self.connection, after, up_to, PAGE).await {
            Ok(events) => {
                let last = events.last().map(|it| it.position);
                let read = events.len();
                (events, read, last)
            }
            // Somebody put in what no reader of ours can read, such as a number beyond all bounds. It counts as gone.
            Err(sqlx::Error::ColumnDecode { .. }) => {
                let positions = self.positions(after, up_to).await?;
                let mut events = Vec::with_capacity(positions.len());
                for position in &positions {
                    match read_log_at(&mut self.connection, &[*position]).await {
                        Ok(one) => events.extend(one),
                        Err(sqlx::Error::ColumnDecode { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                (events, positions.len(), positions.last().copied())
            }
            Err(error) => return Err(error.into()),
        };
        Ok((events, if read as i64 == PAGE { last.unwrap_or(up_to) } else { up_to }))
    }

    async fn positions(&mut self, after: i64, up_to: i64) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(
            "/* audit.positions */
             SELECT position FROM events WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3",
        )
        .bind(after)
        .bind(up_to)
        .bind(PAGE)
        .fetch_all(&mut *self.connection)
        .await
    }

    /// Looks up where the chains stood that go on here.
    async fn begin_streams(
        &mut self,
        interval: &mut Interval,
        events: &[LoggedEvent],
        before: i64,
    ) -> Result<(), VerifyError> {
        let mut new: HashMap<StreamName, Place> = HashMap::new();
        for place in events.iter().map(Place::of).filter(|it| !interval.knows(&it.stream)) {
            // By the highest version: one that is out of its place may be the first to be met.
            let highest = new.entry(place.stream.clone()).or_insert_with(|| place.clone());
            highest.version = highest.version.max(place.version);
        }
        let mut links = links_before(&mut self.connection, &new.values().collect::<Vec<_>>(), before).await?;
        for stream in new.into_keys() {
            let stored = links.remove(&stream);
            let corrected = self.corrections.get(&stream).copied();
            let link = stored.into_iter().chain(corrected).max_by_key(|it| it.position);
            if let Some(link) = link {
                interval.begin(stream, link);
            }
        }
        Ok(())
    }

    /// Where a sealed event is that is not in its place.
    async fn look_for(&mut self, row: HashRow, now: Option<Place>) -> Result<Finding, sqlx::Error> {
        let sealed = row.place;
        let elsewhere: Option<i64> = sqlx::query_scalar(
            "/* audit.look_for */
             SELECT position FROM events WHERE category = $1 AND stream_id = $2 AND version = $3 ORDER BY position LIMIT 1",
        )
        .bind(&sealed.stream.category)
        .bind(sealed.stream.id)
        .bind(sealed.version)
        .fetch_optional(&mut *self.connection)
        .await?;
        Ok(match (elsewhere, now) {
            (Some(position), _) if position != sealed.position => Finding::Reordered { sealed, now: position },
            (Some(_), _) => Finding::Changed { sealed, now: None },
            (None, None) => Finding::Deleted(sealed),
            (None, now) => Finding::Changed { sealed, now },
        })
    }

    /// What is after the last seal, and can not be there.
    async fn ends(&mut self) -> Result<(), VerifyError> {
        let (count, first): (i64, Option<i64>) = sqlx::query_as(
            "/* audit.hashes_unsealed */
             SELECT count(*), min(position) FROM event_hashes
              WHERE position > (SELECT coalesce(max(last_position), $1) FROM seals)",
        )
        .bind(i64::MIN)
        .fetch_one(&mut *self.connection)
        .await?;
        if let Some(first) = first {
            self.report.find(Finding::HashesUnsealed { count, first });
        }
        let beyond: Vec<(String, uuid::Uuid, i64, i64)> = sqlx::query_as(
            "/* audit.beyond_the_end */
             SELECT category, stream_id, version, position FROM events
              WHERE position > (SELECT last_value FROM events_position_seq) ORDER BY position LIMIT 100",
        )
        .fetch_all(&mut *self.connection)
        .await?;
        for (category, id, version, position) in beyond {
            let place = Place { stream: StreamName { category, id }, version, position };
            self.report.find(Finding::BeyondTheEnd(place));
        }
        Ok(())
    }

    async fn compare_exported(&mut self, signed: &SignedSeal) -> Result<(), VerifyError> {
        let number = signed.seal.number;
        if signed.check(self.trusted).is_err() {
            self.report.find(Finding::ExportedForged(number));
            return Ok(());
        }
        let stored = seals_after(&mut self.connection, number.saturating_sub(1), 1).await?.pop();
        match stored.filter(|it| it.seal.number == number) {
            None => self.report.find(Finding::CutOff(number)),
            Some(stored) if stored.seal.digest()? != signed.seal.digest()? => {
                self.report.find(Finding::Replaced(number))
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// Walks events and hashes by position.
fn merge(interval: &mut Interval, events: Vec<LoggedEvent>, rows: Vec<HashRow>) -> Result<(), serde_json::Error> {
    let mut rows = rows.into_iter().peekable();
    for event in &events {
        while let Some(row) = rows.next_if(|it| it.place.position < event.position) {
            interval.take(None, Some(row))?;
        }
        let own = rows.next_if(|it| it.place.position == event.position);
        interval.take(Some(event), own)?;
    }
    rows.try_for_each(|row| interval.take(None, Some(row)))
}

//! Writing a bundle.

use super::{ATTEMPTS, BundleFormat, Line, Proof, Subject};
use crate::audit::chain::{Hash, NO_LINK, Place, StreamName, event_hash, links_before, read_hashes};
use crate::audit::keys::{KeyId, TrustedKeys};
use crate::audit::merkle::{RootBuilder, Tree};
use crate::audit::seal::{SignedSeal, newest_seals, seal_over};
use crate::logged::{LoggedEvent, read_log_at};
use domain::id::AttemptId;
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, PgPool};
use std::collections::HashSet;
use std::io::Write;
use uuid::Uuid;

/// Events that are in memory at a time.
const CHUNK: usize = 500;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[from] sqlx::Error),
    /// Something could not be written as JSON.
    #[error("a value could not be encoded")]
    Encode(#[from] serde_json::Error),
    /// The file could not be written.
    #[error("the bundle can not be written")]
    Write(#[from] std::io::Error),
    /// There is no such history.
    #[error("there are no events of {0}")]
    NoEvents(Subject),
    /// None of it is sealed.
    #[error("no event of {0} is sealed yet: wait for the next seal (`aivideo status` says whether a sealer runs)")]
    Unsealed(Subject),
    /// The log is not what was sealed: a bundle would prove that, not the events.
    #[error("event {0} is not as it was sealed: `aivideo audit verify` says more")]
    Tampered(Place),
    /// A seal was made with a key that is not known here.
    #[error("seal {number} is signed with key {key}, which is not configured: set it in audit.verification_keys")]
    UnknownKey {
        /// The seal.
        number: i64,
        /// Its key.
        key: KeyId,
    },
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Events with their proofs.
    pub events: u64,
    /// Seals.
    pub seals: u64,
    /// Events that are not sealed yet, and left out.
    pub unsealed: u64,
}

/// Writes the bundle of a subject.
///
/// # Errors
/// [`ExportError`]; what was written by then is no bundle, because it has no end.
pub async fn export(
    pool: &PgPool,
    trusted: &TrustedKeys,
    subject: &Subject,
    to: impl Write + Send,
) -> Result<Exported, ExportError> {
    let mut connection = pool.acquire().await?;
    let sealed = newest_seals(&mut connection, 1).await?.pop().map_or(0, |it| it.seal.last_position);
    let mut positions = positions(&mut connection, subject).await?;
    if positions.is_empty() {
        return Err(ExportError::NoEvents(subject.clone()));
    }
    let all = positions.len();
    positions.retain(|it| *it <= sealed);
    if positions.is_empty() {
        return Err(ExportError::Unsealed(subject.clone()));
    }
    let mut file = Lines { to, hasher: Sha256::new(), events: 0, seals: 0, keys: HashSet::new() };
    file.write(&Line::Bundle { format: BundleFormat::V1, subject: subject.clone() })?;
    let mut current = None;
    for chunk in positions.chunks(CHUNK) {
        for event in read_log_at(&mut connection, chunk).await? {
            let sealed = sealed_with(&mut connection, &mut file, trusted, current.take(), &event).await?;
            let place = Place::of(&event);
            let previous = links_before(&mut connection, &[&place], event.position).await?;
            let previous = previous.get(&place.stream).unwrap_or(&NO_LINK).hash;
            let line = sealed.line(event, previous)?;
            file.write(&line)?;
            file.events += 1;
            current = Some(sealed);
        }
    }
    let (events, seals) = (file.events, file.seals);
    file.end()?;
    Ok(Exported { events, seals, unsealed: (all - positions.len()) as u64 })
}

/// The positions of a subject's events, in order.
async fn positions(connection: &mut PgConnection, subject: &Subject) -> Result<Vec<i64>, sqlx::Error> {
    let mut positions = match subject {
        Subject::Stream(name) => of_stream(connection, name, None).await?,
        Subject::Account(id) => of_stream(connection, &name("account", id.0), None).await?,
        Subject::Task(id) => {
            let mut positions = of_stream(connection, &name("task", id.0), None).await?;
            for number in 1..=ATTEMPTS {
                let of_attempt = of_stream(connection, &name("attempt", AttemptId::of(*id, number).0), None).await?;
                if of_attempt.is_empty() {
                    break;
                }
                positions.extend(of_attempt);
            }
            let account: Option<Uuid> = sqlx::query_scalar(
                "/* audit.account_of_task */ SELECT tenant_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1",
            )
            .bind(id.0)
            .fetch_optional(&mut *connection)
            .await?;
            if let Some(account) = account {
                positions.extend(of_stream(connection, &name("account", account), Some(id.0)).await?);
            }
            positions
        }
    };
    positions.sort_unstable();
    Ok(positions)
}

fn name(category: &str, id: Uuid) -> StreamName {
    StreamName { category: category.to_owned(), id }
}

/// The positions of a stream's events; only of those that name a task, where one is given.
async fn of_stream(
    connection: &mut PgConnection,
    stream: &StreamName,
    task: Option<Uuid>,
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "/* audit.positions_of_stream */
         SELECT position FROM events
          WHERE category = $1 AND stream_id = $2 AND ($3::uuid IS NULL OR body->>'task' = $3::text)",
    )
    .bind(&stream.category)
    .bind(stream.id)
    .bind(task)
    .fetch_all(connection)
    .await
}

/// A seal with the hashes that it is over.
struct Sealed {
    signed: SignedSeal,
    positions: Vec<i64>,
    hashes: Vec<Hash>,
    tree: Tree,
}

impl Sealed {
    fn line(&self, event: LoggedEvent, previous: Hash) -> Result<Line, ExportError> {
        let index = self.positions.binary_search(&event.position).ok();
        let hash = event_hash(&event, previous)?;
        let Some(index) = index.filter(|index| self.hashes[*index] == hash) else {
            return Err(ExportError::Tampered(Place::of(&event)));
        };
        let proof = Proof { seal: self.signed.seal.number, index: index as u64, path: self.tree.path(index) };
        Ok(Line::Event { event: Box::new(event), previous, proof })
    }
}

/// The seal over an event: the one at hand, or the next one, which is then written too.
async fn sealed_with<W: Write>(
    connection: &mut PgConnection,
    file: &mut Lines<W>,
    trusted: &TrustedKeys,
    current: Option<Sealed>,
    event: &LoggedEvent,
) -> Result<Sealed, ExportError> {
    if let Some(current) = current.filter(|it| it.signed.seal.last_position >= event.position) {
        return Ok(current);
    }
    let tampered = || ExportError::Tampered(Place::of(event));
    let signed = seal_over(connection, event.position).await?.ok_or_else(tampered)?;
    let key = trusted.get(&signed.seal.key);
    let (number, id) = (signed.seal.number, signed.seal.key.clone());
    let key = key.ok_or(ExportError::UnknownKey { number, key: id })?;
    let (after, up_to) = (signed.seal.first_position - 1, signed.seal.last_position);
    let rows = read_hashes(connection, after, up_to, signed.seal.events.saturating_add(1)).await?;
    let (positions, hashes): (Vec<_>, Vec<_>) = rows.into_iter().map(|it| (it.place.position, it.hash)).unzip();
    let mut root = RootBuilder::default();
    hashes.iter().for_each(|it| root.push(*it));
    if signed.check(trusted).is_err() || root.root() != signed.seal.root {
        return Err(tampered());
    }
    if file.keys.insert(signed.seal.key.clone()) {
        file.write(&Line::Key { public: key })?;
    }
    file.write(&Line::Seal(signed.clone()))?;
    file.seals += 1;
    Ok(Sealed { signed, tree: Tree::new(&hashes), positions, hashes })
}

struct Lines<W> {
    to: W,
    hasher: Sha256,
    events: u64,
    seals: u64,
    keys: HashSet<KeyId>,
}

impl<W: Write> Lines<W> {
    fn write(&mut self, line: &Line) -> Result<(), ExportError> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.hasher.update(&text);
        self.to.write_all(&text)?;
        Ok(())
    }

    fn end(mut self) -> Result<(), ExportError> {
        let digest = Hash(self.hasher.clone().finalize().into());
        self.write(&Line::End { events: self.events, seals: self.seals, digest })?;
        self.to.flush()?;
        Ok(())
    }
}

//! Seals: a signed statement about all events of an interval of positions, chained to the one before it.

use super::chain::Hash;
use super::keys::{KeyId, Signature, SigningKey, TrustedKeys};
use crate::logged::{canonical, microseconds};
use domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, Row};

/// Which statement this is: a signature under it can not be taken for one of anything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SealFormat {
    /// The first.
    #[default]
    #[serde(rename = "aivideo-seal-1")]
    V1,
}

/// What is sealed. Its canonical JSON is what is signed, and what the next seal holds the hash of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// Always the same words.
    pub format: SealFormat,
    /// From 1, without holes.
    pub number: i64,
    /// The position after the last one of the seal before; 1 in the first.
    pub first_position: i64,
    /// The last event's position.
    pub last_position: i64,
    /// How many events are in the interval: positions may have holes.
    pub events: i64,
    /// Merkle root over the events' hashes, in the order of their positions.
    pub root: Hash,
    /// Digest of the seal before; zeros in the first.
    pub previous: Hash,
    /// When, by the database's clock.
    #[serde(with = "microseconds")]
    pub sealed_at: Timestamp,
    /// The key that signed it.
    pub key: KeyId,
}

impl Seal {
    fn statement(&self) -> Result<Vec<u8>, serde_json::Error> {
        Ok(canonical(&serde_json::to_value(self)?))
    }

    /// SHA-256 of the signed bytes: names this seal, and with it everything that was sealed before.
    ///
    /// # Errors
    /// It can not be written as JSON.
    pub fn digest(&self) -> Result<Hash, serde_json::Error> {
        Ok(Hash::of_parts(&[&self.statement()?]))
    }

    /// Signs it.
    ///
    /// # Errors
    /// It can not be written as JSON.
    pub fn sign(self, key: &SigningKey) -> Result<SignedSeal, serde_json::Error> {
        let signature = key.sign(&self.statement()?);
        Ok(SignedSeal { seal: self, signature })
    }
}

/// A seal and its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedSeal {
    /// What is said.
    pub seal: Seal,
    /// Who says it.
    pub signature: Signature,
}

/// Which kind of file a witness is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WitnessFormat {
    /// The first.
    #[default]
    #[serde(rename = "aivideo-witness-1")]
    V1,
}

/// A seal that is kept elsewhere: it names everything that was sealed by then. It is what is exported, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// Always the same words.
    pub format: WitnessFormat,
    /// The seal and its signature.
    pub sealed: SignedSeal,
    /// Its digest, for people who compare by eye.
    pub digest: Hash,
}

impl Witness {
    /// The witness of a seal.
    ///
    /// # Errors
    /// It can not be written as JSON.
    pub fn of(sealed: SignedSeal) -> Result<Self, serde_json::Error> {
        Ok(Self { format: WitnessFormat::V1, digest: sealed.seal.digest()?, sealed })
    }
}

/// What is wrong with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureFault {
    /// The key is not among those that are believed.
    UnknownKey,
    /// It is not this key's signature of this seal.
    Forged,
}

impl SignedSeal {
    /// Whether one of these keys made it.
    ///
    /// # Errors
    /// [`SignatureFault`].
    pub fn check(&self, trusted: &TrustedKeys) -> Result<(), SignatureFault> {
        let key = trusted.get(&self.seal.key).ok_or(SignatureFault::UnknownKey)?;
        let statement = self.seal.statement().map_err(|_| SignatureFault::Forged)?;
        if key.verifies(&statement, self.signature) { Ok(()) } else { Err(SignatureFault::Forged) }
    }
}

impl<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> for SignedSeal {
    fn from_row(row: &'r sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
        let seal = Seal {
            format: SealFormat::V1,
            number: row.try_get("number")?,
            first_position: row.try_get("first_position")?,
            last_position: row.try_get("last_position")?,
            events: row.try_get("events")?,
            root: Hash::stored(row.try_get("root")?),
            previous: Hash::stored(row.try_get("previous")?),
            sealed_at: row.try_get("sealed_at")?,
            key: KeyId(row.try_get("key_id")?),
        };
        Ok(Self { seal, signature: Signature::stored(row.try_get("signature")?) })
    }
}

/// The columns of [`SignedSeal`]; of the time see `logged_columns`.
macro_rules! seal_columns {
    () => {
        "number, first_position, last_position, events, root, previous, key_id, signature,
         greatest('0001-01-01T00:00:00Z', least('9999-12-31T23:59:59Z', sealed_at)) AS sealed_at"
    };
}

/// The newest seals, the newest first.
pub(crate) async fn newest_seals(connection: &mut PgConnection, limit: i64) -> Result<Vec<SignedSeal>, sqlx::Error> {
    sqlx::query_as(concat!(
        "/* audit.newest_seals */ SELECT ",
        seal_columns!(),
        " FROM seals ORDER BY number DESC LIMIT $1"
    ))
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Seals after a number, in order.
pub(crate) async fn seals_after(
    connection: &mut PgConnection,
    number: i64,
    limit: i64,
) -> Result<Vec<SignedSeal>, sqlx::Error> {
    sqlx::query_as(concat!(
        "/* audit.seals_after */ SELECT ",
        seal_columns!(),
        " FROM seals WHERE number > $1 ORDER BY number LIMIT $2"
    ))
    .bind(number)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// The seal that a position lies in.
pub(crate) async fn seal_over(connection: &mut PgConnection, position: i64) -> Result<Option<SignedSeal>, sqlx::Error> {
    sqlx::query_as(concat!(
        "/* audit.seal_over */ SELECT ",
        seal_columns!(),
        " FROM seals WHERE last_position >= $1 ORDER BY last_position LIMIT 1"
    ))
    .bind(position)
    .fetch_optional(connection)
    .await
}

pub(crate) async fn write_seal(connection: &mut PgConnection, signed: &SignedSeal) -> Result<(), sqlx::Error> {
    let SignedSeal { seal, signature } = signed;
    sqlx::query(
        "/* audit.write_seal */
         INSERT INTO seals (number, first_position, last_position, events, root, previous, sealed_at, key_id, signature)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(seal.number)
    .bind(seal.first_position)
    .bind(seal.last_position)
    .bind(seal.events)
    .bind(seal.root.0.as_slice())
    .bind(seal.previous.0.as_slice())
    .bind(seal.sealed_at)
    .bind(&seal.key.0)
    .bind(signature.0.as_slice())
    .execute(connection)
    .await?;
    Ok(())
}

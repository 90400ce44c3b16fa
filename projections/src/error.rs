//! Faults of the read side.

use domain::stored::Unreadable;

/// Why events could not be projected.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The database can not be used: try again.
    #[error("the database could not be used")]
    Database(#[from] sqlx::Error),
    /// An event can not be folded: for a person. Nothing after it is folded.
    #[error(transparent)]
    Corrupt(#[from] FoldFault),
}

/// An event that can not be folded: which, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {name} at position {position} ({stream}, version {version}) can not be folded: {cause}")]
pub struct FoldFault {
    /// Its position in the log.
    pub position: i64,
    /// Its stream, `category-id`.
    pub stream: String,
    /// Its version in the stream.
    pub version: i64,
    /// Its stored name.
    pub name: String,
    /// Why.
    pub cause: FoldCause,
}

/// Why an event can not be folded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldCause {
    /// It does not decode.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A category that this build does not know.
    #[error("the category is not known to this build")]
    UnknownCategory,
    /// It does not follow what was folded of its stream.
    #[error("the event before it in its stream is missing, or it was folded before")]
    OutOfOrder,
    /// It is about something that no event before it made.
    #[error("the {0} it is about does not exist")]
    Dangling(&'static str),
    /// An amount that no sum has room for.
    #[error("its amount leads to a sum that is out of range")]
    OutOfRange,
    /// A second posting or row where there can be only one.
    #[error("it repeats what exists already ({0})")]
    Repeated(String),
}

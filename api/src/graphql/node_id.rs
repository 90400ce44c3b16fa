//! Ids as clients see them: global ones for `node(id)`, and plain UUIDs. Arguments take either.

use super::error::coded;
use async_graphql::{Error, ID};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use uuid::Uuid;

/// The kinds of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Task,
    Attempt,
    Asset,
    Account,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Task, Self::Attempt, Self::Asset, Self::Account];

    const fn name(self) -> &'static str {
        match self {
            Self::Task => "Task",
            Self::Attempt => "Attempt",
            Self::Asset => "Asset",
            Self::Account => "Account",
        }
    }

    /// The global id of one of this kind: base64 of `Kind:uuid`.
    pub(crate) fn global(self, id: Uuid) -> ID {
        ID(STANDARD.encode(format!("{}:{id}", self.name())))
    }

    /// Reads an argument that names one of this kind: a global id of the kind, or a UUID.
    ///
    /// # Errors
    /// An error with code `BAD_ID`.
    pub(crate) fn read(self, id: &ID) -> Result<Uuid, Error> {
        if let Some(id) = plain(&id.0) {
            return Ok(id);
        }
        match read_global(&id.0) {
            Some((kind, id)) if kind == self => Ok(id),
            _ => Err(coded("BAD_ID", format!("not an id of a {}: a UUID or a global id is expected", self.name()))),
        }
    }
}

/// A UUID in its usual form of 36 characters, in either case.
fn plain(text: &str) -> Option<Uuid> {
    (text.len() == 36).then(|| Uuid::try_parse(text).ok()).flatten()
}

/// Reads a global id.
pub(crate) fn read_global(text: &str) -> Option<(Kind, Uuid)> {
    let decoded = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    let (name, id) = decoded.split_once(':')?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name)?;
    Some((kind, plain(id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_form_is_taken_and_no_other() {
        let id = Uuid::from_u128(0xabcd_ef00_1122_3344);
        let global = Kind::Task.global(id);
        assert_eq!(read_global(&global), Some((Kind::Task, id)));
        for good in [global.to_string(), id.to_string(), id.to_string().to_uppercase()] {
            assert_eq!(Kind::Task.read(&ID(good)).ok(), Some(id));
        }
        let other = Kind::Asset.global(id).to_string();
        for bad in ["", "17", &id.simple().to_string(), &format!("{{{id}}}"), other.as_str(), "VGFzazo="] {
            assert!(Kind::Task.read(&ID(bad.to_owned())).is_err(), "{bad}");
        }
    }
}

//! How events are stored: (name, schema version, JSON body). The name is written once and never derived from a Rust name.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A stored event's three parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Stored name, such as `task.submitted`.
    pub name: String,
    /// Schema version of the body.
    pub version: i16,
    /// The body.
    pub body: Value,
}

/// A stored event that this build can not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// No event of that name.
    #[error("event name {0:?} is not known to this build")]
    UnknownName(String),
    /// A newer version than this build writes, or one with no upcaster.
    #[error("version {version} of {name} has no upcaster to version {current}")]
    UnknownVersion {
        /// Name.
        name: String,
        /// The version met.
        version: i16,
        /// The version this build reads.
        current: i16,
    },
    /// The body has another shape.
    #[error("the body of {name} v{version} does not decode: {cause}")]
    Body {
        /// Name.
        name: String,
        /// Version.
        version: i16,
        /// What kind of error serde met; never a value.
        cause: String,
    },
}

/// One step from version `from` to `from + 1` of an event's body.
#[derive(Clone, Copy)]
pub struct Upcaster {
    /// Event name.
    pub name: &'static str,
    /// The version it reads.
    pub from: i16,
    /// The step.
    pub step: fn(Value) -> Value,
}

/// Lifts a body to version `current` by the steps of `upcasters`.
///
/// # Errors
/// [`Unreadable::UnknownVersion`] where a step is missing.
pub fn upcast(stored: Stored, current: i16, upcasters: &[Upcaster]) -> Result<Value, Unreadable> {
    let Stored { name, version, mut body } = stored;
    let mut at = version;
    while at < current {
        let step = upcasters.iter().find(|it| it.name == name && it.from == at);
        let Some(step) = step else {
            return Err(Unreadable::UnknownVersion { name, version, current });
        };
        body = (step.step)(body);
        at += 1;
    }
    if at > current {
        return Err(Unreadable::UnknownVersion { name, version, current });
    }
    Ok(body)
}

/// An event's body, as it comes.
pub enum Body<'a> {
    /// Parsed before.
    Parsed(Value),
    /// JSON text, read straight into the event: whoever reads the whole log spares the step in between.
    Text(&'a str),
}

/// An event type with stored names.
pub trait StoredEvent: Sized {
    /// Its stored name.
    fn name(&self) -> &'static str;
    /// Its stored form.
    ///
    /// # Errors
    /// serde's own error; bodies are plain data, so this does not happen in practice.
    fn encode(&self) -> Result<Stored, serde_json::Error>;
    /// Reads a stored form of any version ever written.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn decode(stored: Stored) -> Result<Self, Unreadable> {
        Self::read(&stored.name, stored.version, Body::Parsed(stored.body))
    }
    /// Reads the three parts of a stored form, of any version ever written.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn read(name: &str, version: i16, body: Body<'_>) -> Result<Self, Unreadable>;
}

/// The fields of a body, lifted to version `current` where it is older.
pub(crate) fn fields<T: DeserializeOwned>(
    name: &'static str,
    version: i16,
    current: i16,
    upcasters: &[Upcaster],
    body: Body<'_>,
) -> Result<T, Unreadable> {
    let unreadable = |error: serde_json::Error| Unreadable::Body {
        name: name.to_owned(),
        version,
        cause: format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()),
    };
    let body = match body {
        Body::Text(text) if version == current => return serde_json::from_str(text).map_err(unreadable),
        Body::Text(text) => serde_json::from_str(text).map_err(unreadable)?,
        Body::Parsed(body) => body,
    };
    let body = upcast(Stored { name: name.to_owned(), version, body }, current, upcasters)?;
    serde_json::from_value(body).map_err(unreadable)
}

/// Declares an event enum: each variant with its stored name, its current version, and its body.
macro_rules! stored_events {
    ($(#[$doc:meta])* $event:ident, upcasters = $upcasters:expr, {
        $($(#[$vdoc:meta])* $variant:ident = $name:literal v $version:literal { $($(#[$fdoc:meta])* $field:ident : $type:ty),* $(,)? }),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $event { $($(#[$vdoc])* $variant { $($(#[$fdoc])* $field: $type),* }),+ }

        impl $event {
            /// Every stored name with its current version.
            pub const NAMES: &'static [(&'static str, i16)] = &[$(($name, $version)),+];

            /// The JSON Schema of each event's body at its current version, with its stored name.
            #[cfg(feature = "schema")]
            pub(crate) fn schemas() -> Vec<(&'static str, i16, schemars::Schema)> {
                vec![$(($name, $version, crate::schema::of::<body::$variant>())),+]
            }
        }

        /// The events' bodies as they are read; what is written has the same fields.
        mod body {
            use super::*;
            $(
                $(#[$vdoc])*
                #[derive(serde::Deserialize)]
                #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
                pub(super) struct $variant { $($(#[$fdoc])* pub(super) $field: $type),* }
            )+
        }

        impl crate::stored::StoredEvent for $event {
            fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),+ }
            }

            fn encode(&self) -> Result<crate::stored::Stored, serde_json::Error> {
                Ok(match self {
                    $(Self::$variant { $($field),* } => crate::stored::Stored {
                        name: $name.to_owned(),
                        version: $version,
                        body: serde_json::Value::Object([
                            $((stringify!($field).to_owned(), serde_json::to_value($field)?)),*
                        ].into_iter().collect()),
                    }),+
                })
            }

            fn read(
                name: &str,
                version: i16,
                body: crate::stored::Body<'_>,
            ) -> Result<Self, crate::stored::Unreadable> {
                match name {
                    $($name => {
                        let body::$variant { $($field),* } =
                            crate::stored::fields($name, version, $version, $upcasters, body)?;
                        Ok(Self::$variant { $($field),* })
                    })+
                    other => Err(crate::stored::Unreadable::UnknownName(other.to_owned())),
                }
            }
        }
    };
}
pub(crate) use stored_events;

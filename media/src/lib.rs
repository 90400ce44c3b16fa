#![doc = include_str!("../README.md")]

mod child;
mod config;
mod fetch;
mod ffmpeg;
mod guard;
mod keys;
mod links;
mod objects;
mod probe;
mod render;
mod sniff;
mod upload;

pub use config::{MediaConfig, ObjectsConfig, S3Config, Secret, StoreKind};
pub use ffmpeg::{Ffmpeg, Versions};
pub use guard::{Lookup, SystemLookup, is_public};
pub use keys::{KeyRefused, MAX_KEY_LENGTH, check_key};
pub use links::{LinkRefused, Links};
pub use objects::{Objects, ObjectsError};
pub use sniff::content_type;

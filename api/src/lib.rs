#![doc = include_str!("../README.md")]

mod audit_files;
mod auth;
mod budget;
mod callbacks;
mod clock;
mod config;
mod correlation;
mod executor;
mod explorer;
mod graphql;
mod http;
mod idempotency;
mod jwks;
mod measure;
mod objects;
mod operations;
mod over_http;
mod ports;
mod range;
mod router;
mod seats;
mod shape;
mod sniff;
mod sse;
mod uploads;
mod websocket;

pub use auth::{BadToken, Caller, Claims, Role, TokenKeys, mint};
pub use config::{ApiConfig, JwksConfig};
pub use graphql::schema_sdl;
pub use jwks::{BadKeySet, KeySet};
pub use operations::BadOperations;
pub use ports::{LinkRefused, LinkVerifier, Readiness};
pub use router::{ApiState, StartError, router};

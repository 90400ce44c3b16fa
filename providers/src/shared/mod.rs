//! What all adapters share: settings, addresses, one HTTP exchange, the rule of what a create call came to, and the care for
//! what must not show.

mod callback_address;
mod exchange;
mod fields;
mod outcome;
pub mod retry_after;
mod secret;
mod service;
mod settings;
mod standard_webhooks;
pub(crate) mod text;

pub use secret::Secret;
pub use settings::{Callbacks, ConfigError, Connection};

pub(crate) use callback_address::{CallbackAddress, body_digest, reference, reference_in_query};
pub(crate) use exchange::{Clients, MAX_PAGE_BYTES, MAX_REPLY_BYTES, NoReply, Reply, exchange};
pub(crate) use fields::request_fields;
pub(crate) use outcome::{
    Refusal, created, is_job_id, media_address, named_by_id, not_readable, plain_header, polled, whole_seconds,
};
pub(crate) use service::Service;
pub(crate) use settings::{address, not_zero};
pub(crate) use standard_webhooks::SigningKey;

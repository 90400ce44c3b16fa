//! Proof against tampering: hashes of events in chains, signed seals over them, their verification, and bundles that others can
//! check. The format is described in docs/event-store.md, "Proof"; why it is so, in docs/decisions/0008-tamper-evidence.md.

pub mod bundle;
mod chain;
mod config;
mod keys;
pub mod merkle;
mod seal;
mod sealer;
mod status;
mod verify;

pub(crate) use chain::chained;
pub use chain::{Hash, Place, StreamName, event_hash};
pub use config::AuditConfig;
pub use keys::{KeyId, PublicKey, Signature, SigningKey, TrustedKeys};
pub use seal::{Seal, SealFormat, SignatureFault, SignedSeal, Witness, WitnessFormat};
pub use sealer::{SealError, SealStep, Sealer};
pub use status::{SealStatus, latest_seals, seal_status};
pub use verify::{Finding, Progress, Report, Scope, VerifyError, verify};

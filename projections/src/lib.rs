#![doc = include_str!("../README.md")]

mod bell;
pub mod doctor;
mod error;
pub mod finished;
pub mod fold;
pub mod horizon;
pub mod in_flight;
pub mod live;
pub mod operations;
pub mod projector;
pub mod query;
pub mod rebuild;
pub mod relay;
pub mod retention;
pub mod stalled;
pub mod subscription;

pub use error::{FoldCause, FoldFault, ProjectError};

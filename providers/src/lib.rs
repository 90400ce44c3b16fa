#![doc = include_str!("../README.md")]

pub mod ark;
pub mod fal;
mod registry;
pub mod replicate;
pub mod runware;
pub mod runway;
mod shared;
pub mod simulator;

pub use registry::{ProviderConfig, Registry, RegistryError};
pub use shared::{BreakerConfig, Callbacks, ConfigError, Connection, Secret, retry_after};

#![doc = include_str!("../README.md")]

pub mod replicate;
mod secret;
mod signature;
pub mod simulator;

pub use secret::Secret;

#![doc = include_str!("../README.md")]

pub mod aggregate;
pub mod attempt;
pub mod diagram;
pub mod id;
pub mod ledger;
pub mod message;
pub mod money;
pub mod mutant;
pub mod outcome;
pub mod process;
pub mod snapshot;
pub mod stored;
pub mod task;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod time;

#![doc = include_str!("../README.md")]

pub mod archive;
mod calls;
pub mod catalogue;
mod groups;
pub mod ports;
mod slots;
mod stall_scan;

pub use calls::{CallLimits, Outside};
pub use groups::Worker;
pub use slots::{Slots, Usher};
pub use stall_scan::{ScanConfig, StallScan, Stalled, StalledTask};

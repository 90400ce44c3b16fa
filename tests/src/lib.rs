//! What the end-to-end tests and the benchmarks stand on: a whole system on real parts, started through `./dev` as any user
//! would start it, and the means to ask it, hurt it and judge it from outside.

pub mod oracle;
pub mod roles;
pub mod simulator;
pub mod stack;
pub mod user;

pub use oracle::judge;
pub use roles::RoleProcess;
pub use simulator::Simulator;
pub use stack::{Broker, Stack};
pub use user::User;

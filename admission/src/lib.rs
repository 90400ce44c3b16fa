#![doc = include_str!("../README.md")]

mod book;
mod config;
mod desk;
mod in_process;
mod in_redis;
mod port;

pub use config::{AdmissionConfig, Kind, Limits, Rate, Rates, WhenDown};
pub use desk::Desk;
pub use in_process::InProcess;
pub use in_redis::{InRedis, RedisConfigError};
pub use port::{Admission, AdmissionError, Asked, Called, Count, InFlight, Swept};

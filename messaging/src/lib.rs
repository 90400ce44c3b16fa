#![doc = include_str!("../README.md")]
// The client's futures nest deeper than the default of 128 levels.
#![recursion_limit = "512"]

pub mod admin;
pub mod catalogue;
pub mod client;
pub mod config;
#[cfg(feature = "embedded-broker")]
pub mod embedded;
pub mod listener;
pub mod producer;
pub mod ready;

#[cfg(all(test, feature = "embedded-broker"))]
mod broker_tests;

pub use catalogue::{Catalogue, Group};
pub use client::{Client, ClientFault};
pub use config::{BadConfig, BrokerConfig};
pub use listener::{Handler, Listener, ListenerCounts};
pub use producer::{OutboundMessage, Publisher, SendFailure, SendReceipt};

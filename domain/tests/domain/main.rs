//! Tests of the facts and rules. Pure: no database, no broker, no clock.

mod chain;
mod diagrams;
mod golden;
mod ledger;
mod process;
mod properties;
mod support;
mod tables;
mod testkit;
mod world;

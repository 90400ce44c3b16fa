//! Tests of the facts and rules. Pure: no database, no broker, no clock.

mod diagrams;
mod golden;
mod ledger;
mod process;
mod properties;
mod support;
mod tables;

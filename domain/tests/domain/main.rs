//! Tests of the facts and rules. Pure: no database, no broker, no clock.

mod attempts;
mod diagrams;
mod facts;
mod golden;
mod people;
mod process;
mod properties;
mod renders;
mod support;
mod tables;

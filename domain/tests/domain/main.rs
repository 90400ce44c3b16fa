//! Tests of the facts and rules. Pure: no database, no broker, no clock.

mod attempts;
mod chain;
mod diagrams;
mod facts;
mod golden;
mod ledger;
mod messages;
mod outages;
mod outside;
mod people;
mod process;
mod properties;
mod renders;
mod schemas;
mod slots;
mod snapshots;
mod support;
mod tables;
mod testkit;
mod world;

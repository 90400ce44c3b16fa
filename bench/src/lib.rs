//! What all benchmarks write: a table for people and a file for machines.

pub mod report;

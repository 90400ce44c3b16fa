//! The adapter over real HTTP on loopback: against raw sockets that misbehave byte by byte, and against the simulator.

mod adapters;
mod callbacks;
mod create;
mod every_provider;
mod fal_callbacks;
mod faults;
mod find;
mod outages;
mod recorded;
mod simulator;
mod support;

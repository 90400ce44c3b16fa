//! The adapter over real HTTP on loopback: against raw sockets that misbehave byte by byte, and against the simulator.

mod callbacks;
mod create;
mod faults;
mod find;
mod simulator;
mod support;

//! The model against the real thing: a store in memory that is plain enough to be believed, and the store on PostgreSQL, given
//! the same generated sequences; two writers at once; and a connection that breaks at each of a task's database calls in turn.

mod action;
mod clock;
mod facts;
mod faults;
mod life;
mod memory;
mod proxy;
mod script;
mod sequences;
mod steps;
mod work;
mod writers;

/// What a test may fail with.
type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

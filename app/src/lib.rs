#![doc = include_str!("../README.md")]
// The roles are deeply nested futures; their layout is computed at one go.
#![recursion_limit = "256"]

pub mod archive;
pub mod audit;
pub mod cli;
pub mod client;
pub mod commands;
pub mod config;
pub mod demo;
pub mod history;
pub mod models;
pub mod project;
pub mod ready;
pub mod roles;
pub mod schemas;
pub mod status;
pub mod tokens;

pub use config::Settings;

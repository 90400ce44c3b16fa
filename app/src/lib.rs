#![doc = include_str!("../README.md")]

pub mod cli;
pub mod client;
pub mod commands;
pub mod config;
pub mod demo;
pub mod ready;
pub mod roles;
pub mod tokens;

pub use config::Settings;

//! The binary `aivideo`.
// As in the library.
#![recursion_limit = "256"]

use clap::Parser;
use std::process::ExitCode;

/// The stack of a worker thread: unoptimised builds of the broker's client have large futures.
const STACK_BYTES: usize = 8 * 1024 * 1024;

fn main() -> ExitCode {
    let cli = app::cli::Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build();
    let result = match runtime {
        Ok(runtime) => app::commands::run(cli, &runtime),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aivideo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

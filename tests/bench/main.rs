//! Benchmarks of the whole system: `./dev bench NAME`. Each prints a table for people and writes the same to `target/bench/NAME.json`.

mod chain;
mod path;

use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let result = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| match name.as_str() {
        "chain" => runtime.block_on(chain::run()),
        "path" => runtime.block_on(path::run()),
        other => Err(anyhow::anyhow!("there is no benchmark {other:?}: there are chain and path")),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

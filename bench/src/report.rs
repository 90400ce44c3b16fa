//! The table for people and the file for machines.

use serde::Serialize;
use std::path::Path;

/// One measured row.
#[derive(Serialize)]
pub struct Row {
    /// What was measured.
    pub measure: String,
    /// Our figure.
    pub ours: f64,
    /// Unit of both figures.
    pub unit: &'static str,
    /// What it is compared with.
    pub reference: String,
    /// The reference's figure.
    pub theirs: Option<f64>,
    /// Ours by theirs.
    pub ratio: Option<f64>,
    /// What is aimed at, in words.
    pub aim: &'static str,
    /// Whether it is met; `None`: there is no aim.
    pub met: Option<bool>,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'a str,
    machine: String,
    rows: &'a [Row],
}

/// Prints the table and writes `target/bench/NAME.json`.
///
/// # Errors
/// The file can not be written.
pub fn write(name: &str, rows: &[Row]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = format!("{cores} cores, {}", std::env::consts::ARCH);
    println!("{:<58} {:>12} {:<10} {:<24} met", "measure", "ours", "unit", "aim");
    for row in rows {
        let met = row.met.map_or("", |met| if met { "yes" } else { "NO" });
        println!("{:<58} {:>12.2} {:<10} {:<24} {met}", row.measure, row.ours, row.unit, row.aim);
        if let (Some(theirs), Some(ratio)) = (row.theirs, row.ratio) {
            println!("    {}: {theirs:.2} {}, ratio {ratio:.2}", row.reference, row.unit);
        }
    }
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench"));
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, serde_json::to_string_pretty(&Report { bench: name, machine, rows })?)?;
    println!("written to target/bench/{name}.json");
    Ok(())
}

/// The median.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 50.0)
}

/// A percentile; 0 of nothing.
#[must_use]
pub fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * percent / 100.0).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}

//! The matrix: five providers, every fault of their simulators, and a process that dies at each step of the handlers that a task
//! with that fault goes through. In each cell: at most one job at the provider, no job lost from sight, every credit where it
//! belongs, and a named end. `./dev test providers [WORDS]` runs it; the words choose rows.
//!
//! First each task is lived through without a death, which shows which steps it takes; then once more for each of them.

mod broker;
mod cell;
mod faults;
mod stage;
mod steps;

use cell::{Cell, Ended};
use domain::task::State;
use faults::{FAULTS, Fault};
use futures_util::{StreamExt, stream};
use stage::{Place, Stage};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;
use steps::Point;

/// Tasks that live at the same time.
const LANES: usize = 120;

/// A cell's place in the matrix.
type At = (usize, usize, Option<Point>);

#[derive(Default)]
struct Matrix {
    cells: BTreeMap<At, anyhow::Result<Ended>>,
}

impl Matrix {
    async fn live(&mut self, stage: &Stage, cells: Vec<At>) {
        let lives = cells.into_iter().map(|at: At| async move {
            let (place, fault, point) = at;
            (at, Cell::new(FAULTS[fault], point).live(stage, &stage.places[place]).await)
        });
        let mut lives = stream::iter(lives).buffer_unordered(LANES);
        while let Some((at, ended)) = lives.next().await {
            self.cells.insert(at, ended);
        }
    }

    /// The steps that a row's task takes when nobody dies.
    fn steps(&self, place: usize, fault: usize) -> Vec<At> {
        let ended = self.cells.get(&(place, fault, None)).and_then(|it| it.as_ref().ok());
        ended.map_or_else(Vec::new, |it| it.reached.iter().map(|point| (place, fault, Some(*point))).collect())
    }

    fn sign(&self, at: At) -> char {
        match self.cells.get(&at) {
            None => ' ',
            Some(Err(_)) => '!',
            Some(Ok(ended)) if at.2.is_some() && !ended.fired => '.',
            Some(Ok(ended)) => match ended.state {
                State::Succeeded => 'S',
                State::Failed => 'F',
                State::Canceled => 'C',
                State::CanceledWithOutput => 'O',
                State::ManualReview => 'R',
                _ => '?',
            },
        }
    }

    fn print(&self, stage: &Stage, rows: &[(usize, usize)]) {
        println!("Columns:");
        println!("   0  nobody dies");
        for (number, point) in Point::all().enumerate() {
            println!("  {:>2}  {}", number + 1, point.name());
        }
        println!(
            "Signs: S succeeded, F failed, C canceled, O canceled with output, R in review by a person (then ended by one),\n       \
             blank: the task takes no such step, . it took none this time, ! does not hold"
        );
        for (number, place) in stage.places.iter().enumerate().filter(|(it, _)| rows.iter().any(|row| row.0 == *it)) {
            let columns: String = (0..=Point::all().count()).map(|column| format!("{column:>3}")).collect();
            println!("\n{:<54}{columns}", place.name);
            for (_, fault) in rows.iter().filter(|row| row.0 == number) {
                let signs = std::iter::once(None).chain(Point::all().map(Some));
                let signs: String = signs.map(|point| format!("{:>3}", self.sign((number, *fault, point)))).collect();
                println!("{:<54}{signs}", FAULTS[*fault].name());
            }
        }
    }

    fn failures(&self, stage: &Stage) -> Vec<String> {
        let failed = self.cells.iter().filter_map(|((place, fault, point), ended)| {
            let error = ended.as_ref().err()?;
            let step = point.map_or_else(|| "nobody dies".to_owned(), Point::name);
            Some(format!("{}, {}, {step}: {error:#}", stage.places[*place].name, FAULTS[*fault].name()))
        });
        failed.collect()
    }

    /// Cells that held, of those in which what should happen did.
    fn passed(&self, place: usize) -> usize {
        let held = |at: &At, ended: &anyhow::Result<Ended>| ended.as_ref().is_ok_and(|it| at.2.is_none() || it.fired);
        self.cells.iter().filter(|(at, ended)| at.0 == place && held(at, ended)).count()
    }
}

/// The rows that the words ask for.
fn rows(places: &[Place], words: &[String]) -> Vec<(usize, usize)> {
    let mut rows = vec![];
    for (number, place) in places.iter().enumerate() {
        for (fault, it) in FAULTS.iter().enumerate().filter(|(_, it)| it.is_for(&place.can)) {
            let name = format!("{} {}", place.name, Fault::name(it));
            if words.iter().all(|word| name.contains(word.as_str())) {
                rows.push((number, fault));
            }
        }
    }
    rows
}

async fn run(words: &[String]) -> anyhow::Result<bool> {
    let start = Instant::now();
    let stage = Stage::up().await?;
    let rows = rows(&stage.places, words);
    anyhow::ensure!(!rows.is_empty(), "no row of the matrix has all the words {words:?}");
    let mut matrix = Matrix::default();
    matrix.live(&stage, rows.iter().map(|(place, fault)| (*place, *fault, None)).collect()).await;
    let deaths = rows.iter().flat_map(|(place, fault)| matrix.steps(*place, *fault)).collect();
    matrix.live(&stage, deaths).await;
    matrix.print(&stage, &rows);
    let mut failures = matrix.failures(&stage);
    if let Err(error) = stage.judged().await {
        failures.push(format!("{error:#}"));
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    let mut measured = vec![];
    for (number, place) in stage.places.iter().enumerate() {
        let of_place = matrix.cells.keys().filter(|at| at.0 == number);
        let unreached = of_place.filter(|at| matrix.sign(**at) == '.').count();
        let passed = matrix.passed(number);
        measured.push(row(format!("{}: cells that hold", place.name), passed, "cells"));
        measured.push(row(format!("{}: steps not taken the second time", place.name), unreached, "cells"));
    }
    measured.push(bench::report::Row {
        aim: "0",
        met: Some(failures.is_empty()),
        ..row("what does not hold".to_owned(), failures.len(), "cells")
    });
    println!();
    bench::report::write("providers", &measured)?;
    let passed: usize = (0..stage.places.len()).map(|place| matrix.passed(place)).sum();
    println!("\n{passed} passed, {} failed, in {} s", failures.len(), start.elapsed().as_secs());
    Ok(failures.is_empty())
}

fn row(measure: String, count: usize, unit: &'static str) -> bench::report::Row {
    bench::report::Row {
        measure,
        ours: count as f64,
        unit,
        reference: String::new(),
        theirs: None,
        ratio: None,
        aim: "",
        met: None,
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let ran = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|it| it.block_on(run(&words)));
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED {error:#}");
            ExitCode::FAILURE
        }
    }
}

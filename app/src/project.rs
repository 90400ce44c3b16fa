//! `aivideo project rebuild` and `verify`, and what they show while they work.

use eventstore::Store;
use projections::rebuild::{self, Comparison, Phase, Progress};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Where it is not shown on a terminal: a line so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
const BAR: usize = 24;

/// Rebuilds the read models beside the live ones, and switches.
///
/// # Errors
/// What is wrong with an event or the database; the live read models are as they were.
pub async fn rebuild(store: &Store) -> anyhow::Result<()> {
    let mut meter = Meter::begin();
    let done = rebuild::rebuild(store.pool(), |it| meter.show(it)).await;
    meter.end();
    let events = done?.events;
    println!("the read models are rebuilt from {events} events in {:.1} s", meter.begun.elapsed().as_secs_f64());
    Ok(())
}

/// Folds everything aside and says which rows are not what the events say.
///
/// # Errors
/// A read model differs, an event can not be folded, or the database can not be used.
pub async fn verify(store: &Store) -> anyhow::Result<()> {
    let mut meter = Meter::begin();
    let tables = rebuild::verify(store.pool(), |it| meter.show(it)).await;
    meter.end();
    let tables = tables?;
    for it in &tables {
        println!("{:<22} {:>8} rows  {}", it.table, it.rows, verdict(it));
    }
    let equal = tables.iter().all(Comparison::is_equal);
    anyhow::ensure!(equal, "a read model is not what the events say: `aivideo project rebuild` makes it so");
    Ok(())
}

fn verdict(it: &Comparison) -> String {
    if it.is_equal() {
        return "equal".to_owned();
    }
    format!("DIFFERS: {} missing or other, {} too many or other, such as {}", it.missing, it.extra, it.keys.join(", "))
}

/// Shows progress: on a terminal one line that changes, elsewhere a line now and then.
struct Meter {
    begun: Instant,
    shown: Option<(Phase, Instant)>,
    terminal: bool,
}

impl Meter {
    fn begin() -> Self {
        Self { begun: Instant::now(), shown: None, terminal: stderr().is_terminal() }
    }

    fn show(&mut self, it: Progress) {
        let text = line(it, self.begun.elapsed());
        if self.terminal {
            eprint!("\r\x1b[K{text}");
            // A terminal that is gone is no reason to stop.
            let _ = stderr().flush();
        } else if self.shown.is_none_or(|(phase, at)| phase != it.phase || at.elapsed() >= LINE_EVERY) {
            eprintln!("{text}");
            self.shown = Some((it.phase, Instant::now()));
        }
    }

    /// What is printed next begins on a line of its own.
    fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

fn line(it: Progress, elapsed: Duration) -> String {
    match it.phase {
        Phase::Folding => {}
        Phase::Indexing => return format!("{} events are folded; indexing the new tables", it.events),
        Phase::Switching => return format!("{} events are folded; waiting for readers of the old tables", it.events),
    }
    let share = if it.up_to > 0 { it.position as f64 / it.up_to as f64 } else { 1.0 };
    let full = (share * BAR as f64) as usize;
    let seconds = elapsed.as_secs_f64().max(0.001);
    let left = if share > 0.0 { seconds / share - seconds } else { 0.0 };
    format!(
        "[{}{}] {:>3.0} %  {} events, {:.0}/s, {left:.0} s left",
        "=".repeat(full),
        " ".repeat(BAR - full.min(BAR)),
        share * 100.0,
        it.events,
        it.events as f64 / seconds
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_how_long() {
        let it = Progress { phase: Phase::Folding, position: 250_100, up_to: 1_000_400, events: 250_000 };
        assert_eq!(
            line(it, Duration::from_secs(10)),
            "[======                  ]  25 %  250000 events, 25000/s, 30 s left"
        );
        let done = Progress { phase: Phase::Folding, position: 7, up_to: 7, events: 7 };
        assert_eq!(line(done, Duration::from_secs(1)), "[========================] 100 %  7 events, 7/s, 0 s left");
        let switching = Progress { phase: Phase::Switching, ..done };
        assert_eq!(
            line(switching, Duration::from_secs(1)),
            "7 events are folded; waiting for readers of the old tables"
        );
    }
}

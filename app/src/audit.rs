//! `aivideo audit`: what the event store says about its seals, in words.

use crate::cli::{AuditAction, SubjectArgs};
use crate::config::Settings;
use anyhow::Context;
use domain::id::{AccountId, TaskId};
use eventstore::Store;
use eventstore::audit::bundle::{self, Subject};
use eventstore::audit::{
    Progress, PublicKey, Report, Scope, SealStatus, SignedSeal, Witness, latest_seals, seal_status, verify,
};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seals that are listed.
const LISTED: u32 = 10;

/// Runs what needs the database.
///
/// # Errors
/// A sentence for the terminal; also where the log is not as it was sealed.
pub async fn run(settings: &Settings, action: AuditAction) -> anyhow::Result<()> {
    let store = Store::open(settings.database()?, settings.policy.clone()).await?;
    let done = match action {
        AuditAction::Verify { against } => verify_log(&store, settings, &against).await,
        AuditAction::Seals { export } => seals(&store, settings, export.as_deref()).await,
        AuditAction::Export { subject, output } => export(&store, settings, subject, &output).await,
        AuditAction::Check { file, key } => check(&file, &key),
    };
    store.close().await;
    done
}

/// When a seal was made.
#[must_use]
pub fn at(signed: &SignedSeal) -> String {
    signed.seal.sealed_at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

async fn verify_log(store: &Store, settings: &Settings, against: &[PathBuf]) -> anyhow::Result<()> {
    let trusted = settings.audit.trusted();
    anyhow::ensure!(
        !trusted.is_empty(),
        "there is no key to verify seals with: set AIVIDEO_AUDIT__VERIFICATION_KEYS to the public keys, as \
         `aivideo audit seals` prints them where the log is sealed"
    );
    let exported = against.iter().map(|file| witness(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut shown = Shown::new();
    let report = verify(store.pool(), &trusted, &exported, Scope::All, |it| shown.show(it)).await?;
    shown.clear();
    print_report(&report)?;
    for (file, seal) in against.iter().zip(&exported) {
        println!("against      {}: seal {} of {}", file.display(), seal.seal.number, at(seal));
    }
    let findings = report.findings.len() as u64 + report.left_out;
    anyhow::ensure!(findings == 0, "the log is not as it was sealed: {findings} findings");
    let newest = report.status.newest.as_ref().context(
        "nothing is sealed, so nothing can be proven: set AIVIDEO_AUDIT__SIGNING_KEY and run `aivideo seal`",
    )?;
    println!("everything up to position {} is as it was sealed", newest.seal.last_position);
    Ok(())
}

fn witness(file: &Path) -> anyhow::Result<SignedSeal> {
    let text = std::fs::read(file).with_context(|| format!("{} can not be read", file.display()))?;
    let witness: Witness = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a seal that `aivideo audit seals --export` wrote", file.display()))?;
    Ok(witness.sealed)
}

fn print_report(report: &Report) -> anyhow::Result<()> {
    print_status(&report.status)?;
    println!("verified     {} events, {} seals", report.events, report.seals);
    for finding in &report.findings {
        println!("{:<12} {finding}", finding.kind().to_uppercase());
    }
    if report.left_out > 0 {
        println!("             and {} more findings", report.left_out);
    }
    Ok(())
}

fn print_status(status: &SealStatus) -> anyhow::Result<()> {
    if let Some(newest) = &status.newest {
        let seal = &newest.seal;
        println!("sealed       up to position {}, by seal {} of {}", seal.last_position, seal.number, at(newest));
        println!("             key {}, digest {}", seal.key, seal.digest()?);
    }
    match status.unsealed {
        0 => println!("not sealed   nothing"),
        count => println!("not sealed   {count} events, the oldest for {:.1} s", status.oldest_seconds),
    }
    Ok(())
}

async fn seals(store: &Store, settings: &Settings, to: Option<&Path>) -> anyhow::Result<()> {
    let newest = latest_seals(store.pool(), LISTED).await?;
    print_status(&seal_status(store.pool()).await?)?;
    if !newest.is_empty() {
        println!("{:>8} {:>12} {:>8}  {:<24} {:<17} digest", "seal", "up to", "events", "made", "key");
    }
    for it in &newest {
        let seal = &it.seal;
        let (up_to, made, digest) = (seal.last_position, at(it), seal.digest()?);
        println!("{:>8} {up_to:>12} {:>8}  {made:<24} {:<17} {digest}", seal.number, seal.events, seal.key);
    }
    let own = settings.audit.signing_key.as_ref().map(|it| it.public().id());
    for (id, key) in settings.audit.trusted().iter() {
        let use_of_it = if own.as_ref() == Some(id) { "signs and verifies" } else { "verifies" };
        println!("key {id}  {key}  {use_of_it}");
    }
    if let Some(file) = to {
        let newest = newest.into_iter().next().context("nothing is sealed yet: there is no seal to export")?;
        let number = newest.seal.number;
        let witness = Witness::of(newest)?;
        let (whole, mut to) = Whole::create(file)?;
        serde_json::to_writer_pretty(&mut to, &witness)?;
        writeln!(to).and_then(|()| to.flush()).with_context(|| format!("{} can not be written", file.display()))?;
        whole.finish()?;
        println!("seal {number} is in {}: keep it where the database's administrators can not write", file.display());
    }
    Ok(())
}

/// A file that is there whole, or not at all: it is written beside its place, and goes when it is not finished.
struct Whole<'a> {
    part: PathBuf,
    place: &'a Path,
}

impl<'a> Whole<'a> {
    fn create(place: &'a Path) -> anyhow::Result<(Self, BufWriter<File>)> {
        let part = PathBuf::from(format!("{}.part", place.display()));
        let file = File::create(&part).with_context(|| format!("{} can not be written", part.display()))?;
        Ok((Self { part, place }, BufWriter::new(file)))
    }

    fn finish(self) -> anyhow::Result<()> {
        std::fs::rename(&self.part, self.place).with_context(|| format!("{} can not be written", self.place.display()))
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        // Finished, it has gone to its place; unfinished, why it is of no use was said.
        drop(std::fs::remove_file(&self.part));
    }
}

async fn export(store: &Store, settings: &Settings, which: SubjectArgs, output: &Path) -> anyhow::Result<()> {
    let subject = match which {
        SubjectArgs { stream: Some(name), .. } => Subject::Stream(name),
        SubjectArgs { task: Some(id), .. } => Subject::Task(TaskId(id)),
        SubjectArgs { account: Some(id), .. } => Subject::Account(AccountId(id)),
        _ => anyhow::bail!("name what to export: --stream CATEGORY/ID, --task ID or --account ID"),
    };
    let (whole, to) = Whole::create(output)?;
    let done = bundle::export(store.pool(), &settings.audit.trusted(), &subject, to).await?;
    whole.finish()?;
    println!("{}: {} events of {subject}, under {} seals", output.display(), done.events, done.seals);
    if done.unsealed > 0 {
        println!("{} events of it are not sealed yet and were left out: export again later", done.unsealed);
    }
    println!("check it with: aivideo audit check {} --key KEY", output.display());
    Ok(())
}

/// Checks a bundle.
///
/// # Errors
/// The file can not be read, or is not to be believed.
pub fn check(file: &Path, keys: &[PublicKey]) -> anyhow::Result<()> {
    let open = File::open(file).with_context(|| format!("{} can not be read", file.display()))?;
    let checked = bundle::check(BufReader::new(open), keys).with_context(|| file.display().to_string())?;
    println!("{}: {} events, {} seals", checked.subject, checked.events, checked.seals);
    for (stream, (events, last)) in &checked.streams {
        println!("  {stream}: {events} events, the last is version {last}");
    }
    for flaw in &checked.flaws {
        println!("line {}: {}", flaw.line, flaw.what);
    }
    anyhow::ensure!(
        checked.flaws.is_empty(),
        "{} is not to be believed: {} flaws",
        file.display(),
        checked.flaws.len()
    );
    let sealed = checked.sealed_at.map(|it| it.format("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default();
    println!("each event is as it was sealed, at the latest at {sealed}");
    if keys.is_empty() {
        for it in &checked.keys {
            println!("by key {} that came with the file: {it}", it.id());
        }
        println!(
            "the file proves nothing if that key is not the service's: compare it, or give the right one with --key"
        );
    }
    Ok(())
}

/// One line on a terminal, now and then.
struct Shown {
    began: Instant,
    last: Instant,
    terminal: bool,
}

impl Shown {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, it: Progress) {
        if !self.terminal || self.last.elapsed() < Duration::from_millis(200) {
            return;
        }
        self.last = Instant::now();
        let rate = it.events as f64 / self.began.elapsed().as_secs_f64();
        eprint!("\r{} events, up to position {} of {}, {rate:.0} events/s   ", it.events, it.position, it.up_to);
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r{:78}\r", "");
        }
    }
}

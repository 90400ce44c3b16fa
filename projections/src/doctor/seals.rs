//! tamper-evident, at little cost: the newest seals and what they seal. `aivideo audit verify` looks at everything.

use super::{Finding, Limits};
use eventstore::audit::{Scope, TrustedKeys, VerifyError, verify};
use sqlx::PgPool;

/// Seals that are looked at.
const NEWEST: u32 = 3;

/// Whether the newest events are as they were sealed, and whether somebody seals at all. Without a seal and without a key to believe,
/// sealing is off, which is a choice and no fault.
///
/// # Errors
/// The database can not be used.
pub async fn tamper_evident(pool: &PgPool, trusted: &TrustedKeys, limits: Limits) -> Result<Finding, VerifyError> {
    let report = verify(pool, trusted, &[], Scope::Newest(NEWEST), |_| {}).await?;
    let finding = |ok, count, detail| Finding { invariant: "tamper-evident", ok, detail, count };
    if report.status.newest.is_none() && trusted.is_empty() {
        return Ok(finding(true, 0, "not looked at: sealing is off, there is no key".to_owned()));
    }
    let mut wrong: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    if report.status.unsealed > 0 && report.status.oldest_seconds > limits.unsealed.as_secs_f64() {
        wrong.push(format!(
            "{} events are not sealed, the oldest for {:.0} s: does `aivideo seal` run?",
            report.status.unsealed, report.status.oldest_seconds
        ));
    }
    let count = wrong.len() as u64 + report.left_out;
    if wrong.is_empty() {
        let holds =
            format!("the {} events of the newest {} seals are as they were sealed", report.events, report.seals);
        return Ok(finding(true, 0, holds));
    }
    wrong.truncate(3);
    Ok(finding(false, count, wrong.join("; ")))
}

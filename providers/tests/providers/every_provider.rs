//! What holds for every provider, against its simulator: replies lost before and after acceptance, refusals, failures, and at
//! most one job for an attempt in the end.

use crate::adapters::{Adapters, order_at, sought_at};
use crate::support::{Receiver, Sim, attempt, job_of, wait_for};
use domain::id::AttemptId;
use providers::simulator::Kind;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use workers::ports::{
    CancelAsked, CancelKind, Created, Dedupe, FaultClass, Found, JobState, LookUp, Polled, Provider, WebhookScheme,
};

const NOBODY: &str = "http://127.0.0.1:9";

struct Stage {
    _store: TempDir,
    sim: Sim,
    kind: &'static str,
    provider: Arc<dyn Provider>,
}

impl Stage {
    async fn of((kind, speaks): (&'static str, Kind), callback_base_url: &str) -> anyhow::Result<Self> {
        let store = tempfile::tempdir()?;
        let sim = Sim::of(speaks, store.path()).await?;
        let provider = Adapters::one(kind, &sim.origin, callback_base_url)?;
        Ok(Self { _store: store, sim, kind, provider })
    }

    async fn create(&self, attempt: AttemptId, wishes: &str) -> Created {
        let mut order = order_at(self.kind, attempt, &format!("a cat [sim: {wishes}]"));
        order.timeout = Duration::from_millis(1_500);
        self.provider.create(&order).await
    }

    async fn find(&self, attempt: AttemptId) -> Found {
        self.provider.find(&sought_at(self.kind, attempt)).await
    }
}

fn succeeded(state: &JobState) -> bool {
    matches!(state, JobState::Succeeded { .. })
}

#[tokio::test]
async fn a_job_from_its_order_to_its_file_and_its_callback() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let receiver = Receiver::start(0).await?;
        let stage = Stage::of(kind, &receiver.base_url).await?;
        let attempt = attempt();
        let created = stage.create(attempt, "run=300").await;
        let job = job_of(&created)?;
        let state = wait_for(stage.provider.as_ref(), job, succeeded).await?;
        let JobState::Succeeded { output_url, .. } = state else { anyhow::bail!("it succeeded") };
        let file = stage.sim.http.get(&output_url).send().await?.error_for_status()?.bytes().await?;
        assert!(file.len() > 1_000, "{}: a video", stage.kind);
        let counters = stage.sim.look("counters").await?;
        assert_eq!(counters["billed_seconds"][attempt.to_string()], 1, "{}", stage.kind);
        if stage.provider.capabilities().webhook == WebhookScheme::None {
            continue;
        }
        let told = receiver.wait(1).await?;
        let told = told.last().expect("one came");
        let (path, query) = &told.path_and_query;
        assert_eq!(*path, format!("/hooks/callbacks/{}", stage.kind));
        let now = chrono::DateTime::from(std::time::SystemTime::now());
        stage.provider.renew_keys(false).await;
        let read = stage.provider.callback(&told.header(), query, &told.body, now)?;
        assert_eq!((read.attempt, read.job.as_str()), (attempt, job), "{}", stage.kind);
        let other = crate::support::attempt().to_string();
        let moved = query.replace(&attempt.to_string(), &other);
        assert!(stage.provider.callback(&told.header(), &moved, &told.body, now).is_err(), "{}: moved", stage.kind);
    }
    Ok(())
}

/// How an answer is lost, and how many jobs that leaves.
pub(crate) const LOSSES: [(&str, u64); 9] = [
    ("drop=before", 0),
    ("5xx=before", 0),
    ("hang=before:5", 0),
    ("drop=after", 1),
    ("5xx=after", 1),
    ("hang=after:5", 1),
    ("reply=cut", 1),
    ("reply=junk", 1),
    ("reply=noid", 1),
];

#[tokio::test]
async fn an_answer_that_is_lost_is_unknown_and_never_costs_a_second_job() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let stage = Stage::of(kind, NOBODY).await?;
        for (loss, accepted) in LOSSES {
            let (attempt, at) = (attempt(), format!("{}, {loss}", stage.kind));
            let wishes = format!("callback=none {loss}");
            let created = stage.create(attempt, &wishes).await;
            assert!(matches!(created, Created::Unknown { .. }), "{at}: {created:?}");
            assert_eq!(stage.sim.creates(attempt).await?, 1, "{at}: one call");
            assert_eq!(stage.sim.accepted(attempt).await?, accepted, "{at}");
            let found = stage.find(attempt).await;
            match (stage.provider.capabilities().look_up, accepted, &found) {
                // Only a conclusive "absent" lets the caller submit again.
                (_, 0, Found::Absent) => {
                    let again = stage.create(attempt, &wishes).await;
                    assert!(matches!(again, Created::Accepted { .. }), "{at}: the second call: {again:?}");
                    assert_eq!(stage.sim.accepted(attempt).await?, 1, "{at}: one job in the end");
                }
                (_, 1, Found::Job { job }) => {
                    wait_for(stage.provider.as_ref(), job, succeeded).await?;
                }
                (LookUp::None, _, Found::Impossible) | (LookUp::CallbackOnly, _, Found::Inconclusive { .. }) => {}
                _ => anyhow::bail!("{at}: {found:?}"),
            }
            assert!(stage.sim.accepted(attempt).await? <= 1, "{at}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn where_the_caller_chooses_the_id_sending_it_again_is_the_look_up() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        for status in [200, 400, 409] {
            let stage = Stage::of(kind, NOBODY).await?;
            if stage.provider.capabilities().dedupe != Dedupe::RefusesDuplicate {
                continue;
            }
            let attempt = attempt();
            let wishes = format!("callback=none drop=after list=late:60000 conflict={status}");
            let lost = stage.create(attempt, &wishes).await;
            assert!(matches!(lost, Created::Unknown { .. }), "{lost:?}");
            assert_eq!(stage.find(attempt).await, Found::Absent, "it does not show yet");
            let again = stage.create(attempt, &wishes).await;
            assert!(matches!(again, Created::DuplicateOf { .. }), "{status}: {again:?}");
            assert_eq!(stage.sim.accepted(attempt).await?, 1, "{}", stage.kind);
        }
    }
    Ok(())
}

#[tokio::test]
async fn refusals_and_throttling_leave_nothing_behind() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let stage = Stage::of(kind, NOBODY).await?;
        for (wish, class) in [
            ("refuse=400", FaultClass::BadRequest),
            ("refuse=402", FaultClass::Account),
            ("refuse=moderation", FaultClass::Moderation),
            ("no-such-word", FaultClass::BadRequest),
        ] {
            let attempt = attempt();
            let created = stage.create(attempt, wish).await;
            let at = format!("{}, {wish}: {created:?}", stage.kind);
            assert!(matches!(&created, Created::Rejected(fault) if fault.class == class), "{at}");
            assert_eq!(stage.sim.accepted(attempt).await?, 0, "{at}");
        }
        let attempt = attempt();
        let slow = stage.create(attempt, "throttle=1 callback=none").await;
        assert_eq!(slow, Created::Throttled { retry_after: Some(Duration::from_secs(1)) }, "{}", stage.kind);
        let then = stage.create(attempt, "throttle=1 callback=none").await;
        assert!(matches!(then, Created::Accepted { .. }), "{}: {then:?}", stage.kind);
    }
    Ok(())
}

#[tokio::test]
async fn ends_that_are_no_success_and_words_that_nobody_knows() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let stage = Stage::of(kind, NOBODY).await?;
        for (wish, class) in [
            ("fail=internal", FaultClass::Internal),
            ("fail=moderation", FaultClass::Moderation),
            ("fail=expired", FaultClass::Internal),
            ("fail=hidden", if stage.kind == "fal" { FaultClass::BadRequest } else { FaultClass::Internal }),
        ] {
            let created = stage.create(attempt(), &format!("callback=none {wish}")).await;
            let ended = |state: &JobState| matches!(state, JobState::Failed(_));
            let state = wait_for(stage.provider.as_ref(), job_of(&created)?, ended).await?;
            let at = format!("{}, {wish}: {state:?}", stage.kind);
            assert!(matches!(&state, JobState::Failed(fault) if fault.class == class), "{at}");
        }
        let created = stage.create(attempt(), "callback=none status=weird run=1500").await;
        let job = job_of(&created)?;
        let odd = |state: &JobState| matches!(state, JobState::Unrecognised { .. });
        wait_for(stage.provider.as_ref(), job, odd).await?;
        wait_for(stage.provider.as_ref(), job, succeeded).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_can_be_cancelled_is() -> anyhow::Result<()> {
    for kind in Kind::ALL {
        let stage = Stage::of(kind, NOBODY).await?;
        let capabilities = *stage.provider.capabilities();
        stage.sim.order("pause", serde_json::json!({})).await?;
        let created = stage.create(attempt(), "callback=none never").await;
        let job = job_of(&created)?;
        let asked = stage.provider.cancel(job).await;
        match (capabilities.cancel, capabilities.cancel_forgets) {
            (CancelKind::None, _) => assert_eq!(asked, CancelAsked::NotPossible, "{}", stage.kind),
            (_, true) => {
                assert_eq!(asked, CancelAsked::Gone, "{}", stage.kind);
                assert_eq!(stage.provider.poll(job).await, Polled::State(JobState::NotFound), "{}", stage.kind);
            }
            (_, false) => {
                assert_eq!(asked, CancelAsked::Requested, "{}", stage.kind);
                wait_for(stage.provider.as_ref(), job, |state| *state == JobState::Canceled).await?;
            }
        }
        stage.sim.order("resume", serde_json::json!({})).await?;
        let created = stage.create(attempt(), "callback=none run=1").await;
        let job = job_of(&created)?;
        wait_for(stage.provider.as_ref(), job, succeeded).await?;
        if capabilities.cancel != CancelKind::None {
            let too_late = stage.provider.cancel(job).await;
            assert_eq!(too_late, CancelAsked::AlreadyEnded, "{}", stage.kind);
            wait_for(stage.provider.as_ref(), job, succeeded).await?;
        }
    }
    Ok(())
}

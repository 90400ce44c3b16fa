//! A user of the API: a tenant with credits and a token.

use crate::stack::{Stack, eventually};
use anyhow::{Context, ensure};
use app::client::{Client, Fault};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A tenant's user.
pub struct User {
    /// The tenant.
    pub tenant: Uuid,
    token: String,
    /// The client.
    pub client: Client,
}

const SUBMIT: &str = "mutation ($input: GenerationInput!, $key: String!) {
    submitGeneration(input: $input, idempotencyKey: $key) { taskId version replayed refusal { code message field } }
}";

const CANCEL: &str = "mutation ($id: ID!) { cancelTask(taskId: $id) { version refusal { code message } } }";

const TASK: &str = "query ($id: ID!) {
    task(id: $id) {
        state version hold charge error { class code message }
        attempts { state number providerJobId }
        video { url assetId bytes sha256 contentType durationMillis width height videoCodec }
        thumbnail { url }
    }
}";

impl User {
    /// A new tenant with credits, at the API of `base`.
    ///
    /// # Errors
    /// `./dev aivideo` failed.
    pub async fn new(stack: &Stack, credits: i64) -> anyhow::Result<Self> {
        let base = stack.setting("AIVIDEO_API__PUBLIC_URL")?.to_owned();
        Self::at(stack, &base, credits).await
    }

    /// A new tenant with credits, at the API at `base`.
    ///
    /// # Errors
    /// `./dev aivideo` failed.
    pub async fn at(stack: &Stack, base: &str, credits: i64) -> anyhow::Result<Self> {
        let tenant = Uuid::new_v4();
        let (id, amount) = (tenant.to_string(), credits.to_string());
        stack.dev(&["aivideo", "grant", "--tenant", &id, "--amount", &amount, "--key", "test"]).await?;
        let token = token(stack, tenant, &["creator"])?;
        Ok(Self::with_token(tenant, base, token))
    }

    /// Who has this token, at the API at `base`.
    #[must_use]
    pub fn with_token(tenant: Uuid, base: &str, token: String) -> Self {
        Self { tenant, client: Client::new(base, &token), token }
    }

    /// The same user at another API process.
    #[must_use]
    pub fn elsewhere(&self, base: &str) -> Self {
        Self::with_token(self.tenant, base, self.token.clone())
    }

    /// Submits a task and returns its id.
    ///
    /// # Errors
    /// The API does not answer, or refuses.
    pub async fn submit(&self, prompt: &str) -> anyhow::Result<String> {
        self.submit_with_key(prompt, &Uuid::new_v4().to_string()).await
    }

    /// Submits with a key, and again with the same key until the API answers: as a careful client does.
    ///
    /// # Errors
    /// The API did not answer for two minutes, or refuses.
    pub async fn submit_with_key(&self, prompt: &str, key: &str) -> anyhow::Result<String> {
        let payload = eventually(Duration::from_secs(120), async || self.submit_once(prompt, key).await).await?;
        ensure!(payload["refusal"].is_null(), "refused: {}", payload["refusal"]);
        Ok(payload["taskId"].as_str().context("no task id")?.to_owned())
    }

    /// One submit, as it is answered.
    ///
    /// # Errors
    /// The API does not answer.
    pub async fn submit_once(&self, prompt: &str, key: &str) -> anyhow::Result<Value> {
        let input = json!({
            "prompt": prompt, "model": "aivideo/paper-boat-1", "durationSeconds": 1, "inputAssetIds": [],
        });
        let data = self.client.run(SUBMIT, json!({ "input": input, "key": key })).await?;
        Ok(data["submitGeneration"].clone())
    }

    /// Reads a task at this version or a newer one. Where the answer is that it can not be shown yet, it is asked again, for a
    /// minute.
    ///
    /// # Errors
    /// The API does not answer, or does not show that version for a minute.
    pub async fn task_at(&self, task: &Value, version: i64) -> anyhow::Result<Value> {
        let query = "query ($id: ID!, $version: Int) { task(id: $id, atLeastVersion: $version) { version state } }";
        let variables = json!({ "id": task, "version": version });
        let start = Instant::now();
        loop {
            match self.client.run(query, variables.clone()).await {
                Ok(seen) => return Ok(seen["task"].clone()),
                Err(Fault::GraphQl(said))
                    if said.contains("can not be shown yet") && start.elapsed() < Duration::from_secs(60) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Asks for a task to be cancelled; returns the refusal's code, empty if there is none.
    ///
    /// # Errors
    /// The API does not answer.
    pub async fn cancel(&self, task: &str) -> anyhow::Result<String> {
        let data = self.client.run(CANCEL, json!({ "id": task })).await?;
        Ok(data["cancelTask"]["refusal"]["code"].as_str().unwrap_or_default().to_owned())
    }

    /// A task as the API shows it.
    ///
    /// # Errors
    /// The API does not answer.
    pub async fn task(&self, task: &str) -> anyhow::Result<Value> {
        Ok(self.client.run(TASK, json!({ "id": task })).await?["task"].clone())
    }

    /// Waits until a task is in one of these states.
    ///
    /// # Errors
    /// It was not within `limit`.
    pub async fn until(&self, task: &str, states: &[&str], limit: Duration) -> anyhow::Result<Value> {
        eventually(limit, async || {
            let it = self.task(task).await?;
            let state = it["state"].as_str().unwrap_or("not there yet");
            ensure!(states.contains(&state), "task {task} is {state}, waited for {}: {it}", states.join(" or "));
            Ok(it)
        })
        .await
    }

    /// Waits until every task has ended, and counts the ends.
    ///
    /// # Errors
    /// Some had not within `limit`: they are named with their states.
    pub async fn until_all_ended(
        &self,
        stack: &Stack,
        tasks: usize,
        limit: Duration,
    ) -> anyhow::Result<BTreeMap<String, i64>> {
        eventually(limit, async || {
            let states: Vec<(String, i64)> =
                sqlx::query_as("SELECT state, count(*) FROM read_tasks WHERE tenant_id = $1 GROUP BY state")
                    .bind(self.tenant)
                    .fetch_all(stack.pool())
                    .await?;
            let states: BTreeMap<String, i64> = states.into_iter().collect();
            let named = ["SUCCEEDED", "FAILED", "CANCELED", "CANCELED_WITH_OUTPUT", "MANUAL_REVIEW"];
            let ended: i64 =
                states.iter().filter(|(state, _)| named.contains(&state.as_str())).map(|(_, count)| count).sum();
            ensure!(usize::try_from(ended)? == tasks, "{ended} of {tasks} tasks have ended: {states:?}");
            Ok(states)
        })
        .await
    }
}

/// A token for a tenant of this stack.
///
/// # Errors
/// The stack has no token secret.
pub fn token(stack: &Stack, tenant: Uuid, roles: &[&str]) -> anyhow::Result<String> {
    let secret = stack.setting("AIVIDEO_API__TOKEN_SECRET")?;
    app::tokens::mint(secret, tenant, roles)
}

//! Every field of the schema as everybody: each role, with and without a token, of the owner's tenant and of another. A root field
//! without a rule fails, and so does a field of any type that the walk does not reach.

use crate::contract::Contract;
use crate::live::step;
use crate::subscribe::Client;
use crate::world::{Server, World, input, token};
use anyhow::{Context, Result};
use api::Role;
use domain::attempt;
use domain::id::{AttemptId, TaskId, TenantId};
use domain::task::Command;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Nobody,
    Member,
    Creator,
    Auditor,
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// An answer.
    Shown,
    /// What does not exist is answered the same.
    Nothing,
    /// An error or a refusal with this code.
    Told(&'static str),
}

use Seen::{Nothing, Shown, Told};
use Who::{Auditor, Creator, Member, Nobody, Operator};

/// Who sees what of a root field; `own`: the caller's tenant is the owner's.
type Rule = fn(Who, own: bool) -> Seen;

/// The owner's rows: for the own tenant, and for those who look after everybody's.
fn rows(who: Who, own: bool) -> Seen {
    match who {
        Nobody => Told("UNAUTHENTICATED"),
        Auditor | Operator => Shown,
        Member | Creator if own => Shown,
        Member | Creator => Nothing,
    }
}

/// The same for everybody who has a token.
fn catalogue(who: Who, _own: bool) -> Seen {
    if who == Nobody { Told("UNAUTHENTICATED") } else { Shown }
}

fn only(allowed: Who, who: Who, seen: Seen) -> Seen {
    match who {
        Nobody => Told("UNAUTHENTICATED"),
        who if who == allowed => seen,
        _ => Told("FORBIDDEN"),
    }
}

/// A creator submits for their own tenant, whichever that is.
fn submits(who: Who, own: bool) -> Seen {
    only(Creator, who, if own { Shown } else { Told("INSUFFICIENT_CREDITS") })
}

fn cancels(who: Who, own: bool) -> Seen {
    match who {
        Operator => Shown,
        who => only(Creator, who, if own { Shown } else { Told("NOT_FOUND") }),
    }
}

fn grants(who: Who, _own: bool) -> Seen {
    only(Operator, who, Shown)
}

/// Allowed, and refused by the task: nobody was asked about it.
fn resolves(who: Who, _own: bool) -> Seen {
    only(Operator, who, Told("NOT_IN_REVIEW"))
}

/// Allowed, and refused by the task, which has not ended.
fn retries(who: Who, own: bool) -> Seen {
    only(Creator, who, if own { Told("NOT_RETRYABLE") } else { Told("NOT_FOUND") })
}

fn exports(who: Who, own: bool) -> Seen {
    only(Creator, who, if own { Told("NOT_EXPORTABLE") } else { Told("NOT_FOUND") })
}

/// Each result of a batch says by itself what came of it.
fn submits_many(who: Who, _own: bool) -> Seen {
    only(Creator, who, Shown)
}

/// For those who look after everybody's.
fn audits(who: Who, _own: bool) -> Seen {
    match who {
        Nobody => Told("UNAUTHENTICATED"),
        Auditor | Operator => Shown,
        Member | Creator => Told("FORBIDDEN"),
    }
}

/// Subscriptions say what queries answer with null.
fn follows(who: Who, own: bool) -> Seen {
    match rows(who, own) {
        Nothing => Told("NOT_FOUND"),
        seen => seen,
    }
}

const STATEMENT: &str = "(tenantId: $tenant, from: \"2020-01-01T00:00:00Z\", before: \"2200-01-01T00:00:00Z\")";

/// Every root field, the arguments it is asked with, and its rule. A new one needs a row here.
const ROOTS: &[(&str, &str, Rule)] = &[
    ("Query.account", "(tenantId: $tenant)", rows),
    ("Query.accountStatement", STATEMENT, rows),
    ("Query.auditAccesses", "(first: 3)", audits),
    ("Query.replayTask", "(taskId: $task)", audits),
    ("Query.streamDifferences", "(kind: TASK, id: $task, from: \"1\", to: \"2\")", audits),
    ("Query.streamEvents", "(kind: TASK, id: $task)", audits),
    ("Query.streamState", "(kind: TASK, id: $task)", audits),
    ("Query.models", "", catalogue),
    ("Query.node", "(id: $node)", rows),
    ("Query.task", "(id: $task)", rows),
    ("Query.taskHistory", "(taskId: $task)", rows),
    ("Query.tasks", "(first: 100)", rows),
    // Before it is cancelled.
    ("Mutation.retryTask", "(taskId: $task, idempotencyKey: $key)", retries),
    ("Mutation.exportTask", "(taskId: $task, input: {heightPx: 240}, idempotencyKey: $key)", exports),
    ("Mutation.submitGenerations", "(inputs: [$input], idempotencyKey: $key)", submits_many),
    ("Mutation.resolveTask", "(taskId: $task)", resolves),
    ("Mutation.cancelTask", "(taskId: $task)", cancels),
    ("Mutation.grantCredits", "(tenantId: $tenant, amount: \"1\", key: \"walls\")", grants),
    ("Mutation.submitGeneration", "(input: $input, idempotencyKey: $key)", submits),
    ("Subscription.taskStatus", "(taskId: $task)", follows),
    ("Subscription.taskUpdates", "(taskIds: [$task])", follows),
    ("Subscription.tenantUpdates", "(tenantId: $tenant)", follows),
];

struct Walk {
    world: World,
    server: Server,
    schema: Contract,
    variables: Value,
    /// What nobody else may read: ids and names that are the owner's alone.
    secrets: Vec<String>,
    reached: BTreeSet<String>,
    asked: u32,
}

impl Walk {
    async fn new() -> Result<Self> {
        let world = World::with(|config| {
            config.max_complexity = 1_000_000;
            config.max_depth = 50;
        })
        .await?;
        world.grant(world.tenant, 100_000).await?;
        let creator = world.creator()?;
        let task = world.submitted(&creator, "walls").await?;
        // An attempt with a history; the task waits for its next try.
        let version = step(&world, &task, |turn| {
            turn.task(Command::BeginSubmission { attempt_no: 1 })?;
            let task = turn.case.task_id().unwrap_or(TaskId(Uuid::nil()));
            turn.attempt(attempt::Command::Plan { task, number: 1, provider: "replicate".to_owned() })?;
            let retry_at = turn.now + chrono::TimeDelta::hours(1);
            turn.task(Command::Defer { retry_at, reason: "throttled".to_owned() })
        })
        .await?;
        // From here on the rows are the test's.
        let ask =
            "query($id: ID!) { task(id: $id, atLeastVersion: VERSION) { id } account(atLeastVersion: \"2\") { id } }";
        let ask = ask.replace("VERSION", &version.to_string());
        let answer = world.ask(&creator, &ask, json!({"id": task})).await?;
        let node = answer["data"]["task"]["id"].as_str().with_context(|| format!("{answer}"))?.to_owned();
        let attempt = AttemptId::of(task.parse()?, 1);
        let asset = Uuid::new_v4();
        let tenant = world.tenant;
        world
            .db
            .sql(&format!(
                "UPDATE read_tasks SET error_class = 'timeout', error_message = 'owner''s error' WHERE task_id = '{task}';
                 UPDATE read_attempts SET state = 'FAILED', provider_job_id = 'owner''s job', error_class = 'timeout'
                  WHERE attempt_id = '{attempt}';
                 INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at,
                                          position)
                 SELECT CASE kind WHEN 'video' THEN '{asset}'::uuid ELSE gen_random_uuid() END, '{task}', '{tenant}', kind,
                        'owner''s object', 7, 'owner''s digest', 'video/mp4', now(), 1
                   FROM unnest(ARRAY['video', 'thumbnail']) AS kind;"
            ))
            .await?;
        let secrets = [task.clone(), node.clone(), attempt.to_string(), asset.to_string(), tenant.to_string()];
        Ok(Self {
            server: world.serve().await?,
            schema: Contract::read(&api::schema_sdl())?,
            variables: json!({"task": task, "node": node, "tenant": tenant, "input": input("a boat"), "key": "again"}),
            secrets: secrets.into_iter().chain(["owner's".to_owned()]).collect(),
            reached: BTreeSet::new(),
            asked: 0,
            world,
        })
    }

    fn token(&self, who: Who, own: bool) -> Result<Option<String>> {
        let tenant = if own { self.world.tenant } else { TenantId(Uuid::from_u128(0x5eed)) };
        let roles: &[Role] = match who {
            Nobody => return Ok(None),
            Member => &[],
            Creator => &[Role::Creator],
            Auditor => &[Role::Auditor],
            Operator => &[Role::Operator],
        };
        token(tenant, roles).map(Some)
    }

    fn document(&self, root: &str, field: &str, arguments: &str) -> Result<String> {
        let fields = self.schema.fields_of(root);
        let (_, ty) = fields.iter().find(|(name, _)| *name == field).with_context(|| format!("no {root}.{field}"))?;
        let types =
            [("task", "ID!"), ("node", "ID!"), ("tenant", "ID!"), ("input", "GenerationInput!"), ("key", "String")];
        let used = types.iter().filter(|(name, _)| arguments.contains(&format!("${name}")));
        let declared = used.map(|(name, ty)| format!("${name}: {ty}")).collect::<Vec<_>>().join(", ");
        let declared = if declared.is_empty() { declared } else { format!("({declared})") };
        let everything = self.schema.everything_of(ty, &[]);
        Ok(format!("{}{declared} {{ {field}{arguments} {everything} }}", root.to_lowercase()))
    }

    async fn ask(&self, token: Option<&str>, query: &str) -> Result<Value> {
        let names = ["task", "node", "tenant", "input", "key"].into_iter();
        let used = names.filter(|name| query.contains(&format!("${name}:")));
        let variables: Value =
            used.map(|name| (name.to_owned(), self.variables[name].clone())).collect::<serde_json::Map<_, _>>().into();
        if query.starts_with("subscription") {
            return Client::first(&self.server, token, query, variables).await;
        }
        let body = json!({"query": query, "variables": variables}).to_string();
        self.world.post(token, &[], body).await?.json()
    }

    async fn step(&mut self, root: &str, field: &str, arguments: &str, rule: Rule) -> Result<()> {
        let query = self.document(root, field, arguments)?;
        for (who, own) in
            [Nobody, Member, Creator, Auditor, Operator].into_iter().flat_map(|who| [(who, true), (who, false)])
        {
            let before = self.world.count("SELECT count(*) FROM audit_accesses").await?;
            let answer = self.ask(self.token(who, own)?.as_deref(), &query).await?;
            let recorded = self.world.count("SELECT count(*) FROM audit_accesses").await? - before;
            let looks = matches!(who, Auditor | Operator) && root != "Mutation" && field != "models";
            assert_eq!(
                recorded > 0,
                looks,
                "{root}.{field} as {who:?}: who may look at everything is recorded, and nobody else"
            );
            let case = format!("{root}.{field} as {who:?} of the {} tenant", if own { "owner's" } else { "other" });
            assert_eq!(seen(&answer, field), rule(who, own), "{case}: {answer}");
            self.asked += 1;
            if !own && !matches!(who, Auditor | Operator) {
                let text = answer.to_string();
                let leaked = self.secrets.iter().find(|secret| text.contains(*secret));
                assert_eq!(leaked, None, "{case}: {answer}");
            }
            self.visit(&answer["data"]);
            self.reached.extend(answer["data"].get(field).map(|_| format!("{root}.{field}")));
        }
        Ok(())
    }

    /// Remembers what an answer holds.
    fn visit(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.visit(item)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(ty) = fields.get("__typename").and_then(Value::as_str) {
                        self.reached.insert(format!("{ty}.{name}"));
                    }
                    self.visit(value);
                }
            }
            _ => {}
        }
    }
}

/// What came of it: an error's or a refusal's code, something, or nothing.
fn seen(answer: &Value, field: &str) -> Seen {
    let value = &answer["data"][field];
    let told = [&answer["errors"][0]["extensions"]["code"], &value["refusal"]["code"]];
    if let Some(code) = told.iter().find_map(|code| code.as_str()) {
        let known = [
            "UNAUTHENTICATED",
            "FORBIDDEN",
            "NOT_FOUND",
            "INSUFFICIENT_CREDITS",
            "NOT_IN_REVIEW",
            "NOT_RETRYABLE",
            "NOT_EXPORTABLE",
        ];
        return Told(known.into_iter().find(|it| *it == code).unwrap_or("another code"));
    }
    if answer["errors"].is_array() {
        return Told("an error without a code");
    }
    let is_empty = value["edges"].as_array().is_some_and(Vec::is_empty) && value["totalCount"]["value"] == 0;
    if value.is_null() || is_empty { Nothing } else { Shown }
}

#[tokio::test]
async fn every_field_as_everybody() -> Result<()> {
    let mut walk = Walk::new().await?;
    let roots: BTreeSet<String> = walk.schema.fields_of_all().into_iter().filter(|field| is_root(field)).collect();
    let ruled: BTreeSet<String> = ROOTS.iter().map(|(field, ..)| (*field).to_owned()).collect();
    assert_eq!(roots, ruled, "each root field needs a rule in ROOTS, and no more than there are");
    for (place, arguments, rule) in ROOTS {
        let (root, field) = place.split_once('.').context("a root and a field")?;
        walk.step(root, field, arguments, *rule).await?;
    }
    let missed: Vec<String> = walk.schema.fields_of_all().difference(&walk.reached).cloned().collect();
    assert!(missed.is_empty(), "the walk does not reach these: {missed:?}");
    println!("{} fields, {} questions", walk.reached.len(), walk.asked);
    Ok(())
}

fn is_root(field: &str) -> bool {
    ["Query.", "Mutation.", "Subscription."].iter().any(|root| field.starts_with(root))
}

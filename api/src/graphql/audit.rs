//! What auditors ask: histories event by event, the past, what changed, replays, statements of account, and who looked at what.

use super::account::AccountEntry;
use super::context::{record, state, viewer, with_role};
use super::error::{coded, fault};
use super::history::part;
use super::node_id::Kind;
use super::scalars::{BigInt, Credits, Instant};
use crate::auth::Role;
use async_graphql::{ComplexObject, Context, Enum, Error, ID, Json, Object, Result, SimpleObject};
use domain::aggregate::Category;
use domain::id::{AccountId, AttemptId, TaskId, TenantId};
use domain::process::StreamId;
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use eventstore::{Difference, History, HistoryError, LoggedEvent, Moment, RecordedAccess};
use projections::query::{Deviation, KindSum, StatementRow};
use serde_json::Value;

/// Those who may look.
const AUDITORS: [Role; 2] = [Role::Auditor, Role::Operator];

/// The kinds of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum StreamKind {
    /// A task.
    Task,
    /// One of its attempts.
    Attempt,
    /// A credit account: it has its tenant's id.
    Account,
}

impl StreamKind {
    fn stream(self, id: &ID) -> Result<StreamId> {
        Ok(match self {
            Self::Task => StreamId::task(TaskId(Kind::Task.read(id)?)),
            Self::Attempt => StreamId::attempt(AttemptId(Kind::Attempt.read(id)?)),
            Self::Account => StreamId::account(AccountId(Kind::Account.read(id)?)),
        })
    }
}

fn stream_name(stream: StreamId) -> String {
    format!("{}-{}", stream.category.name(), stream.id)
}

/// A recorded event, as it was stored and as this build reads it.
#[derive(SimpleObject)]
pub(crate) struct StreamEvent {
    /// Its place in the whole log.
    position: BigInt,
    /// The version of the stream that it made.
    version: BigInt,
    /// Its id, derived from its stream and version.
    event_id: ID,
    /// Its name.
    name: String,
    /// When, by the database's clock.
    recorded_at: Instant,
    /// Who: `user:…`, `provider:…`, or the consumer that worked.
    actor: String,
    /// Whose fact it is.
    tenant_id: ID,
    /// The request that started the chain.
    correlation_id: ID,
    /// The command or message that caused it.
    causation_id: ID,
    /// Version of the form it was stored in.
    stored_version: i32,
    /// What was stored.
    stored_body: Json<Value>,
    /// Version of the form that this build reads.
    current_version: Option<i32>,
    /// The same in that form; null where this build can not read it.
    current_body: Option<Json<Value>>,
}

impl From<LoggedEvent> for StreamEvent {
    fn from(event: LoggedEvent) -> Self {
        let stored = Stored { name: event.name.clone(), version: event.schema_version, body: event.body.clone() };
        let current = current(&event.category, stored);
        Self {
            position: BigInt(event.position),
            version: BigInt(event.version),
            event_id: ID(event.event_id.to_string()),
            name: event.name,
            recorded_at: Instant(event.recorded_at),
            actor: event.actor,
            tenant_id: ID(event.tenant_id.to_string()),
            correlation_id: ID(event.correlation_id.to_string()),
            causation_id: ID(event.causation_id.to_string()),
            stored_version: i32::from(event.schema_version),
            stored_body: Json(event.body),
            current_version: current.as_ref().map(|current| i32::from(current.version)),
            current_body: current.map(|current| Json(current.body)),
        }
    }
}

/// The form that this build would store the event in.
fn current(category: &str, stored: Stored) -> Option<Stored> {
    fn lifted<E: StoredEvent>(stored: Stored) -> Option<Stored> {
        E::decode(stored).ok()?.encode().ok()
    }
    match Category::parse(category)? {
        Category::Task => lifted::<domain::task::Event>(stored),
        Category::Attempt => lifted::<domain::attempt::Event>(stored),
        Category::Account => lifted::<domain::ledger::Event>(stored),
    }
}

/// What a stream was at a moment.
#[derive(SimpleObject)]
pub(crate) struct PastState {
    /// Its version then.
    version: BigInt,
    /// The version of its newest event.
    newest_version: BigInt,
    /// Its state, folded from its events and nothing else.
    state: Json<Value>,
    /// The event that made it so; null before the first.
    event: Option<StreamEvent>,
}

/// One value that is not the same at two versions.
#[derive(SimpleObject)]
pub(crate) struct StateDifference {
    /// Where it is in the state: a JSON pointer.
    path: String,
    /// What it was; null where it was not there.
    before: Option<Json<Value>>,
    /// What it is then; null where it is gone.
    after: Option<Json<Value>>,
}

impl From<Difference> for StateDifference {
    fn from(it: Difference) -> Self {
        Self { path: it.path, before: it.before.map(Json), after: it.after.map(Json) }
    }
}

/// What a replay of a task came to.
#[derive(SimpleObject)]
pub(crate) struct TaskReplay {
    /// Whether the read model shows exactly what the events say.
    equal: bool,
    /// Up to here in the log both were folded.
    position: BigInt,
    /// So many events were folded.
    events: i32,
    /// So many rows were compared: the task's, its attempts', its assets'.
    rows: i32,
    /// Where they differ.
    deviations: Vec<ReplayDeviation>,
    /// The event that can not be folded, in words.
    fault: Option<String>,
}

/// A value that the events and the read model do not agree on.
#[derive(SimpleObject)]
pub(crate) struct ReplayDeviation {
    /// The read table.
    table: String,
    /// The row's key.
    key: String,
    /// The column; null where the whole row is missing on one side.
    column: Option<String>,
    /// What the events say.
    replayed: Json<Value>,
    /// What the read model shows.
    shown: Json<Value>,
}

impl From<Deviation> for ReplayDeviation {
    fn from(it: Deviation) -> Self {
        let (replayed, shown) = (Json(it.replayed), Json(it.shown));
        Self { table: it.table.to_owned(), key: it.key, column: it.column, replayed, shown }
    }
}

/// A statement of an account over a time. Balances are of what is available.
#[derive(SimpleObject)]
#[graphql(complex)]
pub(crate) struct AccountStatement {
    /// What was there before.
    opening: Credits,
    /// The sum of what was posted.
    turnover: Credits,
    /// What was there afterwards: reckoned back from what is there now.
    closing: Credits,
    /// Whether opening and postings make up the closing balance.
    adds_up: bool,
    /// How many postings there are.
    postings: BigInt,
    /// Of each kind, how many and what they add up to.
    kinds: Vec<StatementKind>,
    /// The version of the account that it goes by.
    account_version: BigInt,
    #[graphql(skip)]
    of: (TenantId, Timestamp, Timestamp),
}

/// The postings of one kind.
#[derive(SimpleObject)]
pub(crate) struct StatementKind {
    /// The kind, as `AccountEntry.kind`.
    kind: String,
    /// How many.
    postings: BigInt,
    /// What they add to what is available.
    amount: Credits,
    /// What of it was charged.
    charged: Credits,
}

impl From<KindSum> for StatementKind {
    fn from(it: KindSum) -> Self {
        let (amount, charged) = (Credits(it.amount), Credits(it.charged));
        Self { kind: it.kind, postings: BigInt(it.postings), amount, charged }
    }
}

impl AccountStatement {
    fn new(row: StatementRow, of: (TenantId, Timestamp, Timestamp)) -> Self {
        Self {
            opening: Credits(row.opening),
            turnover: Credits(row.turnover),
            closing: Credits(row.closing),
            adds_up: row.adds_up(),
            postings: BigInt(row.postings),
            kinds: row.kinds.into_iter().map(StatementKind::from).collect(),
            account_version: BigInt(row.version),
            of,
        }
    }
}

#[ComplexObject]
impl AccountStatement {
    /// The postings of that time, oldest first.
    #[graphql(complexity = "20 + first.unwrap_or(200).clamp(1, 1000) as usize / 10 * child_complexity")]
    async fn entries(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only postings after this version of the account.")] after: Option<BigInt>,
    ) -> Result<Vec<AccountEntry>> {
        let (after, count) = part(first, after)?;
        let (tenant, from, before) = self.of;
        let entries = state(ctx)?.reader.statement_entries(viewer(ctx)?, tenant, (from, before), after, count).await;
        Ok(entries.map_err(|error| fault(ctx, &error))?.into_iter().map(AccountEntry::from).collect())
    }
}

/// A look of somebody who may look at everything.
#[derive(SimpleObject)]
pub(crate) struct AuditAccess {
    /// Its place among all.
    number: BigInt,
    /// When.
    at: Instant,
    /// Who: `user:…`.
    actor: String,
    /// For which tenant their token was.
    actor_tenant_id: ID,
    /// What they asked for: a field of the schema, or a route.
    what: String,
    /// Of what: an id, or a filter.
    subject: String,
    /// The request.
    correlation_id: ID,
}

impl From<RecordedAccess> for AuditAccess {
    fn from(it: RecordedAccess) -> Self {
        let access = it.access;
        Self {
            number: BigInt(it.id),
            at: Instant(it.at),
            actor: access.actor,
            actor_tenant_id: ID(access.actor_tenant.to_string()),
            what: access.what,
            subject: access.subject,
            correlation_id: ID(access.correlation.to_string()),
        }
    }
}

fn history_error(ctx: &Context<'_>, error: HistoryError) -> Error {
    match error {
        HistoryError::Store(error) => fault(ctx, &error),
        other => coded("BAD_VERSION", other.to_string()),
    }
}

/// `None` where nothing is recorded of it.
fn known<T>(ctx: &Context<'_>, found: Result<T, HistoryError>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(HistoryError::NoSuchStream { .. }) => Ok(None),
        Err(error) => Err(history_error(ctx, error)),
    }
}

/// What auditors ask.
#[derive(Default)]
pub(crate) struct AuditQuery;

#[Object]
impl AuditQuery {
    /// The events of a task, an attempt or an account, one by one, as they were stored and as they are read. Auditors and operators only.
    #[graphql(complexity = "20 + first.unwrap_or(200).clamp(1, 1000) as usize / 10 * child_complexity")]
    async fn stream_events(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Of what.")] kind: StreamKind,
        #[graphql(desc = "Its UUID or its global id.")] id: ID,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only events after this version.")] after: Option<BigInt>,
    ) -> Result<Option<Vec<StreamEvent>>> {
        with_role(ctx, &AUDITORS)?;
        let (after, count) = part(first, after)?;
        let stream = kind.stream(&id)?;
        record(ctx, "streamEvents", stream_name(stream)).await?;
        let events = state(ctx)?.store.stream_events(stream, after, i64::from(count)).await;
        let events = events.map_err(|error| fault(ctx, &error))?;
        Ok(Some(events.into_iter().map(StreamEvent::from).collect()))
    }

    /// What a task, an attempt or an account was after one of its versions, or at a time, folded from its events. Without either: what it
    /// is. Auditors and operators only.
    #[graphql(complexity = "100 + child_complexity")]
    async fn stream_state(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Of what.")] kind: StreamKind,
        #[graphql(desc = "Its UUID or its global id.")] id: ID,
        #[graphql(desc = "After this version; 0 is before the first event.")] version: Option<BigInt>,
        #[graphql(desc = "As of this time.")] at: Option<Instant>,
    ) -> Result<Option<PastState>> {
        with_role(ctx, &AUDITORS)?;
        let moment = match (version, at) {
            (None, None) => Moment::Newest,
            (Some(version), None) => Moment::Version(version.0),
            (None, Some(at)) => Moment::Time(at.0),
            (Some(_), Some(_)) => return Err(coded("BAD_VERSION", "version and at can not be combined")),
        };
        let stream = kind.stream(&id)?;
        record(ctx, "streamState", stream_name(stream)).await?;
        let Some(past) = known(ctx, state(ctx)?.store.past(stream, moment).await)? else { return Ok(None) };
        let readable = past.folded.to_readable().map_err(|error| fault(ctx, &error))?;
        Ok(Some(PastState {
            version: BigInt(past.event.as_ref().map_or(0, |event| event.version)),
            newest_version: BigInt(past.newest),
            state: Json(readable),
            event: past.event.map(StreamEvent::from),
        }))
    }

    /// What is not the same after two versions of a task, an attempt or an account. Auditors and operators only.
    #[graphql(complexity = "100 + 10 * child_complexity")]
    async fn stream_differences(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Of what.")] kind: StreamKind,
        #[graphql(desc = "Its UUID or its global id.")] id: ID,
        #[graphql(desc = "The one version; 0 is before the first event.")] from: BigInt,
        #[graphql(desc = "The other version, before or after it.")] to: BigInt,
    ) -> Result<Option<Vec<StateDifference>>> {
        with_role(ctx, &AUDITORS)?;
        let stream = kind.stream(&id)?;
        record(ctx, "streamDifferences", stream_name(stream)).await?;
        let found = known(ctx, state(ctx)?.store.differences(stream, from.0, to.0).await)?;
        Ok(found.map(|found| found.into_iter().map(StateDifference::from).collect()))
    }

    /// Folds a task, its attempts and its assets again from their events, and compares with what the read model shows. Changes nothing.
    /// Auditors and operators only.
    #[graphql(complexity = "200 + child_complexity")]
    async fn replay_task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
    ) -> Result<Option<TaskReplay>> {
        with_role(ctx, &AUDITORS)?;
        let task = TaskId(Kind::Task.read(&task_id)?);
        record(ctx, "replayTask", task).await?;
        let replay = state(ctx)?.reader.replay(viewer(ctx)?, task).await.map_err(|error| fault(ctx, &error))?;
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        Ok(replay.map(|replay| TaskReplay {
            equal: replay.deviations.is_empty() && replay.fault.is_none(),
            position: BigInt(replay.position),
            events: number(replay.events),
            rows: number(replay.rows),
            deviations: replay.deviations.into_iter().map(ReplayDeviation::from).collect(),
            fault: replay.fault,
        }))
    }

    /// A statement of an account: what was there, what was posted, what was there afterwards. The caller's own, or for auditors and operators
    /// any tenant's.
    #[graphql(complexity = "200 + child_complexity")]
    async fn account_statement(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Whose; the caller's own by default.")] tenant_id: Option<ID>,
        #[graphql(desc = "Postings of this time or later.")] from: Instant,
        #[graphql(desc = "Postings before this time.")] before: Instant,
    ) -> Result<Option<AccountStatement>> {
        let tenant = match tenant_id {
            Some(id) => TenantId(Kind::Account.read(&id)?),
            None => super::context::caller(ctx)?.tenant,
        };
        if from.0 > before.0 {
            return Err(coded("BAD_FILTER", "from lies after before"));
        }
        record(ctx, "accountStatement", tenant).await?;
        let statement = state(ctx)?.reader.statement(viewer(ctx)?, tenant, from.0, before.0).await;
        let statement = statement.map_err(|error| fault(ctx, &error))?;
        Ok(statement.map(|row| AccountStatement::new(row, (tenant, from.0, before.0))))
    }

    /// Who looked at what, of those who may look at everything. This look is among them. Auditors and operators only.
    #[graphql(complexity = "20 + first.unwrap_or(200).clamp(1, 1000) as usize / 10 * child_complexity")]
    async fn audit_accesses(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Only of this actor, such as `user:ada`.")] actor: Option<String>,
        #[graphql(desc = "Only to this: an id as a UUID, or as it was recorded.")] subject: Option<String>,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only those after this number.")] after: Option<BigInt>,
    ) -> Result<Option<Vec<AuditAccess>>> {
        with_role(ctx, &AUDITORS)?;
        let (after, count) = part(first, after)?;
        if [&actor, &subject].into_iter().flatten().any(|text| text.contains('\0')) {
            return Err(coded("BAD_FILTER", "actor and subject can not hold the character U+0000"));
        }
        record(ctx, "auditAccesses", format!("{actor:?} {subject:?}")).await?;
        let found = state(ctx)?.store.accesses(actor.as_deref(), subject.as_deref(), after, count).await;
        Ok(Some(found.map_err(|error| fault(ctx, &error))?.into_iter().map(AuditAccess::from).collect()))
    }
}

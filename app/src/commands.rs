//! What each subcommand does.

use crate::cli::{
    AuditAction, BrokerArgs, Cli, Command, DomainAction, ProjectAction, SimulatorArgs, SubmitArgs, TableFormat,
    TopicsAction,
};
use crate::client::{Client, submit};
use crate::config::Settings;
use crate::history::{HistoryAction, look};
use crate::models::Models;
use crate::roles::{Role, run as run_roles};
use crate::{archive, demo, project, tokens};
use anyhow::Context;
use domain::aggregate::Refusal;
use domain::id::{AccountId, CausationId, CorrelationId, TaskId, TenantId};
use domain::money::Credits;
use domain::process::{self, CaseKey, Turn};
use eventstore::roles::Granted;
use eventstore::{Meta, Request, Store};
use projections::doctor::Limits;
use std::io::IsTerminal;
use std::time::Duration;
use uuid::Uuid;

/// Runs a command.
///
/// # Errors
/// A sentence for the terminal.
pub fn run(cli: Cli, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let load = || Settings::load(cli.config.as_deref());
    match cli.command {
        Command::Dev => with_log(runtime, load()?, async |settings| {
            grant_demo(&settings).await?;
            run_roles(&settings, &Role::all()).await
        }),
        Command::Serve => with_log(runtime, load()?, async |settings| run_roles(&settings, &[Role::Serve]).await),
        Command::Work { groups } => {
            with_log(runtime, load()?, async |settings| run_roles(&settings, &[Role::Work(groups)]).await)
        }
        Command::Relay => with_log(runtime, load()?, async |settings| run_roles(&settings, &[Role::Relay]).await),
        Command::Project { action: None | Some(ProjectAction::Run) } => {
            with_log(runtime, load()?, async |settings| run_roles(&settings, &[Role::Project]).await)
        }
        Command::Project { action: Some(ProjectAction::Rebuild) } => {
            let settings = load()?;
            runtime.block_on(async { project::rebuild(&connect_as_owner(&settings).await?).await })
        }
        Command::Project { action: Some(ProjectAction::Verify) } => {
            let settings = load()?;
            runtime.block_on(async { project::verify(&connect(&settings).await?).await })
        }
        Command::Seal => with_log(runtime, load()?, async |settings| run_roles(&settings, &[Role::Seal]).await),
        Command::Audit { action: AuditAction::Check { file, key } } => crate::audit::check(&file, &key),
        Command::Audit { action } => runtime.block_on(crate::audit::run(&load()?, action)),
        Command::Archive { action } => runtime.block_on(archive::run(&load()?, action)),
        Command::Migrate => runtime.block_on(migrate(&load()?)),
        Command::Topics { action } => runtime.block_on(topics(&load()?, action)),
        Command::Broker(args) => broker(&args),
        Command::Simulator(args) => runtime.block_on(simulator(&args, &load()?)),
        Command::Submit(args) => runtime.block_on(submit_command(&load()?, &args)),
        Command::Tokens(which) => print_tokens(&load()?, which.tenant),
        Command::NextSteps(which) => next_steps(&load()?, which.tenant),
        Command::Grant { tenant, amount, key } => runtime.block_on(grant(&load()?, tenant.tenant, amount, &key)),
        Command::Refund { tenant, task, amount, key, reason } => {
            runtime.block_on(post(&load()?, tenant.tenant, |turn| {
                process::refund(turn, TaskId(task), key.clone(), Credits(amount), reason.clone())
            }))
        }
        Command::Adjust { tenant, amount, key, reason } => runtime.block_on(post(&load()?, tenant.tenant, |turn| {
            process::adjust(turn, key.clone(), Credits(amount), reason.clone(), OPERATOR.to_owned())
        })),
        Command::Doctor { grace_seconds } => runtime.block_on(doctor(&load()?, grace_seconds)),
        Command::Providers => {
            let settings = load()?;
            println!("{}", Models::load(&settings)?.describe(&settings));
            Ok(())
        }
        Command::Status => runtime.block_on(crate::status::print(&load()?)),
        Command::History { archived, action } => runtime.block_on(history(&load()?, archived, action)),
        Command::Schema => {
            println!("{}", api::schema_sdl());
            Ok(())
        }
        Command::Domain { action: DomainAction::Transitions { format } } => print_tables(format),
        Command::Domain { action: DomainAction::Schemas { output } } => crate::schemas::publish(output.as_deref()),
    }
}

fn with_log<F>(
    runtime: &tokio::runtime::Runtime,
    settings: Settings,
    work: impl FnOnce(Settings) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    log_to_stderr();
    let result = runtime.block_on(work(settings));
    if let Err(error) = &result {
        tracing::error!("{error:#}");
    }
    result
}

fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    // The client logs each reconnect several times over, as warnings; what comes of it shows in our own log.
    let quiet = "info,rocketmq_client_rust=error,rocketmq_transport=error,rocketmq_runtime=error,sqlx=warn";
    let filter = EnvFilter::try_from_env("AIVIDEO_LOG").unwrap_or_else(|_| EnvFilter::new(quiet));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second initialisation keeps the first: there is nothing to do about it.
    drop(log.try_init());
}

async fn connect(settings: &Settings) -> anyhow::Result<Store> {
    Ok(Store::open(settings.database()?, settings.policy.clone()).await?)
}

/// For what the service itself may not do: as the owner of the tables.
async fn connect_as_owner(settings: &Settings) -> anyhow::Result<Store> {
    Ok(Store::open(&settings.database()?.as_owner(), settings.policy.clone()).await?)
}

async fn migrate(settings: &Settings) -> anyhow::Result<()> {
    let config = settings.database()?;
    let store = Store::connect(&config.as_owner(), settings.policy.clone()).await?;
    store.migrate().await?;
    println!("the schema is up to date");
    let mut connection = store.pool().acquire().await?;
    let made = projections::retention::make_ahead(&mut connection, settings.retention.ahead_days).await?;
    println!(
        "outbox and inbox have their tables for the next {} days; {made} were made",
        settings.retention.ahead_days
    );
    match store.grant(config).await? {
        Granted::All => println!("{} and {} may do what they are for", config.service_role, config.reader_role),
        Granted::Missing { what, run } => {
            let remedy = format!("{what}: run this as an administrator, then `aivideo migrate` again:\n{run}");
            // Without an owner apart, the one login there is can do everything.
            anyhow::ensure!(config.owner_url.is_none(), remedy);
            println!("{remedy}until then the service works as the owner of the tables");
        }
    }
    Ok(())
}

async fn topics(settings: &Settings, action: TopicsAction) -> anyhow::Result<()> {
    let client = messaging::client::Client::new(settings.broker.clone())?;
    if matches!(action, TopicsAction::Ensure) {
        let created = messaging::admin::ensure(&client).await?;
        println!("created {} topics and {} groups", created.topics.len(), created.groups.len());
    }
    let groups = messaging::admin::check(&client).await?;
    for (group, subscription) in &groups {
        println!("{:<28} {subscription}", client.catalogue().group_name(*group));
    }
    client.stop(Duration::from_secs(3)).await;
    Ok(())
}

#[cfg(feature = "embedded-broker")]
fn broker(args: &BrokerArgs) -> anyhow::Result<()> {
    log_to_stderr();
    anyhow::ensure!(args.name_server.ip().is_loopback(), "the embedded broker is for this machine only: use 127.0.0.1");
    messaging::embedded::run(&messaging::embedded::EmbeddedConfig {
        name_server_port: args.name_server.port(),
        broker_port: args.broker_port,
        store_dir: args.store.clone(),
    })?;
    Ok(())
}

#[cfg(not(feature = "embedded-broker"))]
fn broker(_: &BrokerArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build has no embedded broker: build with --features embedded-broker, or use Apache RocketMQ")
}

async fn simulator(args: &SimulatorArgs, settings: &Settings) -> anyhow::Result<()> {
    log_to_stderr();
    let config = providers::simulator::SimulatorConfig {
        addr: args.listen,
        public_url: None,
        store_dir: args.store.clone(),
        ffmpeg: settings.media.ffmpeg.clone(),
        token: args.token.as_str().into(),
        kind: args.kind,
        webhook_secret: args.webhook_secret.as_deref().map(Into::into),
        default_duration_ms: 2_000,
    };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Ok(providers::simulator::serve(config, stop).await?)
}

async fn submit_command(settings: &Settings, args: &SubmitArgs) -> anyhow::Result<()> {
    let base = match &args.url {
        Some(url) => url.clone(),
        None => settings.api()?.public_url.clone(),
    };
    let token = match &args.token {
        Some(token) => token.clone(),
        None => tokens::mint(&settings.api()?.token_secret, demo::TENANT, &["creator"])?,
    };
    let key = args.key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
    submit(&Client::new(&base, &token), args, &key).await
}

fn print_tokens(settings: &Settings, tenant: Uuid) -> anyhow::Result<()> {
    for role in ["creator", "auditor", "operator"] {
        println!("{role:<9} {}", tokens::mint(&settings.api()?.token_secret, tenant, &[role])?);
    }
    Ok(())
}

fn next_steps(settings: &Settings, tenant: Uuid) -> anyhow::Result<()> {
    let base = &settings.api()?.public_url;
    println!("GraphQL   {base}/graphql   (open it in a browser for the explorer)");
    print_tokens(settings, tenant)?;
    println!("next      ./dev submit --prompt \"a paper boat on a stream\"");
    Ok(())
}

async fn grant_demo(settings: &Settings) -> anyhow::Result<()> {
    grant(settings, demo::TENANT, demo::CREDITS, demo::GRANT).await
}

const OPERATOR: &str = "operator:command-line";

async fn grant(settings: &Settings, tenant: Uuid, amount: i64, key: &str) -> anyhow::Result<()> {
    post(settings, tenant, |turn| process::grant(turn, key.to_owned(), Credits(amount))).await
}

/// One posting to a tenant's account, in a transaction of its own.
async fn post(
    settings: &Settings,
    tenant: Uuid,
    command: impl Fn(&mut Turn<'_>) -> Result<(), Refusal> + Send + Sync,
) -> anyhow::Result<()> {
    let store = connect(settings).await?;
    let correlation = CorrelationId(Uuid::new_v4());
    let request = Request {
        meta: Meta {
            tenant: TenantId(tenant),
            correlation,
            causation: CausationId(correlation.0),
            actor: OPERATOR.to_owned(),
            trace: correlation.0.simple().to_string(),
        },
        key: None,
        tenant_wall: true,
    };
    let posted = store.execute(&request, CaseKey::account(AccountId(tenant)), None, command).await?;
    println!("account {tenant} is at version {}", posted.version);
    store.close().await;
    Ok(())
}

async fn doctor(settings: &Settings, grace_seconds: u64) -> anyhow::Result<()> {
    let store = connect(settings).await?;
    let limits = Limits {
        unsent: Duration::from_secs(grace_seconds),
        snapshot: Duration::from_secs(settings.retention.snapshot_seconds),
        ..Limits::default()
    };
    let mut findings = projections::doctor::examine(store.pool(), limits).await?;
    findings.push(projections::doctor::tamper_evident(store.pool(), &settings.audit.trusted(), limits).await?);
    for it in &findings {
        println!("{} {:<22} {}", if it.ok { "ok    " } else { "BROKEN" }, it.invariant, it.detail);
    }
    let broken = findings.iter().filter(|it| !it.ok).count();
    println!("{} passed, {broken} failed", findings.len() - broken);
    anyhow::ensure!(broken == 0, "{broken} invariants do not hold");
    Ok(())
}

async fn history(settings: &Settings, archived: bool, action: HistoryAction) -> anyhow::Result<()> {
    let store = connect(settings).await?;
    let text = if archived {
        let copy = archive::open(settings, &store)?.history(action.stream()?).await?;
        look(&copy, action).await?
    } else {
        look(&store, action).await?
    };
    println!("{text}");
    store.close().await;
    Ok(())
}

fn print_tables(format: TableFormat) -> anyhow::Result<()> {
    use domain::diagram::{NamedRow, account_rows, attempt_rows, mermaid, task_rows, terminal};
    let tables = [("task", task_rows()), ("attempt", attempt_rows()), ("account", account_rows())];
    match format {
        TableFormat::Mermaid => tables.iter().for_each(|(name, rows)| println!("%% {name}\n{}", mermaid(rows))),
        TableFormat::Json => {
            let row =
                |(from, on, to, when): &NamedRow| serde_json::json!({ "from": from, "on": on, "to": to, "when": when });
            let table = |rows: &[NamedRow]| {
                let transitions: Vec<_> = rows.iter().map(row).collect();
                serde_json::json!({ "transitions": transitions, "terminal": terminal(rows) })
            };
            let all: serde_json::Map<String, serde_json::Value> =
                tables.iter().map(|(name, it)| ((*name).to_owned(), table(it))).collect();
            println!("{}", serde_json::to_string_pretty(&all).context("tables are plain text")?);
        }
    }
    Ok(())
}

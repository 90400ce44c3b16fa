//! The command line: roles as subcommands of one binary.

use clap::{Args, Parser, Subcommand, ValueEnum};
use eventstore::audit::{PublicKey, StreamName};
use std::net::SocketAddr;
use std::path::PathBuf;
use uuid::Uuid;

/// AI video generation: no accepted job lost, submitted twice, charged twice, or hanging in silence.
#[derive(Debug, Parser)]
#[command(name = "aivideo", version)]
pub struct Cli {
    /// TOML file with the configuration. The environment (AIVIDEO_SECTION__KEY) goes over it.
    #[arg(long, global = true, env = "AIVIDEO_CONFIG")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run all roles in one process, for development.
    Dev,
    /// Serve GraphQL, uploads and provider callbacks.
    Serve,
    /// Handle messages (all consumer groups, or those named) and set stalled tasks going again.
    Work {
        /// Consumer groups by logical name, such as cg.provider.poll.v1. Default: all.
        #[arg(long = "group")]
        groups: Vec<String>,
    },
    /// Publish outbox rows to the broker.
    Relay,
    /// Fold events into read models; or rebuild or verify them.
    Project {
        /// Default: run.
        #[command(subcommand)]
        action: Option<ProjectAction>,
    },
    /// Seal the log: proof against tampering.
    Seal,
    /// Verify the log against its seals; export proofs, and check them.
    Audit {
        /// What to do.
        #[command(subcommand)]
        action: AuditAction,
    },
    /// Copy finished tasks' events to the object store, in files that other tools read; check them.
    Archive {
        /// What to do.
        #[command(subcommand)]
        action: ArchiveAction,
    },
    /// Apply database migrations.
    Migrate,
    /// Create topics and groups at the broker, or check them.
    Topics {
        /// What to do.
        action: TopicsAction,
    },
    /// Run the rocketmq-rust name server and broker, for development.
    Broker(BrokerArgs),
    /// Run the provider simulator.
    Simulator(SimulatorArgs),
    /// Submit a generation through the API, show its progress, and say where the video is.
    Submit(SubmitArgs),
    /// Print a token for each role.
    Tokens(TenantArg),
    /// Print where to go from here.
    NextSteps(TenantArg),
    /// Put credits into a tenant's account.
    Grant {
        /// The tenant.
        #[command(flatten)]
        tenant: TenantArg,
        /// Minor units.
        #[arg(long)]
        amount: i64,
        /// Business key: the same key is granted once.
        #[arg(long)]
        key: String,
    },
    /// Give back part of what a task was charged.
    Refund {
        /// The tenant.
        #[command(flatten)]
        tenant: TenantArg,
        /// The task.
        #[arg(long)]
        task: Uuid,
        /// Minor units; all refunds of a task together are at most its charge.
        #[arg(long)]
        amount: i64,
        /// Business key, such as the support case: the same key is refunded once.
        #[arg(long)]
        key: String,
        /// Why, for auditors.
        #[arg(long)]
        reason: String,
    },
    /// Correct a tenant's credits, up or down.
    Adjust {
        /// The tenant.
        #[command(flatten)]
        tenant: TenantArg,
        /// Minor units; less than nothing takes away, at most what is available.
        #[arg(long, allow_negative_numbers = true)]
        amount: i64,
        /// Business key: the same key is posted once.
        #[arg(long)]
        key: String,
        /// Why, for auditors.
        #[arg(long)]
        reason: String,
    },
    /// Check every invariant on the live database.
    Doctor {
        /// How old something may be before it counts as stuck, in seconds.
        #[arg(long, default_value_t = 60)]
        grace_seconds: u64,
    },
    /// Show what is unsent, waiting, stuck or in quarantine.
    Status,
    /// Check the providers and the catalogue of models, and show what each provider can do.
    Providers,
    /// Look at the past: any state of a task, an attempt or an account, what changed, and by which events.
    History {
        /// Read the copy in the archive, as far as it goes, instead of the log. Needs the object store.
        #[arg(long, global = true)]
        archived: bool,
        /// At what.
        #[command(subcommand)]
        action: crate::history::HistoryAction,
    },
    /// Print the GraphQL schema.
    Schema,
    /// Look at the rules.
    Domain {
        /// At what.
        #[command(subcommand)]
        action: DomainAction,
    },
}

/// What to look at.
#[derive(Clone, Debug, Subcommand)]
pub enum DomainAction {
    /// Print the transition tables.
    Transitions {
        /// Format.
        #[arg(long, value_enum, default_value_t = TableFormat::Mermaid)]
        format: TableFormat,
    },
    /// Print the JSON Schemas of all events and messages, or write them as files.
    Schemas {
        /// Folder to write them to. Default: one JSON object with all of them is printed.
        #[arg(long)]
        output: Option<PathBuf>,
    },
}

/// What to do with the read models.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum ProjectAction {
    /// Keep folding.
    Run,
    /// Fold everything anew beside the live read models, and switch. Nothing stops meanwhile.
    Rebuild,
    /// Fold everything aside and compare; changes nothing.
    Verify,
}

/// What to do about proof.
#[derive(Debug, Subcommand)]
pub enum AuditAction {
    /// Verify every sealed event, hash and seal. Exit code 1 where anything is not as it was sealed.
    Verify {
        /// A seal that was exported earlier: the log must still be the one that it seals. May be given several times.
        #[arg(long)]
        against: Vec<PathBuf>,
    },
    /// Show the newest seals and the public keys.
    Seals {
        /// Write the newest seal to this file, to be kept where the database's administrators can not write.
        #[arg(long)]
        export: Option<PathBuf>,
    },
    /// Write events with the proofs that they were sealed into a file.
    Export {
        /// Of what.
        #[command(flatten)]
        subject: SubjectArgs,
        /// The file.
        #[arg(long)]
        output: PathBuf,
    },
    /// Check such a file. Needs no database and no configuration.
    Check {
        /// The file.
        file: PathBuf,
        /// The public key to believe, as you had it from somebody you trust. May be given several times. Default: those in the file.
        #[arg(long)]
        key: Vec<PublicKey>,
    },
}

/// What to do about the archive.
#[derive(Clone, Debug, Subcommand)]
pub enum ArchiveAction {
    /// Archive the tasks that have ended, and what has grown since it was archived. The events stay in the log.
    Run {
        /// Only tasks that ended at least so many days ago.
        #[arg(long, value_name = "DAYS", default_value_t = 30)]
        older_than: u16,
    },
    /// Check files: their checksums, their chains, and whether the log says the same. Exit code 1 where anything is not as it was.
    Check {
        /// The file's number, as `status` shows it.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        file: Option<i64>,
        /// All files, one after the other.
        #[arg(long)]
        all: bool,
    },
    /// Show how much is archived, and the newest files.
    Status {
        /// Count the tasks that ended at least so many days ago and are in no file.
        #[arg(long, value_name = "DAYS", default_value_t = 30)]
        older_than: u16,
    },
}

/// Whose history is exported.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SubjectArgs {
    /// A stream: CATEGORY/ID.
    #[arg(long)]
    pub stream: Option<StreamName>,
    /// A task, with its attempts and its postings.
    #[arg(long)]
    pub task: Option<Uuid>,
    /// An account.
    #[arg(long)]
    pub account: Option<Uuid>,
}

/// What to do with topics.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TopicsAction {
    /// Create what is missing, then check.
    Ensure,
    /// Check only.
    Check,
}

/// How tables are printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TableFormat {
    /// JSON: rows and terminal states by aggregate.
    Json,
    /// Mermaid state diagrams.
    Mermaid,
}

/// The embedded broker.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// Address of the name server.
    #[arg(long)]
    pub name_server: SocketAddr,
    /// Port of the broker, on the same host.
    #[arg(long)]
    pub broker_port: u16,
    /// Folder for everything it stores.
    #[arg(long)]
    pub store: PathBuf,
}

/// The provider simulator.
#[derive(Debug, Args)]
pub struct SimulatorArgs {
    /// Address to listen on.
    #[arg(long)]
    pub listen: SocketAddr,
    /// Folder for accepted jobs and rendered files.
    #[arg(long)]
    pub store: PathBuf,
    /// Whose API it speaks.
    #[arg(long, default_value = "replicate")]
    pub kind: providers::simulator::Kind,
    /// Token that callers must show.
    #[arg(long, env = "AIVIDEO_PROVIDERS__REPLICATE__TOKEN", hide_env_values = true)]
    pub token: String,
    /// Secret that callbacks are signed with (whsec_…). Only Replicate has one.
    #[arg(long, env = "AIVIDEO_PROVIDERS__REPLICATE__WEBHOOK_SECRET", hide_env_values = true)]
    pub webhook_secret: Option<String>,
}

/// Submitting.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// What the video should show.
    #[arg(long)]
    pub prompt: String,
    /// Input image (PNG, JPEG, WebP or GIF).
    #[arg(long)]
    pub image: Option<PathBuf>,
    /// Model from the catalogue.
    #[arg(long)]
    pub model: Option<String>,
    /// Length in seconds.
    #[arg(long, default_value_t = 4)]
    pub seconds: u32,
    /// Idempotency key. Default: a fresh one.
    #[arg(long)]
    pub key: Option<String>,
    /// Address of the API. Default: the configured one.
    #[arg(long, env = "AIVIDEO_API_URL")]
    pub url: Option<String>,
    /// A creator's token. Default: minted with the configured secret.
    #[arg(long, env = "AIVIDEO_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Where to save the video. Default: it stays in the object store.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Give up waiting after so many seconds.
    #[arg(long, default_value_t = 1800)]
    pub wait_seconds: u64,
}

/// Which tenant.
#[derive(Clone, Copy, Debug, Args)]
pub struct TenantArg {
    /// Tenant id. Default: the demonstration tenant.
    #[arg(long, default_value_t = crate::demo::TENANT)]
    pub tenant: Uuid,
}

//! What an operator can set. Every struct refuses unknown fields, so that a misspelt setting is an error at start-up.

use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;

/// A value that must not reach a log: its `Debug` says only whether it is set.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(unset)" } else { "Secret(hidden)" })
    }
}

/// Where the bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A local folder: development and tests.
    Folder,
    /// An S3-compatible store: production.
    S3,
}

/// Settings of the object store and of the downloads into it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectsConfig {
    /// Which store is used.
    pub kind: StoreKind,
    /// The folder, for [`StoreKind::Folder`]. Created if missing.
    pub folder: Option<PathBuf>,
    /// The bucket, for [`StoreKind::S3`].
    pub s3: Option<S3Config>,
    /// Key of the folder's signed links, at least 16 bytes. S3 signs with its own key.
    #[serde(default)]
    pub link_secret: Secret,
    /// Where the API is reached from outside, without a trailing slash: the folder's signed links begin with it.
    #[serde(default)]
    pub public_url: String,
    /// `host:port` pairs (lower case, port always given) that downloads may reach although their address is not public:
    /// the provider simulators in development. Empty in production.
    #[serde(default)]
    pub allow_hosts: Vec<String>,
    /// Most downloads at once, of this process.
    #[serde(default = "defaults::max_downloads")]
    pub max_downloads: u32,
    /// How long connecting may take, in seconds.
    #[serde(default = "defaults::connect_timeout_seconds")]
    pub connect_timeout_seconds: u64,
    /// How long a download may stay silent before it is given up, in seconds.
    #[serde(default = "defaults::idle_timeout_seconds")]
    pub idle_timeout_seconds: u64,
}

impl ObjectsConfig {
    /// A folder store with the defaults of everything else.
    #[must_use]
    pub fn folder(path: impl Into<PathBuf>, link_secret: Secret, public_url: impl Into<String>) -> Self {
        Self {
            kind: StoreKind::Folder,
            folder: Some(path.into()),
            s3: None,
            link_secret,
            public_url: public_url.into(),
            allow_hosts: Vec::new(),
            max_downloads: defaults::max_downloads(),
            connect_timeout_seconds: defaults::connect_timeout_seconds(),
            idle_timeout_seconds: defaults::idle_timeout_seconds(),
        }
    }
}

/// Settings of an S3-compatible bucket.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// Endpoint such as `https://s3.eu-central-1.amazonaws.com`; path-style requests are used.
    pub endpoint: String,
    /// Bucket name.
    pub bucket: String,
    /// Region name; stores without regions usually want `us-east-1` or `auto`.
    pub region: String,
    /// Access key id.
    pub access_key: Secret,
    /// Secret access key.
    pub secret_key: Secret,
    /// Whether plain HTTP is accepted: a store on the same machine.
    #[serde(default)]
    pub allow_http: bool,
}

/// Settings of the media tools.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MediaConfig {
    /// Path or name of the `ffmpeg` binary.
    pub ffmpeg: PathBuf,
    /// Path or name of the `ffprobe` binary.
    pub ffprobe: PathBuf,
    /// How long one run of a tool may take before it is killed, in seconds.
    pub timeout_seconds: u64,
    /// How long one render may take before it is killed, in seconds. See [`MediaConfig::longest_work_seconds`].
    pub render_timeout_seconds: u64,
    /// Threads that one run of `ffmpeg` may use.
    pub threads: u32,
}

impl Default for MediaConfig {
    fn default() -> Self {
        Self {
            ffmpeg: "ffmpeg".into(),
            ffprobe: "ffprobe".into(),
            timeout_seconds: 60,
            render_timeout_seconds: 300,
            threads: 1,
        }
    }
}

impl MediaConfig {
    /// The longest that the tools may be at work in one try of media work, in seconds: an export is probed before and after its
    /// render, with two runs each at most; a video is probed likewise, and its thumbnail takes two runs at most. What a killed tool
    /// is waited for comes on top. With both transfers this must stay below the lease of the try.
    #[must_use]
    pub const fn longest_work_seconds(&self) -> u64 {
        let looks = self.timeout_seconds.saturating_mul(4);
        looks.saturating_add(self.render_timeout_seconds).saturating_add(crate::child::REAP.as_secs())
    }
}

mod defaults {
    pub const fn max_downloads() -> u32 {
        32
    }

    pub const fn connect_timeout_seconds() -> u64 {
        10
    }

    pub const fn idle_timeout_seconds() -> u64 {
        30
    }
}

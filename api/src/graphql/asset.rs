//! An asset as clients see it.

use super::context::state;
use super::error::{coded, fault};
use super::names::{AssetKind, named};
use super::node_id::Kind;
use super::scalars::{BigInt, Instant};
use async_graphql::{Context, ID, Object, Result};
use projections::query::AssetRow;
use std::time::Duration;

/// A stored file that a task made.
pub(crate) struct Asset(pub(crate) AssetRow);

/// A stored file that a task made.
#[Object]
impl Asset {
    /// Global id, for `node(id)`.
    pub(crate) async fn id(&self) -> ID {
        Kind::Asset.global(self.0.asset.0)
    }

    /// The same as a UUID.
    async fn asset_id(&self) -> ID {
        ID(self.0.asset.to_string())
    }

    /// What it is.
    async fn kind(&self) -> Result<AssetKind> {
        named(&self.0.kind).ok_or_else(|| coded("INTERNAL", "the kind can not be shown by this build"))
    }

    /// A link to it, made now and good for about an hour: ask again rather than keep it. Null, with an error, where none can be
    /// made.
    #[graphql(complexity = 3)]
    async fn url(&self, ctx: &Context<'_>) -> Result<Option<String>> {
        let state = state(ctx)?;
        let ttl = Duration::from_secs(state.config.link_ttl_seconds);
        let url = state.objects.signed_url(&self.0.object_key, ttl).await;
        url.map(Some).map_err(|error| fault(ctx, &error))
    }

    /// Size in bytes.
    async fn bytes(&self) -> BigInt {
        BigInt(self.0.bytes)
    }

    /// SHA-256 of its content, in hexadecimal digits.
    async fn sha256(&self) -> &str {
        &self.0.sha256
    }

    /// Media type.
    async fn content_type(&self) -> &str {
        &self.0.content_type
    }

    /// Length in milliseconds, of a video.
    async fn duration_millis(&self) -> Option<BigInt> {
        self.0.duration_millis.map(BigInt)
    }

    /// Width in pixels, as displayed.
    async fn width(&self) -> Option<i32> {
        self.0.width
    }

    /// Height in pixels, as displayed.
    async fn height(&self) -> Option<i32> {
        self.0.height
    }

    /// Video codec.
    async fn video_codec(&self) -> Option<&String> {
        self.0.video_codec.as_ref()
    }

    /// Audio codec.
    async fn audio_codec(&self) -> Option<&String> {
        self.0.audio_codec.as_ref()
    }

    /// When it was recorded.
    async fn created_at(&self) -> Instant {
        Instant(self.0.created_at)
    }
}

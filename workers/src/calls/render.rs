//! Rendering an export of a stored video.

use super::Outside;
use super::media::scratch_failed;
use crate::ports::{ExportSpec, MediaError, TransferError};
use domain::outcome::Rendered;

impl Outside {
    pub(super) async fn render(&self, source_key: &str, key: &str, spec: ExportSpec) -> Rendered {
        match self.try_render(source_key, key, spec).await {
            Ok(stored) => stored,
            Err(other) => other,
        }
    }

    async fn try_render(&self, source_key: &str, key: &str, spec: ExportSpec) -> Result<Rendered, Rendered> {
        let scratch = |error| not_now(scratch_failed(&error));
        let folder = tempfile::Builder::new().prefix("render-").tempdir_in(&self.scratch).map_err(scratch)?;
        let (source, rendered) = (folder.path().join("source"), folder.path().join("rendered.mp4"));
        self.download(source_key, &source).await.map_err(transfer)?;
        let probe = self.media.probe(&source).await.map_err(media)?;
        let limits = self.limits.transfer(self.limits.max_video_bytes);
        self.media.render(&source, &probe, spec, &rendered, limits.max_bytes).await.map_err(media)?;
        self.store_file(&rendered, key, limits).await.map(Rendered::Stored).map_err(transfer)
    }
}

const fn not_now(cause: String) -> Rendered {
    Rendered::NotNow { cause }
}

fn transfer(error: TransferError) -> Rendered {
    match error {
        TransferError::Permanent(cause) => Rendered::Never { code: "export_refused", cause },
        other => not_now(other.to_string()),
    }
}

fn media(error: MediaError) -> Rendered {
    match error {
        MediaError::Corrupt(cause) => Rendered::Never { code: "source_unusable", cause },
        MediaError::Tool(cause) => not_now(cause),
        too_large @ MediaError::TooLarge(_) => {
            Rendered::Never { code: "export_too_large", cause: format!("the export would be {too_large}") }
        }
    }
}

//! Probing a stored video and making its thumbnail.

use super::Outside;
use crate::ports::{MediaError, StoredObject, TransferError, TransferLimits};
use domain::outcome::Processed;
use futures_util::StreamExt;
use std::path::Path;
use std::time::Duration;
use tokio_util::io::ReaderStream;

impl Outside {
    pub(super) async fn process(&self, key: &str, thumbnail_key: &str) -> Processed {
        match self.try_process(key, thumbnail_key).await {
            Ok(ready) => ready,
            Err(other) => other,
        }
    }

    async fn try_process(&self, key: &str, thumbnail_key: &str) -> Result<Processed, Processed> {
        let not_now = |error| Processed::NotNow { cause: scratch_failed(&error) };
        let folder = tempfile::Builder::new().prefix("media-").tempdir_in(&self.scratch).map_err(not_now)?;
        let video = folder.path().join("video");
        let thumbnail = folder.path().join("thumbnail.jpg");
        self.download(key, &video).await.map_err(transfer)?;
        let probe = self.media.probe(&video).await.map_err(media)?;
        match self.media.thumbnail(&video, &probe, &thumbnail).await {
            Ok(()) => {}
            // No picture of it can be decoded: that is no video, whatever the probe said.
            Err(MediaError::Corrupt(cause)) => return Err(Processed::Corrupt { cause }),
            Err(other) => return Err(Processed::Partial { probe, cause: other.to_string() }),
        }
        let limits = self.limits.transfer(self.limits.max_thumbnail_bytes);
        match self.store_file(&thumbnail, thumbnail_key, limits).await {
            Ok(thumbnail) => Ok(Processed::Ready { probe, thumbnail }),
            // The video is there and can be played: only its thumbnail is not.
            Err(error) => Err(Processed::Partial { probe, cause: error.to_string() }),
        }
    }

    /// Copies an object to a scratch file, in the time that any transfer has: a store that only trickles must not outlive the
    /// lease of the try.
    pub(super) async fn download(&self, key: &str, to: &Path) -> Result<(), TransferError> {
        let limit = Duration::from_secs(self.limits.transfer_seconds);
        let late = |_| TransferError::Transient("the transfer took too long".to_owned());
        tokio::time::timeout(limit, self.objects.download(key, to)).await.map_err(late)?
    }

    pub(super) async fn store_file(
        &self,
        file: &Path,
        key: &str,
        limits: TransferLimits,
    ) -> Result<StoredObject, TransferError> {
        let not_now = |error| TransferError::Transient(scratch_failed(&error));
        let file = tokio::fs::File::open(file).await.map_err(not_now)?;
        self.objects.put(key, ReaderStream::new(file).boxed(), limits).await
    }
}

/// Why there is no scratch file, without its path.
pub(super) fn scratch_failed(error: &std::io::Error) -> String {
    format!("a scratch file: {}", error.kind())
}

fn transfer(error: TransferError) -> Processed {
    match error {
        TransferError::Permanent(cause) => Processed::Corrupt { cause },
        other => Processed::NotNow { cause: other.to_string() },
    }
}

fn media(error: MediaError) -> Processed {
    match error {
        MediaError::Corrupt(cause) => Processed::Corrupt { cause },
        other => Processed::NotNow { cause: other.to_string() },
    }
}

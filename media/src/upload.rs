//! One upload: measures the bytes as they go by, and shows them under the key only when all of them arrived.

use crate::sniff;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, WriteMultipart,
};
use sha2::{Digest, Sha256};
use workers::ports::{StoredObject, TransferError};

/// The least size of a part. S3 wants 5 MiB; what is smaller as a whole goes up in one request.
const MIN_PART: u64 = 8 << 20;

/// S3 takes at most 10,000 parts; parts grow for limits beyond 80 GB.
const MAX_PARTS: u64 = 10_000;

/// Parts on the wire at once. With the one being filled this bounds the memory of an upload to four parts.
const PARTS_IN_FLIGHT: usize = 2;

/// Counts, hashes and remembers the first bytes.
#[derive(Clone, Default)]
pub(crate) struct Measure {
    bytes: u64,
    hash: Sha256,
    head: Vec<u8>,
}

impl Measure {
    pub(crate) fn update(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        self.hash.update(chunk);
        let wanted = sniff::HEAD - self.head.len();
        self.head.extend_from_slice(&chunk[..wanted.min(chunk.len())]);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn content_type(&self) -> &'static str {
        sniff::content_type(&self.head)
    }

    pub(crate) fn into_object(self, key: &str) -> StoredObject {
        StoredObject {
            key: key.to_owned(),
            bytes: self.bytes,
            content_type: self.content_type().to_owned(),
            sha256: hex::encode(self.hash.finalize()),
        }
    }
}

/// Bytes on their way into a store. Dropping it without [`Upload::publish`] shows nothing under the key; the folder store also
/// removes its temporary file, while S3 keeps the parts until [`Upload::abort`] or the bucket's rule for unfinished uploads.
pub(crate) struct Upload<'a> {
    store: &'a dyn ObjectStore,
    path: &'a Path,
    /// The folder store keeps no attributes and refuses them.
    keeps_attributes: bool,
    part_size: usize,
    measure: Measure,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    parts: Option<WriteMultipart>,
}

impl<'a> Upload<'a> {
    pub(crate) fn new(store: &'a dyn ObjectStore, path: &'a Path, keeps_attributes: bool, max_bytes: u64) -> Self {
        let part_size = usize::try_from(max_bytes.div_ceil(MAX_PARTS).max(MIN_PART)).unwrap_or(usize::MAX);
        let (measure, waiting, parts) = (Measure::default(), Vec::new(), None);
        Self { store, path, keeps_attributes, part_size, measure, waiting, waiting_bytes: 0, parts }
    }

    /// Takes the whole stream in. Nothing is visible under the key yet.
    pub(crate) async fn fill(
        &mut self,
        mut content: impl Stream<Item = Result<Bytes, TransferError>> + Unpin,
        max_bytes: u64,
    ) -> Result<(), TransferError> {
        while let Some(chunk) = content.next().await {
            let chunk = chunk?;
            self.measure.update(&chunk);
            if self.measure.bytes() > max_bytes {
                return Err(TransferError::Permanent(format!("larger than {max_bytes} bytes")));
            }
            self.take(chunk).await.map_err(store_error)?;
        }
        Ok(())
    }

    async fn take(&mut self, chunk: Bytes) -> object_store::Result<()> {
        if self.parts.is_none() {
            self.waiting_bytes += chunk.len();
            self.waiting.push(chunk);
            return if self.waiting_bytes > self.part_size { self.begin_parts().await } else { Ok(()) };
        }
        if let Some(parts) = &mut self.parts {
            parts.wait_for_capacity(PARTS_IN_FLIGHT).await?;
            parts.put(chunk);
        }
        Ok(())
    }

    async fn begin_parts(&mut self) -> object_store::Result<()> {
        let options = PutMultipartOptions { attributes: self.attributes(), ..Default::default() };
        let upload = self.store.put_multipart_opts(self.path, options).await?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, self.part_size);
        self.waiting.drain(..).for_each(|chunk| parts.put(chunk));
        self.parts = Some(parts);
        Ok(())
    }

    fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::new();
        if self.keeps_attributes {
            let content_type: AttributeValue = self.measure.content_type().into();
            attributes.insert(Attribute::ContentType, content_type);
        }
        attributes
    }

    /// What was taken in.
    pub(crate) fn stored(&self, key: &str) -> StoredObject {
        self.measure.clone().into_object(key)
    }

    /// Shows the whole content under the key, in one step.
    pub(crate) async fn publish(self) -> Result<(), TransferError> {
        let published = match self.parts {
            Some(parts) => parts.finish().await,
            None => {
                let options = PutOptions { attributes: self.attributes(), ..Default::default() };
                let payload: PutPayload = self.waiting.into_iter().collect();
                self.store.put_opts(self.path, payload, options).await
            }
        };
        published.map(|_| ()).map_err(store_error)
    }

    /// Gives up what was taken in. A failure to clean up changes nothing for the caller.
    pub(crate) async fn abort(self) {
        if let Some(parts) = self.parts
            && parts.abort().await.is_err()
        {
            tracing::warn!("an unfinished upload could not be removed from the object store");
        }
    }
}

/// Says what went wrong at the store in words without addresses, keys or the store's own answer, which may quote both.
pub(crate) fn store_error(error: object_store::Error) -> TransferError {
    use object_store::Error as Store;
    match &error {
        Store::NotFound { .. } => TransferError::Permanent("no such object".to_owned()),
        Store::InvalidPath { .. } => TransferError::Permanent("not an object key".to_owned()),
        // Wrong credentials are an operator's business and the work can go on once they are right.
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
            TransferError::Transient("the object store refused our credentials".to_owned())
        }
        _ if is_out_of_room(&error) => TransferError::Transient("the object store has no room".to_owned()),
        _ => TransferError::Transient("the object store failed".to_owned()),
    }
}

fn is_out_of_room(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::StorageFull)
}

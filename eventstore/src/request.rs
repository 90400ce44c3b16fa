//! What users brought: the stored request of a task, and uploaded images.

use crate::connect::Store;
use crate::error::StoreError;
use domain::id::{AssetId, TaskId, TenantId};
use domain::outcome::StoredObject;

/// A task's full request. Not `Debug`: the prompt must not reach a log.
#[derive(Clone)]
pub struct StoredRequest {
    /// The user's text.
    pub prompt: String,
}

/// An uploaded image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub asset: AssetId,
    /// Its owner.
    pub tenant: TenantId,
    /// Its object.
    pub object: StoredObject,
}

impl Store {
    /// The stored request of a task of this tenant.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn generation_request(
        &self,
        tenant: TenantId,
        task: TaskId,
    ) -> Result<Option<StoredRequest>, StoreError> {
        let prompt: Option<String> = sqlx::query_scalar(
            "/* eventstore.generation_request */
             SELECT prompt FROM generation_requests WHERE task_id = $1 AND tenant_id = $2",
        )
        .bind(task.0)
        .bind(tenant.0)
        .fetch_optional(&self.pool)
        .await?;
        Ok(prompt.map(|prompt| StoredRequest { prompt }))
    }

    /// Records an upload whose bytes are stored. The same asset again is the same fact.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn record_upload(&self, upload: &Upload) -> Result<(), StoreError> {
        sqlx::query(
            "/* eventstore.record_upload */
             INSERT INTO uploads (asset_id, tenant_id, object_key, bytes, sha256, content_type)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (asset_id) DO NOTHING",
        )
        .bind(upload.asset.0)
        .bind(upload.tenant.0)
        .bind(&upload.object.key)
        .bind(i64::try_from(upload.object.bytes).unwrap_or(i64::MAX))
        .bind(&upload.object.sha256)
        .bind(&upload.object.content_type)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Uploads of this tenant, of those asked for.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn uploads(&self, tenant: TenantId, assets: &[AssetId]) -> Result<Vec<Upload>, StoreError> {
        let rows: Vec<(uuid::Uuid, String, i64, String, String)> = sqlx::query_as(
            "/* eventstore.uploads */
             SELECT asset_id, object_key, bytes, sha256, content_type FROM uploads
              WHERE tenant_id = $1 AND asset_id = ANY ($2)",
        )
        .bind(tenant.0)
        .bind(assets.iter().map(|asset| asset.0).collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|(asset, key, bytes, sha256, content_type)| Upload {
                asset: AssetId(asset),
                tenant,
                object: StoredObject { key, bytes: u64::try_from(bytes).unwrap_or(0), sha256, content_type },
            })
            .collect())
    }
}

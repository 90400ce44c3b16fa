//! The rows of the read tables, column by column as the migrations have them.

use super::row::read_row;
use domain::time::Timestamp;
use uuid::Uuid;

read_row! {
    /// `read_tasks`.
    TaskRow, "read_tasks", Some("task_id"), {
        task_id: Uuid = "uuid",
        tenant_id: Uuid = "uuid",
        version: i64 = "bigint",
        state: String = "text",
        provider: String = "text",
        model: String = "text",
        duration_seconds: i32 = "integer",
        input_assets: String = "text" -> "uuid[]",
        hold: i64 = "bigint",
        charge: Option<i64> = "bigint",
        attempt_no: i32 = "integer",
        error_class: Option<String> = "text",
        error_code: Option<String> = "text",
        error_message: Option<String> = "text",
        review_reason: Option<String> = "text",
        canceled_by: Option<String> = "text",
        wake_at: Option<Timestamp> = "timestamptz",
        created_at: Timestamp = "timestamptz",
        updated_at: Timestamp = "timestamptz",
        finished_at: Option<Timestamp> = "timestamptz",
        position: i64 = "bigint",
    }
}

read_row! {
    /// `read_attempts`.
    AttemptRow, "read_attempts", Some("attempt_id"), {
        attempt_id: Uuid = "uuid",
        task_id: Uuid = "uuid",
        tenant_id: Uuid = "uuid",
        version: i64 = "bigint",
        number: i32 = "integer",
        provider: String = "text",
        state: String = "text",
        provider_job_id: Option<String> = "text",
        round: i32 = "integer",
        polls: i32 = "integer",
        percent: Option<i32> = "integer",
        orphans: String = "text" -> "text[]",
        error_class: Option<String> = "text",
        error_code: Option<String> = "text",
        error_message: Option<String> = "text",
        submit_started_at: Option<Timestamp> = "timestamptz",
        submit_finished_at: Option<Timestamp> = "timestamptz",
        wake_at: Option<Timestamp> = "timestamptz",
        created_at: Timestamp = "timestamptz",
        updated_at: Timestamp = "timestamptz",
        position: i64 = "bigint",
    }
}

read_row! {
    /// `read_assets`.
    AssetRow, "read_assets", Some("asset_id"), {
        asset_id: Uuid = "uuid",
        task_id: Uuid = "uuid",
        tenant_id: Uuid = "uuid",
        kind: String = "text",
        object_key: String = "text",
        bytes: i64 = "bigint",
        sha256: String = "text",
        content_type: String = "text",
        duration_millis: Option<i64> = "bigint",
        width: Option<i32> = "integer",
        height: Option<i32> = "integer",
        video_codec: Option<String> = "text",
        audio_codec: Option<String> = "text",
        created_at: Timestamp = "timestamptz",
        position: i64 = "bigint",
    }
}

read_row! {
    /// `read_accounts`.
    AccountRow, "read_accounts", Some("account_id"), {
        account_id: Uuid = "uuid",
        tenant_id: Uuid = "uuid",
        version: i64 = "bigint",
        available: i64 = "bigint",
        held: i64 = "bigint",
        charged: i64 = "bigint",
        refunded: i64 = "bigint",
        updated_at: Timestamp = "timestamptz",
        position: i64 = "bigint",
    }
}

read_row! {
    /// `read_account_entries`: a posting is never changed.
    EntryRow, "read_account_entries", None, {
        account_id: Uuid = "uuid",
        version: i64 = "bigint",
        kind: String = "text",
        business_key: String = "text",
        amount: i64 = "bigint",
        charged: i64 = "bigint",
        created_at: Timestamp = "timestamptz",
        position: i64 = "bigint",
    }
}

read_row! {
    /// `read_holds`.
    HoldRow, "read_holds", Some("task_id"), {
        task_id: Uuid = "uuid",
        account_id: Uuid = "uuid",
        reserved: i64 = "bigint",
        settled: i64 = "bigint",
        released: i64 = "bigint",
        refunded: i64 = "bigint",
        state: String = "text",
        expires_at: Option<Timestamp> = "timestamptz",
        updated_at: Timestamp = "timestamptz",
        position: i64 = "bigint",
    }
}

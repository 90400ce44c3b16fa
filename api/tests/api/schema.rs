//! The committed schema is the code's.

use anyhow::{Context, Result};
use std::path::Path;

#[test]
fn the_committed_schema_is_up_to_date() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.graphql");
    let generated = api::schema_sdl();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &generated).context("api/schema.graphql can not be written")?;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "api/schema.graphql differs from the code: write it again with `aivideo schema > api/schema.graphql` or \
         `UPDATE_SCHEMA=1 cargo test -p api schema`, and look at the difference before you commit it"
    );
    Ok(())
}

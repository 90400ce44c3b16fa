//! `aivideo domain schemas`: the JSON Schemas of everything that other programs read.

use anyhow::Context;
use domain::schema::published;
use std::path::Path;

/// Writes one file a schema below `output`, or prints one object of all of them by their file names.
///
/// # Errors
/// A folder or file can not be written: it is named.
pub fn publish(output: Option<&Path>) -> anyhow::Result<()> {
    let all = published();
    let Some(folder) = output else {
        let by_file: serde_json::Map<_, _> = all.into_iter().map(|it| (it.file, it.schema)).collect();
        println!("{}", serde_json::to_string_pretty(&by_file).context("schemas are plain text")?);
        return Ok(());
    };
    for it in &all {
        let path = folder.join(&it.file);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).with_context(|| format!("the folder {} can not be made", parent.display()))?;
        let text = format!("{}\n", serde_json::to_string_pretty(&it.schema).context("schemas are plain text")?);
        std::fs::write(&path, text).with_context(|| format!("{} can not be written", path.display()))?;
    }
    println!("{} schemas written to {}", all.len(), folder.display());
    Ok(())
}

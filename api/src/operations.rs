//! Operations that are known beforehand. A client sends the id of one instead of its text; in production, only these may be asked.
//!
//! The list is a JSON object of ids and texts, as graphql-codegen writes it (`persisted-documents.json`). A request names an id in
//! `documentId`, or in `extensions.persistedQuery.sha256Hash` as Apollo's clients do.

use async_graphql::{Request, Value};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A list of operations that can not be used.
#[derive(Debug, thiserror::Error)]
pub enum BadOperations {
    /// It can not be read.
    #[error("api.operations_file: {path} can not be read")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// It is no list.
    #[error("api.operations_file: {path} is no JSON object of ids and texts")]
    Form {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: serde_json::Error,
    },
    /// A text is no GraphQL document.
    #[error("api.operations_file: the text of {id} is no GraphQL document")]
    Text {
        /// Its id.
        id: String,
    },
    /// Only listed operations are to be answered, and there is no list.
    #[error("api.only_listed_operations needs api.operations_file, or nothing could be asked")]
    Nothing,
}

/// An operation that is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unlisted {
    /// Apollo's clients know this by its text.
    #[error("PersistedQueryNotFound")]
    Unknown,
    #[error("only operations that were listed beforehand are answered here")]
    Text,
    #[error("the text is not the one that is listed under this id")]
    Mismatch,
}

impl Unlisted {
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Unknown => "PERSISTED_QUERY_NOT_FOUND",
            Self::Text => "OPERATION_NOT_LISTED",
            Self::Mismatch => "PERSISTED_QUERY_MISMATCH",
        }
    }
}

/// The listed operations.
#[derive(Clone, Default)]
pub(crate) struct Operations {
    texts: Arc<HashMap<String, String>>,
    /// The texts alone, where nothing else is answered.
    only: Option<Arc<HashSet<String>>>,
}

impl Operations {
    /// Reads the list, if there is one.
    pub(crate) fn read(file: Option<&Path>, only_listed: bool) -> Result<Self, BadOperations> {
        let Some(path) = file else {
            return if only_listed { Err(BadOperations::Nothing) } else { Ok(Self::default()) };
        };
        let text =
            std::fs::read_to_string(path).map_err(|cause| BadOperations::File { path: path.to_owned(), cause })?;
        let texts: HashMap<String, String> =
            serde_json::from_str(&text).map_err(|cause| BadOperations::Form { path: path.to_owned(), cause })?;
        if let Some((id, _)) = texts.iter().find(|(_, text)| async_graphql::parser::parse_query(text).is_err()) {
            return Err(BadOperations::Text { id: id.clone() });
        }
        let only = only_listed.then(|| Arc::new(texts.values().cloned().collect()));
        Ok(Self { texts: Arc::new(texts), only })
    }

    /// Puts the text into a request that names an operation by its id, and refuses what may not be asked.
    pub(crate) fn resolve(&self, request: &mut Request) -> Result<(), Unlisted> {
        match named(request).map(|id| self.texts.get(id)) {
            Some(Some(text)) if request.query.is_empty() => request.query.clone_from(text),
            Some(Some(text)) if request.query != *text => return Err(Unlisted::Mismatch),
            // An id that nobody knows counts only where there is nothing else to go by.
            Some(None) if request.query.is_empty() || self.only.is_some() => return Err(Unlisted::Unknown),
            _ => {}
        }
        match &self.only {
            Some(listed) if !listed.contains(&request.query) => Err(Unlisted::Text),
            _ => Ok(()),
        }
    }
}

/// The id that a request names.
fn named(request: &Request) -> Option<&str> {
    let Value::Object(persisted) = request.extensions.get("persistedQuery")? else { return None };
    let Value::String(id) = persisted.get("sha256Hash")? else { return None };
    Some(id)
}

/// Names an operation in a request, as [`Operations::resolve`] looks for it.
pub(crate) fn name(request: &mut Request, id: String) {
    let named = serde_json::json!({"version": 1, "sha256Hash": id});
    let named = Value::from_json(named).unwrap_or_default();
    request.extensions.insert("persistedQuery".to_owned(), named);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn listed(json: &str, only: bool) -> Result<Operations, BadOperations> {
        let mut file = tempfile::NamedTempFile::new().expect("a scratch file");
        file.write_all(json.as_bytes()).expect("a scratch file");
        Operations::read(Some(file.path()), only)
    }

    fn ask(operations: &Operations, id: Option<&str>, text: &str) -> Result<String, Unlisted> {
        let mut request = Request::new(text);
        if let Some(id) = id {
            name(&mut request, id.to_owned());
        }
        operations.resolve(&mut request).map(|()| request.query)
    }

    #[test]
    fn an_id_stands_for_its_text() -> Result<(), BadOperations> {
        let open = listed(r#"{"a1": "{ models { name } }"}"#, false)?;
        let text = "{ models { name } }".to_owned();
        assert_eq!(ask(&open, Some("a1"), ""), Ok(text.clone()));
        assert_eq!(ask(&open, Some("a1"), &text), Ok(text.clone()));
        assert_eq!(ask(&open, Some("a1"), "{ other }"), Err(Unlisted::Mismatch));
        assert_eq!(ask(&open, Some("a2"), ""), Err(Unlisted::Unknown));
        assert_eq!(
            ask(&open, Some("a2"), "{ other }"),
            Ok("{ other }".to_owned()),
            "as a client tries again with the text"
        );
        assert_eq!(ask(&open, None, "{ other }"), Ok("{ other }".to_owned()));
        let only = listed(r#"{"a1": "{ models { name } }"}"#, true)?;
        assert_eq!(ask(&only, Some("a1"), ""), Ok(text.clone()));
        assert_eq!(ask(&only, None, &text), Ok(text));
        assert_eq!(ask(&only, Some("a2"), "{ other }"), Err(Unlisted::Unknown));
        assert_eq!(ask(&only, None, "{ models { name provider } }"), Err(Unlisted::Text));
        Ok(())
    }

    #[test]
    fn a_list_that_can_not_be_used_is_named() {
        let said =
            |result: Result<Operations, BadOperations>| result.err().map(|bad| bad.to_string()).unwrap_or_default();
        assert!(said(listed("[]", false)).contains("no JSON object"));
        assert!(said(listed(r#"{"a1": "{"}"#, false)).contains("a1"));
        assert!(said(Operations::read(Some(Path::new("/nowhere")), false)).contains("/nowhere"));
        assert!(said(Operations::read(None, true)).contains("api.operations_file"));
        assert_eq!(said(Operations::read(None, false)), "");
    }
}

//! Carries GraphQL requests out, over HTTP and WebSocket alike: measures the text first, and sends introspection its own way.

use crate::graphql::ApiSchema;
use crate::measure;
use crate::operations::Operations;
use crate::shape;
use async_graphql::parser::types::{ExecutableDocument, OperationType, Selection};
use async_graphql::{Data, Executor, Name, PathSegment, Request, Response, ServerError, Value};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) schema: ApiSchema,
    /// `None` where introspection is off.
    pub(crate) introspection: Option<ApiSchema>,
    pub(crate) operations: Operations,
}

impl Guarded {
    /// The schema that is to answer, or the answer itself.
    fn choose(&self, request: &mut Request) -> Result<&ApiSchema, Box<Response>> {
        self.operations.resolve(request).map_err(|unlisted| refusal(unlisted.code(), &unlisted.to_string()))?;
        shape::check(&request.query).map_err(|misshapen| refusal("QUERY_REFUSED", &misshapen.to_string()))?;
        let document = request.parsed_query().map_err(|error| Box::new(Response::from_errors(vec![error])))?;
        let mut document = document.clone();
        measure::spread_out(&mut document).map_err(|large| refusal("QUERY_REFUSED", &large.to_string()))?;
        let only_the_schema = asks_for_schema_only(&document);
        request.set_parsed_query(document);
        Ok(match &self.introspection {
            Some(schema) if only_the_schema => schema,
            _ => &self.schema,
        })
    }
}

impl Guarded {
    /// Whether a request can change nothing: only queries, and where answers are streamed also subscriptions. One that can not be
    /// read changes nothing: what is wrong with it is answered when it is carried out.
    pub(crate) fn only_reads(&self, request: &mut Request, streamed: bool) -> bool {
        if self.operations.resolve(request).is_err() || shape::check(&request.query).is_err() {
            return true;
        }
        let Ok(document) = request.parsed_query() else { return true };
        document.operations.iter().all(|(_, operation)| match operation.node.ty {
            OperationType::Query => true,
            OperationType::Subscription => streamed,
            OperationType::Mutation => false,
        })
    }
}

fn refusal(code: &str, message: &str) -> Box<Response> {
    let mut error = ServerError::new(message, None);
    let mut extensions = async_graphql::ErrorExtensionValues::default();
    extensions.set("code", Value::from(code));
    error.extensions = Some(extensions);
    Box::new(Response::from_errors(vec![error]))
}

fn asks_for_schema_only(document: &ExecutableDocument) -> bool {
    document.operations.iter().all(|(_, operation)| {
        operation.node.selection_set.node.items.iter().all(|selection| match &selection.node {
            Selection::Field(field) => field.node.name.node.starts_with("__"),
            Selection::FragmentSpread(_) | Selection::InlineFragment(_) => false,
        })
    })
}

/// The library leaves a field that failed out of its object; by the specification it is there, as null (section 6.4.4).
fn with_nulls(mut response: Response) -> Response {
    for error in &response.errors {
        put_null(&mut response.data, &error.path);
    }
    response
}

fn put_null(value: &mut Value, path: &[PathSegment]) {
    match (value, path) {
        (Value::Object(fields), [PathSegment::Field(name)]) => {
            fields.entry(Name::new(name)).or_insert(Value::Null);
        }
        (Value::Object(fields), [PathSegment::Field(name), rest @ ..]) => {
            if let Some(value) = fields.get_mut(name.as_str()) {
                put_null(value, rest);
            }
        }
        (Value::List(items), [PathSegment::Index(index), rest @ ..]) => {
            if let Some(value) = items.get_mut(*index) {
                put_null(value, rest);
            }
        }
        _ => {}
    }
}

impl Executor for Guarded {
    async fn execute(&self, mut request: Request) -> Response {
        match self.choose(&mut request) {
            Ok(schema) => with_nulls(schema.execute(request).await),
            Err(response) => *response,
        }
    }

    fn execute_stream(&self, mut request: Request, session: Option<Arc<Data>>) -> BoxStream<'static, Response> {
        match self.choose(&mut request) {
            Ok(schema) => Executor::execute_stream(schema, request, session).map(with_nulls).boxed(),
            Err(response) => stream::once(async move { *response }).boxed(),
        }
    }
}

//! Carries GraphQL requests out, over HTTP and WebSocket alike: measures the text first, and sends introspection its own way.

use crate::graphql::ApiSchema;
use crate::operations::Operations;
use crate::shape;
use async_graphql::parser::types::{ExecutableDocument, OperationType, Selection};
use async_graphql::{Data, Executor, Name, PathSegment, Request, Response, ServerError, Value};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use std::sync::Arc;

/// Most root fields of one mutation: each costs what a request costs, however many are sent in one.
const MAX_MUTATIONS: usize = 10;

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
        if too_many_mutations(document) {
            return Err(refusal("QUERY_REFUSED", "a request holds at most ten mutations"));
        }
        Ok(match &self.introspection {
            Some(schema) if asks_for_schema_only(document) => schema,
            _ => &self.schema,
        })
    }
}

impl Guarded {
    /// Whether nothing but queries can come of a request. One that can not be read changes nothing: what is wrong with it is
    /// answered when it is carried out.
    pub(crate) fn only_queries(&self, request: &mut Request) -> bool {
        if self.operations.resolve(request).is_err() || shape::check(&request.query).is_err() {
            return true;
        }
        let Ok(document) = request.parsed_query() else { return true };
        document.operations.iter().all(|(_, operation)| operation.node.ty == OperationType::Query)
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

/// Fragments count as one field each on the way in; the complexity limit counts what is in them.
fn too_many_mutations(document: &ExecutableDocument) -> bool {
    document.operations.iter().any(|(_, operation)| {
        operation.node.ty == OperationType::Mutation && operation.node.selection_set.node.items.len() > MAX_MUTATIONS
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

//! `GET /graphql`: a page to try queries with. It is one file and asks nothing of the network but this API; GraphiQL, which loads its
//! scripts from a CDN, is beside it.

use crate::router::Shared;
use async_graphql::http::GraphiQLSource;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use std::sync::Arc;

const PAGE: &str = include_str!("explorer.html");
/// Only what is in the page itself, and only this host.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page(State(shared): State<Arc<Shared>>) -> Response {
    if !shared.state.config.explorer {
        return StatusCode::NOT_FOUND.into_response();
    }
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE)).into_response()
}

pub(crate) async fn graphiql(State(shared): State<Arc<Shared>>) -> Response {
    if !shared.state.config.explorer {
        return StatusCode::NOT_FOUND.into_response();
    }
    Html(GraphiQLSource::build().endpoint("/graphql").subscription_endpoint("/graphql/ws").finish()).into_response()
}

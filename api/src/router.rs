//! The routes, and what they share.

use crate::auth::{BadToken, TokenKeys};
use crate::config::ApiConfig;
use crate::correlation::correlate;
use crate::executor::Guarded;
use crate::graphql::{Call, introspection_schema, schema};
use crate::http::{authority, caller};
use crate::idempotency::{self, HeaderKey};
use crate::jwks::KeySet;
use crate::operations::{BadOperations, Operations};
use crate::over_http::{Media, answer, failure, from_address, from_body, is_json};
use crate::ports::{LinkVerifier, Readiness};
use crate::{audit_files, callbacks, explorer, objects, sse, uploads, websocket};
use async_graphql::{Executor, Request};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use domain::id::CorrelationId;
use eventstore::Store;
use eventstore::audit::TrustedKeys;
use projections::query::Reader;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tower_http::cors::{AllowOrigin, CorsLayer};
use workers::catalogue::SharedCatalogue;
use workers::ports::{ObjectStore, Provider};

/// What the API works with.
pub struct ApiState {
    /// Facts: commands go in here.
    pub store: Store,
    /// Read queries. Somebody must drive [`Reader::listen`], or subscribers learn of changes by looking only.
    pub reader: Reader,
    /// Bytes of uploads and assets.
    pub objects: Arc<dyn ObjectStore>,
    /// Providers by their stored name, for their callbacks.
    pub providers: HashMap<String, Arc<dyn Provider>>,
    /// Models on offer.
    pub catalogue: SharedCatalogue,
    /// Settings.
    pub config: ApiConfig,
    /// Whether this process can do its work.
    pub readiness: Arc<dyn Readiness>,
    /// Public keys of whoever gives out tokens, where the settings name them. Somebody must fetch them.
    pub keys: KeySet,
    /// Checks signed links.
    pub links: Arc<dyn LinkVerifier>,
    /// The keys whose seals are believed: proofs go by them.
    pub audit_keys: TrustedKeys,
}

/// Why the API can not be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The token secret can not be used.
    #[error("api.token_secret: {0}, or api.jwks must name who gives out tokens")]
    TokenSecret(#[from] BadToken),
    /// The list of operations can not be used.
    #[error(transparent)]
    Operations(#[from] BadOperations),
    /// An allowed origin can not be read.
    #[error("api.allowed_origins: {0:?} is not an origin such as http://localhost:5173")]
    Origin(String),
}

pub(crate) struct Shared {
    pub(crate) state: Arc<ApiState>,
    pub(crate) executor: Guarded,
    pub(crate) keys: TokenKeys,
}

/// The whole API.
///
/// # Errors
/// [`StartError`].
pub fn router(state: ApiState) -> Result<Router, StartError> {
    let state = Arc::new(state);
    let config = &state.config;
    let keys = TokenKeys::of(config, &state.keys)?;
    let operations = Operations::read(config.operations_file.as_deref(), config.only_listed_operations)?;
    let cors = cors(&config.allowed_origins)?;
    let body_limit = config.max_body_bytes;
    let executor = Guarded {
        schema: schema(Arc::clone(&state)),
        introspection: config.introspection.then(introspection_schema),
        operations,
    };
    let shared = Arc::new(Shared { state, executor, keys });
    let mut router = Router::new()
        .route("/graphql", get(get_graphql).post(post_graphql).layer(DefaultBodyLimit::max(body_limit)))
        .route("/graphql/graphiql", get(explorer::graphiql))
        .route("/graphql/ws", get(websocket::upgrade))
        // The upload limits itself: it is streamed, never held in memory.
        .route("/uploads", post(uploads::receive).layer(DefaultBodyLimit::disable()))
        .route("/objects/{*key}", get(objects::serve))
        .route("/audit/{what}", get(audit_files::serve))
        .route("/callbacks/{provider}", post(callbacks::receive).layer(DefaultBodyLimit::max(callbacks::MAX_BODY)))
        .route("/live", get(async || Json(serde_json::json!({"live": true}))))
        .route("/ready", get(ready))
        .with_state(shared);
    if let Some(cors) = cors {
        router = router.layer(cors);
    }
    Ok(router.layer(middleware::from_fn(correlate)))
}

/// Off unless origins are named.
fn cors(origins: &[String]) -> Result<Option<CorsLayer>, StartError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let read = |origin: &String| {
        let is_origin = origin.starts_with("http://") || origin.starts_with("https://");
        HeaderValue::from_str(origin).ok().filter(|_| is_origin).ok_or_else(|| StartError::Origin(origin.clone()))
    };
    let origins = origins.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let idempotency_key = HeaderName::from_static(idempotency::HEADER);
    Ok(Some(
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods([Method::GET, Method::POST])
            .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, idempotency_key])
            .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]),
    ))
}

/// `POST /graphql`: one request per body. A list of requests is refused, as is any body that a web form could send.
async fn post_graphql(
    State(shared): State<Arc<Shared>>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let media = match accepted(&headers) {
        Ok(media) => media,
        Err(response) => return *response,
    };
    if !is_json(&headers) {
        let message = "the body is application/json in UTF-8";
        return failure(media, StatusCode::UNSUPPORTED_MEDIA_TYPE, "BAD_REQUEST", message);
    }
    match from_body(&body) {
        Ok(request) => shared.carry_out(media, &headers, correlation, request).await,
        Err(bad) => failure(media, StatusCode::BAD_REQUEST, "BAD_REQUEST", &bad.to_string()),
    }
}

/// `GET /graphql`: a query in the address, or the explorer. Nothing that changes anything, and no subscription.
async fn get_graphql(
    State(shared): State<Arc<Shared>>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    headers: HeaderMap,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Response {
    let Some(request) = from_address(parameters) else { return explorer::page(State(shared)).await };
    let media = match accepted(&headers) {
        Ok(media) => media,
        Err(response) => return *response,
    };
    let mut request = match request {
        Ok(request) => request,
        Err(bad) => return failure(media, StatusCode::BAD_REQUEST, "BAD_REQUEST", &bad.to_string()),
    };
    if !shared.executor.only_reads(&mut request, media == Media::EventStream) {
        let message = "GET is for queries: send mutations by POST, subscriptions to /graphql/ws or with Accept: text/event-stream";
        return failure(media, StatusCode::METHOD_NOT_ALLOWED, "BAD_REQUEST", message);
    }
    shared.carry_out(media, &headers, correlation, request).await
}

fn accepted(headers: &HeaderMap) -> Result<Media, Box<Response>> {
    Media::accepted(headers).ok_or_else(|| {
        let message = "answers are application/graphql-response+json, application/json or text/event-stream: name one of them in \
                       Accept";
        Box::new(failure(Media::Json, StatusCode::NOT_ACCEPTABLE, "BAD_REQUEST", message))
    })
}

impl Shared {
    async fn carry_out(
        &self,
        media: Media,
        headers: &HeaderMap,
        correlation: CorrelationId,
        request: Request,
    ) -> Response {
        let caller = match caller(headers, &self.keys) {
            Ok(caller) => caller,
            Err(bad) => return failure(media, StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", &bad.to_string()),
        };
        let authority = authority(headers, &self.keys);
        let call = Call { caller, authority, correlation, key: HeaderKey::of(headers) };
        let request = request.data(call);
        if media == Media::EventStream {
            return sse::answers(&self.executor, request, Duration::from_millis(self.state.config.ping_ms));
        }
        answer(media, self.executor.execute(request).await)
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let reasons = shared.state.readiness.reasons().await;
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(serde_json::json!({"ready": reasons.is_empty(), "reasons": reasons}))).into_response()
}

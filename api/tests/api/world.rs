//! A whole API on a database of its own, with its projector, and people who call it.

use crate::doubles::{MemoryObjects, Reasons, WordLinks, WordProvider};
use anyhow::{Context, Result};
use api::{ApiConfig, ApiState, Claims, KeySet, Role, mint, router};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use domain::id::TenantId;
use eventstore::audit::{Sealer, SigningKey};
use eventstore::testkit::TestDatabase;
use projections::projector::{Projector, ProjectorConfig};
use projections::query::Reader;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;
use workers::catalogue::SharedCatalogue;
use workers::ports::Provider;

pub const SECRET: &str = "a secret for tests, of 32 bytes!";
pub const SUBMIT: &str = "mutation Submit($input: GenerationInput!, $key: String) {
    submitGeneration(input: $input, idempotencyKey: $key) {
        taskId version replayed refusal { code message field } task { state hold version }
    }
}";

pub struct World {
    pub db: TestDatabase,
    pub router: Router,
    pub objects: Arc<MemoryObjects>,
    pub tenant: TenantId,
    pub reader: Reader,
    pub keys: KeySet,
    background: JoinSet<()>,
}

/// The API on a port of its own, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    _serving: JoinSet<()>,
}

/// An answer of the API.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {:?}", self.body))
    }
}

/// The key that the log is sealed with.
pub fn audit_key() -> SigningKey {
    SigningKey::from_seed([7; 32])
}

/// Seals the log.
pub async fn seal(world: &World) -> Result<()> {
    Sealer::new(world.db.pool().clone(), audit_key(), 100, Duration::ZERO).catch_up().await?;
    Ok(())
}

pub fn expires_in(seconds: u64) -> Result<i64> {
    let at = SystemTime::now() + Duration::from_secs(seconds);
    Ok(i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?)
}

pub fn token(tenant: TenantId, roles: &[Role]) -> Result<String> {
    let claims = Claims { sub: "ada".into(), tenant, roles: roles.to_vec(), exp: expires_in(600)? };
    Ok(mint(SECRET, &claims)?)
}

/// The code of the first error.
pub fn code(answer: &Value) -> &str {
    answer["errors"][0]["extensions"]["code"].as_str().unwrap_or("no error code")
}

pub fn input(prompt: &str) -> Value {
    json!({"prompt": prompt, "model": "aivideo/paper-boat-1", "durationSeconds": 4})
}

impl World {
    pub async fn new() -> Result<Self> {
        Self::with(|_| {}).await
    }

    pub async fn with(settings: impl FnOnce(&mut ApiConfig)) -> Result<Self> {
        let db = TestDatabase::create().await?;
        let mut config = ApiConfig::with_secret(SECRET);
        settings(&mut config);
        let objects = Arc::new(MemoryObjects::default());
        let reader = Reader::new(db.store());
        let keys = KeySet::default();
        let provider: Arc<dyn Provider> = Arc::new(WordProvider);
        let state = ApiState {
            store: db.store().clone(),
            reader: reader.clone(),
            objects: Arc::clone(&objects) as _,
            providers: HashMap::from([(provider.name().to_owned(), provider)]),
            catalogue: SharedCatalogue::default(),
            config,
            readiness: Arc::new(Reasons(Vec::new())),
            keys: keys.clone(),
            links: Arc::new(WordLinks),
            audit_keys: std::iter::once(audit_key().public()).collect(),
        };
        let mut background = JoinSet::new();
        let projector = Projector::new(db.pool().clone(), ProjectorConfig::default());
        background.spawn(async move { projector.run(CancellationToken::new()).await });
        let listening = reader.clone();
        background.spawn(async move {
            listening.listen().await;
        });
        Ok(Self { router: router(state)?, db, objects, tenant: TenantId(Uuid::new_v4()), reader, keys, background })
    }

    pub async fn serve(&self) -> Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = self.router.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, router).await.ok();
        });
        Ok(Server { address, _serving: serving })
    }

    /// Stops projecting and listening: the read models stay as they are.
    pub async fn stop_projecting(&mut self) {
        self.background.shutdown().await;
    }

    pub async fn call(&self, request: Request<Body>) -> Result<Answer> {
        let response = self.router.clone().oneshot(request).await?;
        let (parts, body) = response.into_parts();
        Ok(Answer { status: parts.status, headers: parts.headers, body: to_bytes(body, 64 << 20).await? })
    }

    /// A GraphQL request as JSON, with these headers besides the token's.
    pub async fn post(&self, token: Option<&str>, headers: &[(&str, &str)], body: String) -> Result<Answer> {
        let mut request = Request::post("/graphql").header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.call(request.body(Body::from(body))?).await
    }

    pub async fn ask(&self, token: &str, query: &str, variables: Value) -> Result<Value> {
        let body = json!({"query": query, "variables": variables}).to_string();
        let answer = self.post(Some(token), &[], body).await?;
        anyhow::ensure!(answer.status == StatusCode::OK, "{}: {:?}", answer.status, answer.body);
        answer.json()
    }

    pub fn creator(&self) -> Result<String> {
        token(self.tenant, &[Role::Creator])
    }

    pub fn auditor(&self) -> Result<String> {
        token(TenantId(Uuid::from_u128(2)), &[Role::Auditor])
    }

    pub fn operator(&self) -> Result<String> {
        token(TenantId(Uuid::from_u128(1)), &[Role::Operator])
    }

    /// Gives a tenant credits.
    pub async fn grant(&self, tenant: TenantId, amount: i64) -> Result<()> {
        self.grant_for(tenant, amount, "first").await
    }

    /// Gives a tenant credits once more.
    pub async fn grant_again(&self, tenant: TenantId, amount: i64) -> Result<()> {
        self.grant_for(tenant, amount, "again").await
    }

    async fn grant_for(&self, tenant: TenantId, amount: i64, key: &str) -> Result<()> {
        let grant = "mutation($tenant: ID!, $amount: Credits!, $key: String!) {
            grantCredits(tenantId: $tenant, amount: $amount, key: $key) { version refusal { code } } }";
        let variables = json!({"tenant": tenant, "amount": amount.to_string(), "key": key});
        let answer = self.ask(&self.operator()?, grant, variables).await?;
        anyhow::ensure!(answer["data"]["grantCredits"]["refusal"].is_null(), "{answer}");
        Ok(())
    }

    /// Submits, and answers the payload.
    pub async fn submit(&self, token: &str, key: Option<&str>, input: &Value) -> Result<Value> {
        let answer = self.ask(token, SUBMIT, json!({"input": input, "key": key})).await?;
        anyhow::ensure!(answer["errors"].is_null(), "{answer}");
        Ok(answer["data"]["submitGeneration"].clone())
    }

    /// Submits a task that is accepted, and answers its id.
    pub async fn submitted(&self, token: &str, key: &str) -> Result<String> {
        let payload = self.submit(token, Some(key), &input("a paper boat in the rain")).await?;
        Ok(payload["taskId"].as_str().with_context(|| format!("not accepted: {payload}"))?.to_owned())
    }

    pub async fn count(&self, query: &str) -> Result<i64> {
        Ok(self.db.count(query).await?)
    }
}

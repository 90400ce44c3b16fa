//! The schema: what is asked, by whom, and what is answered.

mod account;
mod again;
mod asset;
mod attempt;
mod audit;
mod context;
mod error;
mod history;
mod live;
mod mutation;
mod names;
mod node_id;
mod operator;
mod page;
mod query;
mod scalars;
mod siblings;
mod standing;
mod submit;
mod subscription;
mod task;
mod tasks;

pub(crate) use context::Call;

use crate::budget::{Budgets, Charging};
use crate::config::ApiConfig;
use crate::router::ApiState;
use crate::seats::Seats;
use async_graphql::{Schema, SchemaBuilder};
use mutation::Mutation;
use query::Query;
use std::sync::Arc;
use subscription::Subscription;

/// The whole schema.
pub(crate) type ApiSchema = Schema<Query, Mutation, Subscription>;

/// Introspection as tools send it nests about fifteen levels deep, and asks nothing of the database.
const INTROSPECTION_DEPTH: usize = 20;
const INTROSPECTION_COMPLEXITY: usize = 2_000;

fn builder() -> SchemaBuilder<Query, Mutation, Subscription> {
    Schema::build(Query::default(), Mutation::default(), Subscription)
}

/// The schema that answers.
pub(crate) fn schema(state: Arc<ApiState>) -> ApiSchema {
    let config: &ApiConfig = &state.config;
    let mut builder = builder()
        .limit_depth(config.max_depth)
        .limit_complexity(config.max_complexity)
        .limit_directives(8)
        .data(Arc::new(Seats::new(config.max_subscriptions_per_tenant)))
        .data(Arc::clone(&state));
    if let Some(per_second) = config.points_per_second {
        builder = builder.extension(Charging(Arc::new(Budgets::new(per_second, config.points_burst))));
    }
    if !config.introspection {
        builder = builder.disable_introspection().disable_suggestions();
    }
    builder.finish()
}

/// The same schema, for requests that ask for nothing but the schema itself.
pub(crate) fn introspection_schema() -> ApiSchema {
    builder()
        .introspection_only()
        .limit_depth(INTROSPECTION_DEPTH)
        .limit_complexity(INTROSPECTION_COMPLEXITY)
        .limit_directives(8)
        .finish()
}

/// The schema as text, as it is committed in `api/schema.graphql`.
#[must_use]
pub fn schema_sdl() -> String {
    let options = async_graphql::SDLExportOptions::new().sorted_fields().sorted_enum_items().sorted_arguments();
    let sdl = builder().finish().sdl_with_options(options);
    let lines: Vec<&str> = sdl.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim())
}

//! What a tenant may ask for in a time, counted by what its requests cost: one request of a hundred fields is a hundred, however it is
//! sent. Each process counts for itself.

use crate::graphql::Call;
use async_graphql::async_trait::async_trait;
use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextValidation};
use async_graphql::{ErrorExtensionValues, ServerError, ValidationResult};
use domain::id::TenantId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The code of the error that says "later".
pub(crate) const RATE_LIMITED: &str = "RATE_LIMITED";
/// How many tenants are remembered before those who have their whole budget again are forgotten.
const MANY: usize = 10_000;

/// The budgets of all tenants.
pub(crate) struct Budgets {
    per_second: f64,
    burst: f64,
    spent: Mutex<HashMap<TenantId, Spent>>,
}

/// How far a tenant is from its whole budget, as of a time.
#[derive(Clone, Copy)]
struct Spent {
    points: f64,
    at: Instant,
}

impl Budgets {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second: f64::from(per_second.max(1)), burst: f64::from(burst.max(1)), spent: Mutex::default() }
    }

    /// Takes points, or says how long to wait. What costs more than a whole budget needs a whole one, and is paid off afterwards.
    fn take(&self, tenant: TenantId, cost: u32, now: Instant) -> Result<(), Duration> {
        let mut all = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MANY {
            all.retain(|_, spent| self.left_to_pay(*spent, now) > 0.0);
        }
        let spent = all.get(&tenant).map_or(0.0, |spent| self.left_to_pay(*spent, now));
        let cost = f64::from(cost);
        let over = spent + cost.min(self.burst) - self.burst;
        if over > 0.0 {
            return Err(Duration::from_secs_f64(over / self.per_second));
        }
        all.insert(tenant, Spent { points: spent + cost, at: now });
        Ok(())
    }

    fn left_to_pay(&self, spent: Spent, now: Instant) -> f64 {
        (spent.points - now.saturating_duration_since(spent.at).as_secs_f64() * self.per_second).max(0.0)
    }
}

/// Charges each request, once it is known what it costs and before anything of it is carried out.
#[derive(Clone)]
pub(crate) struct Charging(pub(crate) Arc<Budgets>);

impl ExtensionFactory for Charging {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl Extension for Charging {
    async fn validation(
        &self,
        ctx: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<ValidationResult, Vec<ServerError>> {
        let result = next.run(ctx).await?;
        // Without a token nothing is answered that costs anything.
        let Some(caller) = ctx.data_opt::<Call>().and_then(|call| call.caller.as_ref()) else { return Ok(result) };
        let cost = u32::try_from(result.complexity).unwrap_or(u32::MAX);
        match self.0.take(caller.tenant, cost, Instant::now()) {
            Ok(()) => Ok(result),
            Err(wait) => Err(vec![later(cost, wait)]),
        }
    }
}

fn later(cost: u32, wait: Duration) -> ServerError {
    // Whole seconds, as Retry-After has them.
    let seconds = wait.as_secs() + 1;
    let message =
        format!("your tenant's budget is used up: this costs {cost} points; try again in {seconds} s, or ask for less");
    let mut error = ServerError::new(message, None);
    let mut extensions = ErrorExtensionValues::default();
    extensions.set("code", RATE_LIMITED);
    extensions.set("retryAfterSeconds", seconds);
    error.extensions = Some(extensions);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_and_comes_back() {
        let budgets = Budgets::new(10, 100);
        let (one, other) = (TenantId(uuid::Uuid::from_u128(1)), TenantId(uuid::Uuid::from_u128(2)));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(budgets.take(one, 60, start), Ok(()));
        assert_eq!(budgets.take(one, 60, start), Err(Duration::from_secs(2)));
        assert_eq!(budgets.take(other, 60, start), Ok(()), "another tenant has a budget of its own");
        assert_eq!(budgets.take(one, 60, after(1)), Err(Duration::from_secs(1)), "a refusal costs nothing");
        assert_eq!(budgets.take(one, 60, after(2)), Ok(()));
        // What is dearer than all there is waits for all there is, and is paid off.
        assert_eq!(budgets.take(one, 500, after(11)), Err(Duration::from_secs(1)));
        assert_eq!(budgets.take(one, 500, after(12)), Ok(()));
        assert_eq!(budgets.take(one, 1, after(12)), Err(Duration::from_millis(40_100)));
        assert_eq!(budgets.take(one, 100, after(62)), Ok(()));
    }

    #[test]
    fn those_who_owe_nothing_are_forgotten() {
        let budgets = Budgets::new(10, 100);
        let start = Instant::now();
        for number in 0..25_000_u128 {
            let later = start + Duration::from_millis(u64::try_from(number).unwrap_or(0));
            assert_eq!(budgets.take(TenantId(uuid::Uuid::from_u128(number)), 1, later), Ok(()));
        }
        let remembered = budgets.spent.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(remembered <= MANY, "{remembered}");
    }
}

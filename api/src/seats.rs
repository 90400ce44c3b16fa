//! How many subscriptions are open: each costs memory and a part of every change, so a tenant has so many of each process and no more.

use domain::id::TenantId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The subscriptions that are open.
pub(crate) struct Seats {
    most: usize,
    taken: Mutex<HashMap<TenantId, usize>>,
}

/// One of them, until it is dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    tenant: TenantId,
}

impl Seats {
    /// At most so many for each tenant.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// One more, if there is room.
    pub(crate) fn take(self: &Arc<Self>, tenant: TenantId) -> Option<Seat> {
        let mut taken = self.taken();
        let count = taken.entry(tenant).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Seat { seats: Arc::clone(self), tenant })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn each_tenant_has_its_own_and_gets_them_back() {
        let seats = Arc::new(Seats::new(2));
        let (one, other) = (TenantId(Uuid::from_u128(1)), TenantId(Uuid::from_u128(2)));
        let (first, second) = (seats.take(one), seats.take(one));
        assert!(first.is_some() && second.is_some() && seats.take(one).is_none());
        assert!(seats.take(other).is_some());
        drop(first);
        assert!(seats.take(one).is_some());
        drop(second);
        assert!(seats.taken().is_empty());
    }
}

//! The counting itself, in memory: what each process does for itself, and the pattern that the script for Redis follows.
//!
//! Who comes next is decided by start-time fair queueing: at each provider every tenant has a virtual time, which moves on by one
//! over its weight with each slot it gets; the tenant that is furthest behind goes next, however many tasks others have in
//! line. Who comes (back) begins at the time of those who wait, so that nobody saves up turns. Within a tenant the higher
//! priority goes first, then the older.

use crate::config::Rules;
use crate::port::{Asked, Called, Count, REMEMBERED, Swept};
use domain::id::{AttemptId, TenantId};
use domain::process::{Entry, Slot, Why};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// What slots are counted by.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Provider(String),
    Model(String),
    Tenant(TenantId),
    User(TenantId, String),
}

struct Held {
    slot: Slot,
    ends: u64,
    called: bool,
    at: u64,
}

/// Priority (the higher is the smaller number), then the order of arrival.
type Place = (i32, u64, AttemptId);

struct Waiter {
    slot: Slot,
    place: Place,
    since: u64,
    missed: u32,
}

/// Those who wait for one provider.
#[derive(Default)]
struct Line {
    /// The virtual time of the tenant that was served last.
    served: f64,
    /// Virtual times of tenants that are ahead of it; of others nothing has to be remembered.
    turns: HashMap<TenantId, f64>,
    /// By tenant, and in it by what they are counted by, so that of each only the first has to be looked at.
    tenants: HashMap<TenantId, BTreeMap<(String, String), BTreeSet<Place>>>,
}

/// A bucket of tokens as it was at a time.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: u64,
}

/// See the module. Times are milliseconds of any clock that does not go back.
pub(crate) struct Book {
    rules: Rules,
    held: HashMap<AttemptId, Held>,
    ends: BTreeSet<(u64, AttemptId)>,
    counts: HashMap<Key, HashSet<AttemptId>>,
    over: HashMap<AttemptId, (u32, u64)>,
    waiting: HashMap<AttemptId, Waiter>,
    lines: BTreeMap<String, Line>,
    buckets: HashMap<Key, Bucket>,
    arrivals: u64,
}

impl Book {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            held: HashMap::new(),
            ends: BTreeSet::new(),
            counts: HashMap::new(),
            over: HashMap::new(),
            waiting: HashMap::new(),
            lines: BTreeMap::new(),
            buckets: HashMap::new(),
            arrivals: 0,
        }
    }

    pub fn ask(&mut self, slot: &Slot, now: u64) -> Asked {
        self.pass_time(now);
        let newer = self.held.get(&slot.attempt).is_some_and(|it| it.slot.round > slot.round);
        if newer || self.over.get(&slot.attempt).is_some_and(|(round, _)| *round >= slot.round) {
            // Asked by somebody whose facts are old: they will see that when they write.
            return Asked { entry: Entry::Wait { after: Duration::from_secs(1), why: Why::Turn }, called: vec![] };
        }
        if self.held.contains_key(&slot.attempt) {
            self.take(slot, now);
            return Asked { entry: Entry::Granted, called: vec![] };
        }
        self.line_up(slot, now);
        let mut called = self.call_out(now);
        let before = called.len();
        called.retain(|it| it.attempt != slot.attempt);
        if called.len() < before {
            self.take(slot, now);
            return Asked { entry: Entry::Granted, called };
        }
        let waited = self.waiting.get(&slot.attempt).map_or(0, |it| now.saturating_sub(it.since));
        Asked { entry: Entry::Wait { after: self.rules.recheck(waited), why: self.why(slot, now) }, called }
    }

    pub fn keep(&mut self, slot: &Slot, now: u64) {
        self.pass_time(now);
        let newer = self.held.get(&slot.attempt).is_some_and(|it| it.slot.round > slot.round);
        let over = self.over.get(&slot.attempt).is_some_and(|(round, _)| *round >= slot.round);
        if !newer && !over {
            self.take(slot, now);
        }
    }

    pub fn give_back(&mut self, attempt: AttemptId, round: u32, now: u64) -> Vec<Called> {
        self.pass_time(now);
        let known = self.over.get(&attempt).map_or(0, |(round, _)| *round);
        self.over.insert(attempt, (known.max(round), now + REMEMBERED));
        if self.held.get(&attempt).is_some_and(|it| it.slot.round <= round) {
            self.let_go(attempt);
        }
        if self.waiting.get(&attempt).is_some_and(|it| it.slot.round <= round) {
            self.forget(attempt);
        }
        self.call_out(now)
    }

    pub fn withdraw(&mut self, attempt: AttemptId, now: u64) -> Vec<Called> {
        self.pass_time(now);
        if self.held.get(&attempt).is_some_and(|it| it.called) {
            self.let_go(attempt);
        }
        self.forget(attempt);
        self.call_out(now)
    }

    pub fn tick(&mut self, now: u64) -> Vec<Called> {
        self.pass_time(now);
        self.call_out(now)
    }

    /// `started` is before the attempts were read.
    pub fn sweep(&mut self, in_flight: &[Slot], started: u64, now: u64) -> Swept {
        self.pass_time(now);
        for slot in in_flight {
            self.keep(slot, now);
        }
        let running: HashSet<AttemptId> = in_flight.iter().map(|it| it.attempt).collect();
        let limit = started.saturating_sub(self.rules.grace);
        let gone: Vec<AttemptId> = self
            .held
            .iter()
            .filter(|(id, it)| !it.called && it.at < limit && !running.contains(id))
            .map(|(id, _)| *id)
            .collect();
        let freed = gone.len() as u64;
        gone.into_iter().for_each(|id| self.let_go(id));
        Swept { in_flight: in_flight.len(), freed, called: self.call_out(now) }
    }

    /// Everybody leaves the line: they ask elsewhere.
    pub fn disband(&mut self) -> Vec<Called> {
        let all: Vec<Called> = self.waiting.values().map(|it| Called::from(&it.slot)).collect();
        for it in &all {
            if self.held.get(&it.attempt).is_some_and(|it| it.called) {
                self.let_go(it.attempt);
            }
            self.forget(it.attempt);
        }
        all
    }

    pub fn count(&self) -> Count {
        let mut providers: Vec<(String, u64)> = self
            .counts
            .iter()
            .filter_map(|(key, held)| match key {
                Key::Provider(name) => Some((name.clone(), held.len() as u64)),
                _ => None,
            })
            .collect();
        providers.sort();
        Count {
            held: self.held.len() as u64,
            called: self.held.values().filter(|it| it.called).count() as u64,
            waiting: self.waiting.len() as u64,
            providers,
            lost: false,
        }
    }

    // ------------------------------------------------------------------ slots

    /// Leases that have ended free their slots; who was called and did not come is in line again, or out after too many times.
    fn pass_time(&mut self, now: u64) {
        while let Some((ends, id)) = self.ends.first().copied().filter(|(ends, _)| *ends <= now) {
            self.ends.remove(&(ends, id));
            let called = self.held.get(&id).is_some_and(|it| it.called);
            self.let_go(id);
            if let Some(waiter) = self.waiting.get_mut(&id).filter(|_| called) {
                waiter.missed += 1;
                if waiter.missed >= self.rules.missed {
                    self.waiting.remove(&id);
                } else {
                    let (slot, place) = (waiter.slot.clone(), waiter.place);
                    self.stand(&slot, place);
                }
            }
        }
        if self.over.len() > 10_000 {
            self.over.retain(|_, (_, until)| *until > now);
        }
    }

    fn take(&mut self, slot: &Slot, now: u64) {
        self.let_go(slot.attempt);
        self.forget(slot.attempt);
        self.hold(slot, now + self.rules.lease, false, now);
    }

    fn hold(&mut self, slot: &Slot, ends: u64, called: bool, at: u64) {
        for key in keys(slot) {
            self.counts.entry(key).or_default().insert(slot.attempt);
        }
        self.ends.insert((ends, slot.attempt));
        self.held.insert(slot.attempt, Held { slot: slot.clone(), ends, called, at });
    }

    fn let_go(&mut self, attempt: AttemptId) {
        let Some(held) = self.held.remove(&attempt) else { return };
        self.ends.remove(&(held.ends, attempt));
        for key in keys(&held.slot) {
            if let Some(count) = self.counts.get_mut(&key) {
                count.remove(&attempt);
                if count.is_empty() {
                    self.counts.remove(&key);
                }
            }
        }
    }

    fn has_room(&self, key: &Key) -> bool {
        let most = match key {
            Key::Provider(name) => self.rules.providers.of(name),
            Key::Model(name) => self.rules.models.of(name),
            Key::Tenant(id) => self.rules.tenants.of(&id.to_string()),
            Key::User(_, user) if user.is_empty() => None,
            Key::User(tenant, user) => self.rules.users.of(&format!("{tenant}/{user}")),
        };
        let held = self.counts.get(key).map_or(0, HashSet::len);
        most.is_none_or(|most| held < most as usize)
    }

    // ------------------------------------------------------------------ rates

    /// What is in a bucket now; `None` where nothing is limited.
    fn tokens(&self, key: &Key, now: u64) -> Option<f64> {
        let rate = match key {
            Key::Provider(name) => self.rules.provider_rate.of(name)?,
            Key::Tenant(id) => self.rules.tenant_rate.of(&id.to_string())?,
            Key::Model(_) | Key::User(..) => return None,
        };
        let most = f64::from(rate.requests);
        let Some(bucket) = self.buckets.get(key) else { return Some(most) };
        let passed = now.saturating_sub(bucket.at) as f64;
        Some(most.min(bucket.tokens + passed * most / (f64::from(rate.seconds) * 1000.0)))
    }

    fn may_ask(&self, key: &Key, now: u64) -> bool {
        self.tokens(key, now).is_none_or(|tokens| tokens >= 1.0)
    }

    fn spend(&mut self, key: Key, now: u64) {
        if let Some(tokens) = self.tokens(&key, now) {
            self.buckets.insert(key, Bucket { tokens: tokens - 1.0, at: now });
        }
    }

    // ------------------------------------------------------------------ the line

    fn line_up(&mut self, slot: &Slot, now: u64) {
        if let Some(waiter) = self.waiting.get_mut(&slot.attempt) {
            waiter.slot.round = slot.round;
            return;
        }
        self.arrivals += 1;
        let place = (-i32::from(slot.priority), self.arrivals, slot.attempt);
        self.waiting.insert(slot.attempt, Waiter { slot: slot.clone(), place, since: now, missed: 0 });
        self.stand(slot, place);
    }

    fn stand(&mut self, slot: &Slot, place: Place) {
        let line = self.lines.entry(slot.provider.clone()).or_default();
        if !line.tenants.contains_key(&slot.tenant) {
            let turn = line.turns.get(&slot.tenant).copied().unwrap_or(0.0).max(line.served);
            line.turns.insert(slot.tenant, turn);
        }
        let lanes = line.tenants.entry(slot.tenant).or_default();
        lanes.entry((slot.model.clone(), slot.user.clone())).or_default().insert(place);
    }

    /// Out of the line, though still one of those who wait.
    fn step_out(&mut self, slot: &Slot, place: Place) {
        let Some(line) = self.lines.get_mut(&slot.provider) else { return };
        let Some(lanes) = line.tenants.get_mut(&slot.tenant) else { return };
        let lane = (slot.model.clone(), slot.user.clone());
        if let Some(places) = lanes.get_mut(&lane) {
            places.remove(&place);
            if places.is_empty() {
                lanes.remove(&lane);
            }
        }
        if lanes.is_empty() {
            line.tenants.remove(&slot.tenant);
            let served = line.served;
            let waiting = &line.tenants;
            line.turns.retain(|tenant, turn| waiting.contains_key(tenant) || *turn > served);
        }
    }

    fn forget(&mut self, attempt: AttemptId) {
        if let Some(waiter) = self.waiting.remove(&attempt) {
            self.step_out(&waiter.slot, waiter.place);
        }
    }

    /// Whose turn it is, as long as there are slots: each is held for who is called.
    fn call_out(&mut self, now: u64) -> Vec<Called> {
        let mut called = vec![];
        let providers: Vec<String> = self.lines.keys().cloned().collect();
        for provider in providers {
            while let Some(slot) = self.next(&provider, now) {
                self.call(&slot, now);
                called.push(Called::from(&slot));
            }
        }
        called
    }

    /// The next one at a provider that has room everywhere.
    fn next(&self, provider: &str, now: u64) -> Option<Slot> {
        let line = self.lines.get(provider)?;
        let at = Key::Provider(provider.to_owned());
        if line.tenants.is_empty() || !self.has_room(&at) || !self.may_ask(&at, now) {
            return None;
        }
        let turn = |tenant: &TenantId| line.turns.get(tenant).copied().unwrap_or(0.0);
        let mut tenants: Vec<(f64, TenantId)> = line.tenants.keys().map(|it| (turn(it), *it)).collect();
        tenants.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        tenants.into_iter().find_map(|(_, tenant)| {
            let key = Key::Tenant(tenant);
            if !self.has_room(&key) || !self.may_ask(&key, now) {
                return None;
            }
            let room = |lane: &(String, String)| {
                self.has_room(&Key::Model(lane.0.clone())) && self.has_room(&Key::User(tenant, lane.1.clone()))
            };
            let lanes = line.tenants.get(&tenant)?.iter().filter(|(lane, _)| room(lane));
            let first = lanes.filter_map(|(_, places)| places.first()).min()?;
            self.waiting.get(&first.2).map(|waiter| waiter.slot.clone())
        })
    }

    fn call(&mut self, slot: &Slot, now: u64) {
        let step = 1.0 / self.rules.weight(&slot.tenant.to_string());
        if let Some(line) = self.lines.get_mut(&slot.provider) {
            let turn = line.turns.get(&slot.tenant).copied().unwrap_or(0.0);
            line.served = line.served.max(turn);
            line.turns.insert(slot.tenant, turn + step);
        }
        if let Some(place) = self.waiting.get(&slot.attempt).map(|it| it.place) {
            self.step_out(slot, place);
        }
        self.spend(Key::Provider(slot.provider.clone()), now);
        self.spend(Key::Tenant(slot.tenant), now);
        self.hold(slot, now + self.rules.call, true, now);
    }

    fn why(&self, slot: &Slot, now: u64) -> Why {
        let [provider, model, tenant, user] = keys(slot);
        let full = |key: &Key| !self.has_room(key);
        match () {
            () if full(&provider) => Why::Provider,
            () if full(&model) => Why::Model,
            () if full(&tenant) => Why::Tenant,
            () if full(&user) => Why::User,
            () if !self.may_ask(&provider, now) => Why::ProviderRate,
            () if !self.may_ask(&tenant, now) => Why::TenantRate,
            () => Why::Turn,
        }
    }
}

fn keys(slot: &Slot) -> [Key; 4] {
    [
        Key::Provider(slot.provider.clone()),
        Key::Model(slot.model.clone()),
        Key::Tenant(slot.tenant),
        Key::User(slot.tenant, slot.user.clone()),
    ]
}

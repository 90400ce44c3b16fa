//! Admission, as far as facts and rules go: what a submit has to have before it begins, what admission may answer, and what a
//! turn says about the slot that its attempt holds.
//!
//! A slot is only ever permission. Whoever counts them may lose all of its counts: they are made again from the attempts that
//! are in flight, and an answer that was lost costs waiting, never a task.

use super::turn::{Change, Turn};
use crate::aggregate::named;
use crate::attempt::Attempt;
use crate::id::{AttemptId, TaskId, TenantId};
use crate::task::Order;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What holds a slot, or asks for one: a round of submitting an attempt, and everything that slots are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The attempt: the holder's name.
    pub attempt: AttemptId,
    /// Its task.
    pub task: TaskId,
    /// The round of submitting. It grows with each and comes from the facts, so it is the fencing number: what is said about an
    /// older round does not touch the slot of a newer one, even where Redis lost all it knew in between.
    pub round: u32,
    /// The tenant.
    pub tenant: TenantId,
    /// Who of the tenant asked; empty where that was not written down.
    pub user: String,
    /// The model.
    pub model: String,
    /// The provider.
    pub provider: String,
    /// Among the tenant's own tasks, the higher goes first.
    pub priority: i16,
}

impl Slot {
    /// The slot of a round of an attempt at an order.
    #[must_use]
    pub fn of(order: &Order, number: u32, round: u32) -> Self {
        Self {
            attempt: AttemptId::of(order.task, number),
            task: order.task,
            round,
            tenant: order.tenant,
            user: order.user.clone(),
            model: order.model.clone(),
            provider: order.provider.clone(),
            priority: order.priority,
        }
    }
}

named! {
    /// Why a task waits for a slot: the words that its history and its reason show.
    Why {
        /// The provider has as many jobs as it may.
        Provider = "slot_provider",
        /// The model has.
        Model = "slot_model",
        /// The tenant has.
        Tenant = "slot_tenant",
        /// The user has.
        User = "slot_user",
        /// The provider was asked as often as it may be for now.
        ProviderRate = "rate_provider",
        /// The tenant has asked as often as it may for now.
        TenantRate = "rate_tenant",
        /// There is room, and others are before it.
        Turn = "slot_turn",
        /// Nobody can say: admission is down, or is counting anew.
        Down = "admission_down",
    }
}

/// Admission's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The slot is the attempt's, until it is given back or its lease ends.
    Granted,
    /// Not now.
    Wait {
        /// When to ask again at the latest: a free slot is called out sooner.
        after: Duration,
        /// Why.
        why: Why,
    },
}

/// What a turn means for the slot of its attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotNote {
    /// The provider has a job of it, or may have: the slot is kept, and taken where it is not held.
    InFlight(Slot),
    /// Nothing runs in this round any more: the slot is given back.
    Over {
        /// The attempt.
        attempt: AttemptId,
        /// The last round that is over; [`SlotNote::ALL_ROUNDS`] where there will be no other.
        round: u32,
    },
}

impl SlotNote {
    /// The attempt has ended: no round of it will ever need a slot.
    pub const ALL_ROUNDS: u32 = u32::MAX;
}

/// What a turn says about a slot: by the attempt's state after it, whoever made the turn. `None`: nothing about it changed.
///
/// An attempt whose answer was lost keeps its slot, because the job may run. One that begins has just been given its slot.
#[must_use]
pub fn slot_note(turn: &Turn<'_>) -> Option<SlotNote> {
    turn.changes.iter().find(|change| matches!(change, Change::Attempt(..)))?;
    let core = turn.case.attempt.state.core()?;
    match &turn.case.attempt.state {
        Attempt::Absent | Attempt::Submitting { .. } => None,
        Attempt::Planned(core) if core.round == 0 => None,
        Attempt::Unclear { .. } | Attempt::Running { .. } => {
            let order = turn.case.task.state.order()?;
            Some(SlotNote::InFlight(Slot::of(order, core.number, core.round)))
        }
        Attempt::Planned(core) => Some(SlotNote::Over { attempt: core.id(), round: core.round }),
        Attempt::Succeeded { .. } | Attempt::Failed(_) | Attempt::Canceled(_) | Attempt::GivenUp { .. } => {
            Some(SlotNote::Over { attempt: core.id(), round: SlotNote::ALL_ROUNDS })
        }
    }
}

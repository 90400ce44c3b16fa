//! The state after an event. An event that would break the account's arithmetic, or repeats a key, is a corrupt history.

use super::{Account, Charge, Event, Hold, Refund, Reserve};
use crate::id::TaskId;
use crate::money::Credits;
use crate::mutant::{self, Mutant};

impl Account {
    /// Moves amounts; `None` where that can not have happened.
    pub(super) fn post(&mut self, event: &Event) -> Option<()> {
        match event {
            Event::Granted { key, amount } => {
                self.granted = self.granted.plus(*amount).filter(|_| amount.is_positive())?;
                self.available = self.available.plus(*amount)?;
                self.grants.insert(key.clone(), *amount).is_none().then_some(())
            }
            Event::Adjusted { key, amount, .. } => {
                self.adjusted = self.adjusted.plus(*amount)?;
                self.available = self.available.plus(*amount).filter(|left| *left >= Credits::ZERO)?;
                self.adjustments.insert(key.clone(), *amount).is_none().then_some(())
            }
            Event::Held { task, amount, expires_at } => {
                self.available = self.available.minus(*amount).filter(|left| *left >= Credits::ZERO)?;
                self.held = self.held.plus(*amount).filter(|_| amount.is_positive())?;
                let open = Hold::Open(Reserve { amount: *amount, expires_at: *expires_at });
                self.holds.insert(*task, open).is_none().then_some(())
            }
            Event::Settled { task, charged, released } => {
                let charge = Charge { charged: *charged, refunded: Credits::ZERO };
                self.close(*task, charged.plus(*released)?, *released, Hold::Settled(charge))?;
                self.charged = self.charged.plus(*charged).filter(|_| *charged >= Credits::ZERO)?;
                Some(())
            }
            Event::Released { task, released } => self.close(*task, *released, *released, Hold::Released),
            Event::HoldExpired { task, released, at } => {
                let Hold::Open(Reserve { expires_at: Some(due), .. }) = self.hold(*task)? else { return None };
                (due <= *at).then_some(())?;
                self.close(*task, *released, *released, Hold::Expired)
            }
            Event::Refunded { task, key, amount, .. } => self.give_back(*task, key, *amount),
        }
    }

    /// Closes an open hold of exactly `amount`; `released` of it is available again.
    fn close(&mut self, task: TaskId, amount: Credits, released: Credits, how: Hold) -> Option<()> {
        let Hold::Open(open) = self.hold(task)? else {
            return (mutant::on(Mutant::SettleTwice) || mutant::on(Mutant::ReleaseTwice)).then_some(());
        };
        (open.amount == amount && released >= Credits::ZERO).then_some(())?;
        self.held = self.held.minus(amount)?;
        self.available = self.available.plus(released)?;
        self.holds.insert(task, how);
        Some(())
    }

    fn give_back(&mut self, task: TaskId, key: &str, amount: Credits) -> Option<()> {
        let Hold::Settled(Charge { charged, refunded }) = self.hold(task)? else { return None };
        let refunded = refunded.plus(amount).filter(|sum| amount.is_positive() && *sum <= charged)?;
        self.refunded = self.refunded.plus(amount)?;
        self.available = self.available.plus(amount)?;
        self.holds.insert(task, Hold::Settled(Charge { charged, refunded }));
        if mutant::on(Mutant::RefundTwice) {
            return Some(());
        }
        self.refunds.insert(key.to_owned(), Refund { task, amount }).is_none().then_some(())
    }
}

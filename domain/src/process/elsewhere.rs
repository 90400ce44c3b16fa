//! Where a task's next attempt is made: at the provider that was asked before, or, where the order allows it, at another one.
//!
//! Only after an attempt of which it is certain that nothing of it runs: one that the provider refused or ended, or one that
//! never left. A refusal of content is not tried elsewhere, and neither is what the user asked for wrongly.

use super::policy::Policy;
use crate::attempt::Core;
use crate::task::{ErrorClass, Live};
use crate::time::Timestamp;

/// Whether another attempt follows one that has ended for this reason.
pub(super) fn after_the_end(class: ErrorClass, live: &Live, policy: &Policy, now: Timestamp) -> bool {
    let may_help = match class {
        ErrorClass::Provider => true,
        // Our credentials or our money there: the same place says the same again.
        ErrorClass::ProviderAccount => moves(live),
        ErrorClass::Moderation
        | ErrorClass::BadRequest
        | ErrorClass::Timeout
        | ErrorClass::Output
        | ErrorClass::Operator => false,
    };
    may_help && is_left(live, policy, now)
}

/// Whether an attempt that no provider has taken so far is given up for one elsewhere. `core` is the attempt as it waits to be
/// submitted again.
pub(super) fn instead_of_waiting(core: &Core, live: &Live, policy: &Policy, now: Timestamp) -> bool {
    // An answer of it was lost once: that its job was not found since is good enough to ask the same provider again, whose look-up
    // would find it, but not to be certain.
    !core.unclear_once && core.round >= policy.elsewhere_after && moves(live) && is_left(live, policy, now)
}

fn moves(live: &Live) -> bool {
    live.order.place(live.attempt_no + 1).provider != live.order.place(live.attempt_no).provider
}

fn is_left(live: &Live, policy: &Policy, now: Timestamp) -> bool {
    live.attempt_no < live.order.attempts(policy.max_attempts) && now < live.give_up_at
}

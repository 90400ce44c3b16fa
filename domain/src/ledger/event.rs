//! What may have happened to an account. Each posting carries its business key: one posting per key, ever.

use crate::id::TaskId;
use crate::money::Credits;
use crate::stored::{Upcaster, stored_events};

/// Steps from older versions of these events' bodies. None yet: every event is at version 1.
pub const UPCASTERS: &[Upcaster] = &[];

stored_events! {
    /// An account's events.
    Event, upcasters = UPCASTERS, {
        /// Credits came in.
        Granted = "account.granted" v 1 {
            /// Business key: the payment, voucher or grant it stands for.
            key: String,
            /// How much.
            amount: Credits,
        },
        /// Credits were set aside for a task.
        Held = "account.held" v 1 {
            /// Business key.
            task: TaskId,
            /// How much.
            amount: Credits,
        },
        /// A task's hold was settled: part is charged, the rest is free again.
        Settled = "account.settled" v 1 {
            /// Business key.
            task: TaskId,
            /// Charged.
            charged: Credits,
            /// Free again.
            released: Credits,
        },
        /// A task's hold was released: nothing is charged.
        Released = "account.released" v 1 {
            /// Business key.
            task: TaskId,
            /// Free again.
            released: Credits,
        },
    }
}

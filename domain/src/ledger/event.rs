//! What may have happened to an account. Each posting carries its business key: one posting per key, ever.

use crate::id::TaskId;
use crate::money::Credits;
use crate::stored::{Upcaster, stored_events};
use crate::time::Timestamp;
use serde_json::Value;

/// Steps from older versions of these events' bodies.
pub const UPCASTERS: &[Upcaster] = &[Upcaster { name: "account.held", from: 1, step: held_for_ever }];

/// `account.held` v1 knew no expiry: such a hold is open until its task's verdict, however long that takes.
fn held_for_ever(mut body: Value) -> Value {
    if let Value::Object(fields) = &mut body {
        fields.insert("expires_at".to_owned(), Value::Null);
    }
    body
}

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
        Held = "account.held" v 2 {
            /// Business key.
            task: TaskId,
            /// How much.
            amount: Credits,
            /// From when on it may be freed without a charge; `None`: only by the task's verdict. Since v2.
            expires_at: Option<Timestamp>,
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
        /// A task's hold outlived its time and was freed: nothing is charged.
        HoldExpired = "account.hold_expired" v 1 {
            /// Business key.
            task: TaskId,
            /// Free again.
            released: Credits,
            /// When.
            at: Timestamp,
        },
        /// Part of a task's charge was given back.
        Refunded = "account.refunded" v 1 {
            /// The task whose charge it is.
            task: TaskId,
            /// Business key, one for the whole account.
            key: String,
            /// How much.
            amount: Credits,
            /// Why: a sentence for auditors.
            reason: String,
        },
        /// A person corrected what is available.
        Adjusted = "account.adjusted" v 1 {
            /// Business key.
            key: String,
            /// How much; less than nothing takes credits away.
            amount: Credits,
            /// Why: a sentence for auditors.
            reason: String,
            /// Who did it.
            by: String,
        },
    }
}

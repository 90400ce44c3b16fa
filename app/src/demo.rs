//! The demonstration tenant of a development installation.

use uuid::Uuid;

/// Its id.
pub const TENANT: Uuid = Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001);

/// The credits it starts with, in minor units.
pub const CREDITS: i64 = 1_000_000;

/// The business key of that grant: it is made once, however often the system starts.
pub const GRANT: &str = "demonstration";

//! What tables of items and rollout tables do alike to survive a crash.
//!
//! - `log`: the [journal](crate::journal) that a running table writes its changes to.
//!
//! What a record says is for the tables to know: `table/durable` has effects, `rollouts/durable` has changes.

mod log;

pub(crate) use self::log::Log;
pub use self::log::Receipt;

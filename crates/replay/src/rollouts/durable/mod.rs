//! Rollout tables that survive a crash, and what was done with them.
//!
//! ```text
//! dir/
//!   echoic-rollouts.lock    held while the table is open
//!   journal/                every change that had an effect, in order: see `entry`
//!   checkpoints/            the table as it was at some moments: see `sections`
//! ```
//!
//! [`RolloutTable::open`](super::RolloutTable::open) brings back the newest checkpoint and does again what the
//! journal has since; then it continues. What is written are the changes themselves, with their times: the ledger
//! decides by nothing else, so it comes to the same groups and batches, bit by bit. So a journal that is kept whole
//! is a [`History`]: what was delivered can be looked at again, and how the table was at any time.
//!
//! - `entry`: changes as records. `log`: writes them while the table runs. `replayed`: the way back.
//! - `sections`: a table in a checkpoint, its own or a server's. `opening`: a directory and a table.
//! - [`history`]: a directory that is only read.
//!
//! # Invariants
//!
//! 1. Records are in the journal in the order of the changes, which is why they are pushed under the table's lock.
//!    They are put together and their checksums taken before, and no thread waits for the disk with the lock.
//! 2. A change that a caller of `call` got an answer for is kept, as the durability promises; callers of `apply` ask
//!    [`is_durable`](super::RolloutTable::is_durable).
//! 3. The time of the table never goes back. While no process has it open, no time passes: then reservations and leases
//!    have their full time again.
//! 4. A checkpoint names only records that are durable before it is.
//!
//! # Limitations
//!
//! A checkpoint has all tokens that are there, also those that the one before has: groups are used up soon, so most
//! are others. What waits to be written is bounded for producers that have no reservation yet: when there is no room,
//! nothing is reserved, and what is made already is taken.

#[cfg(test)]
mod crash;
mod entry;
pub mod history;
mod log;
mod opening;
mod replayed;
pub(crate) mod sections;
#[cfg(test)]
pub(super) mod tests;

pub use self::history::{Delivered, History, Point};
pub(super) use self::log::ChangeLog;
pub(super) use self::opening::unix_ms;
pub use crate::journal::Durability;

/// How a table with a directory is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurableOptions {
    /// What a change must survive before its caller gets the answer.
    pub durability: Durability,
    /// Whether the whole journal stays, so that all can be done again; else checkpoints cut off what they cover.
    pub history: bool,
}

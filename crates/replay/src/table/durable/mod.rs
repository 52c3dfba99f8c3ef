//! Tables that survive a crash.
//!
//! A table with a [`Durability`] that a server [brings back](recover) writes to a [journal](crate::journal)
//! what changes, and is replayed from there after a crash. What is written are *effects*, not calls:
//! which item came under which key, and which one went for it; so nothing depends on random numbers, and
//! keys are the same afterwards.
//!
//! - `entry`: effects as bytes. `log`: writes them while the table runs. `replay`: the way back.
//! - `place`: where journals are, and what they say about themselves. `recover`: checkpoint and journals
//!   together.
//!
//! # Invariants
//!
//! 1. Entries are in the journal in the order in which the changes were made, which is why they are
//!    pushed under the table's lock. Payload is copied into them before, and no thread waits for the disk
//!    with the lock: room in the journal is taken before it.
//! 2. What an item names, chunks and a form, is recorded before it, since the last *forget* and since the
//!    last checkpoint.
//! 3. How far a remote producer has come is in the record of what it inserted, so that a crash
//!    leaves both or neither.
//! 4. A checkpoint and a journal belong together if the checkpoint has the journal's name, or the journal
//!    the checkpoint's. Others are refused: one of them would be missing items.
//!
//! # Limitations
//!
//! Draws are recorded only as far as they change how often items may still be drawn: after a replay the random
//! state is another one, an epoch starts over, and `times_sampled` is that of the checkpoint unless
//! `max_times_sampled` limits it. With [`Durability::Async`] a batch is handed on before its draws are kept, so
//! items of the last batches before a crash may be drawn once more than that; with [`Durability::Sync`] it is
//! handed on when they are. An item that was sampled before it was kept may be lost in a crash, and
//! its key may be given to another one later.

mod entry;
mod log;
mod place;
mod recover;
mod replay;
mod shared;
#[cfg(test)]
mod tests;

pub(super) use self::entry::Effect;
pub(super) use self::log::EffectLog;
pub use self::recover::{Recovered, recover};
pub use crate::journal::Durability;

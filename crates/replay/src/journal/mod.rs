//! A log that survives a crash: records in, the same records in the same order out after it.
//!
//! [`Journal::open`] gives the log to append to, and a [`Replay`] of what it has. Threads
//! [append](Journal::append) records, which are numbered; one thread of the journal writes what has come
//! together meanwhile at once, and makes it durable at once. [`Journal::wait`] waits until a record is as
//! safe as the [`Durability`] says. When a checkpoint covers the oldest records,
//! [`Journal::truncate_before`] gives their disk space back. What the records mean is for others to know.
//!
//! ```text
//! journal/
//!   echoic-journal.lock                 held while the journal is open
//!   journal-00000000000000000000.log    a segment: its first record has this number
//!   journal-00000000000000004711.log
//! ```
//!
//! # Invariants
//!
//! 1. Records are in the segments in the order of their numbers, without a gap.
//! 2. All segments but the last are whole and durable before the next one is there. So a record that is
//!    cut off can only be at the end of the last segment; anywhere else it is damage, which is an error.
//! 3. A record counts as kept only after what its durability promises has happened. After a write or a
//!    sync that failed, nothing more is kept, and nothing more is taken.
//! 4. No payload is copied, and no system call made, while the lock over the queue is held.
//!
//! ```
//! use echoic_replay::journal::{Durability, Journal, Options};
//!
//! # let dir = std::env::temp_dir().join(format!("echoic-doc-journal-{}", std::process::id()));
//! let options = Options { durability: Durability::Sync, ..Options::default() };
//! let (journal, mut replay) = Journal::open(&dir, options)?;
//! assert!(replay.next_record()?.is_none());
//! let sequence = journal.append(b"an insert")?;
//! journal.wait(sequence, None)?; // It survives a loss of power now.
//! drop(journal);
//!
//! let (_, mut replay) = Journal::open(&dir, options)?;
//! assert_eq!(replay.next_record()?, Some((sequence, &b"an insert"[..])));
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod appender;
#[cfg(test)]
mod crash;
mod log;
mod queue;
mod record;
mod recovery;
mod replay;
mod segment;

pub use log::{Info, Journal};
pub use queue::Effort;
pub use record::{Record, Room};
pub use replay::{Replay, Torn};

/// When a record counts as kept: what it survives from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Durability {
    /// At once. A process that is killed loses its last records, those that the journal's thread has
    /// not written yet; when the machine fails, the system loses what it has not put on disk.
    None,
    /// When the system has it. A killed process loses nothing that was kept; when the machine fails,
    /// the system loses what it has not put on disk, some seconds of it.
    #[default]
    Async,
    /// When it is on disk. Nothing that was kept is lost, not even when the machine fails.
    Sync,
}

/// How to keep a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What a record must survive.
    pub durability: Durability,
    /// The first record that is needed: what a checkpoint does not cover. A new journal begins there.
    pub from: u64,
    /// A segment that is as large is ended, and the next one begun.
    pub segment_bytes: u64,
    /// Bytes of records that wait to be written, at most. Then appending waits. A record can't be
    /// larger.
    pub queue_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            from: 0,
            segment_bytes: 64 << 20,
            queue_bytes: 64 << 20,
        }
    }
}

//! A file that holds the last this many records of equal size, by position.
//!
//! - [`ColdFile`]: the file. Records are appended at positions 0, 1, 2, … and the one at position `p`
//!   lies in slot `p % slots`, where it stays until the one at `p + slots` takes its place.
//! - [`Reading`]: the right to read records, which keeps them from being overwritten.
//! - [`Geometry`]: what a file is made for; a file that is opened must have been made for the same.
//!
//! # Format
//!
//! Numbers are little-endian.
//!
//! ```text
//! header   magic "EchoCold", version: u32, bytes of the text: u32, bytes of a row: u64,
//!          bytes of a slot: u64, slots: u64, identity: u64, crc32c of these 48 bytes and the text: u32,
//!          12 zeros, then the text, which says what the rows mean, and zeros up to a page's end
//! state    two pages, each with generation: u64, first: u64, end: u64, clean: u64, crc32c of these: u32
//! slots    one after the other: the row, position: u64, crc32c of identity, row and position: u32,
//!          then zeros up to the slot's end
//! ```
//!
//! Of the two states the one of the greater generation counts, and the other is overwritten next. A state
//! that is *clean* says that the records from `first` to `end` are there; the others say only that those
//! before `first` were cleared. The identity is a random number, so that a record of another file is none
//! of this one.
//!
//! A slot is as long as its row and the twelve bytes behind it, or, where that adds no more than a
//! sixteenth, goes on to a page's end: then a record that is written replaces whole pages, which need not
//! be read first, and a record that is read touches no page of its neighbours.
//!
//! # Invariants
//!
//! 1. Bytes of a slot change only in [`ColdFile::append`], after the `floor` was raised past the record
//!    that was there, and no [`Reading`] is older than that.
//! 2. `end` is raised after the records before it were written.
//! 3. An existing file is changed only once it is locked, and known to be one of ours.
//!
//! # Why nothing is mapped
//!
//! A store into a mapping whose disk is full, or a load from one whose file was cut, ends the process
//! with `SIGBUS`. `pwritev` and `preadv` return an error instead. Reading is not slower either: a frame in
//! the page cache is copied once, straight to where the batch wants it, and of those that are not there
//! all are asked for before the first is waited for, while a mapping waits for one page after the
//! other. The benchmark `sample_images_mapped` measures reads of frames that are in the page cache.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod file;
mod format;
mod locked;
mod read;
mod readers;
mod recover;
mod write;

pub use file::{ColdFile, Geometry};
pub use read::{Pieces, Wanted};
pub use readers::Reading;

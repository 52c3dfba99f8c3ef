//! What goes between a client and the tables of a server.
//!
//! There are two kinds of connections, so that an insert that has to wait keeps no request waiting:
//!
//! - *requests*: a [`Request`] is answered by one frame that has its number; many may be under way, and
//!   answers come in any order.
//! - *inserts*: [rows](RowsHead) and [items](ItemHead) are numbered, kept by the client until they are
//!   acknowledged, and inserted once each, in order.
//!
//! Both begin with the [list](TableEntry) of the server's tables, in the WELCOME frame. A table is called
//! by its place in that list.
//!
//! - `entry`: the list.
//! - `request`, `answer`, `batch`: of the first kind.
//! - `insert`: of the second.

mod answer;
mod batch;
mod entry;
mod insert;
mod request;

pub use answer::{Answer, FailureCode, Numbers};
pub use batch::{ALIGNMENT, BatchHead, Layout};
pub(super) use entry::check_each;
pub use entry::{MAX_TABLES, TableEntry, check_list};
pub use insert::{
    ItemHead, Release, RowsHead, SignatureHead, SliceHead, rows_per_frame, write_chunk,
};
pub use request::{ALL_TABLES, Area, Operation, Request};

/// The largest payload of a REQUEST.
pub const MAX_REQUEST: u32 = 16 << 20;
/// The most keys in a request: what fits into one.
pub const MAX_KEYS: u32 = 1 << 19;
/// The most items of a LISTED: what fits into one.
pub const MAX_LISTED: u32 = 1 << 19;
/// The most items of a sample.
pub const MAX_ITEMS: u32 = 1 << 20;
/// The largest payload of a BATCH.
pub const MAX_BATCH: u32 = 1 << 30;
/// The largest payload of a PLACED: what is known of this many items, and how many steps they have.
pub const MAX_PLACED: u32 = 128 << 20;
/// The most bytes of an arena.
pub const MAX_ARENA: u64 = 1 << 30;
/// The most requests of one connection that may wait for their answers.
pub const MAX_WAITING: usize = 1024;
/// The largest payload of a frame on a connection for inserts: a row or a chunk of 1 GiB, and its head.
pub const MAX_INSERT: u32 = (1 << 30) + (1 << 20);
/// The largest payload of an ITEM, a SIGNATURE or a RELEASE.
pub const MAX_ITEM: u32 = 1 << 20;
/// The most rows in a ROWS frame.
pub const MAX_ROWS: u32 = 1 << 16;
/// The most slices of an item.
pub const MAX_SLICES: u32 = 1 << 15;
/// The most chunks and bytes of chunks, and the most signatures, that a connection keeps.
pub const MAX_CHUNKS: usize = 1 << 17;
/// See [`MAX_CHUNKS`].
pub const MAX_CHUNK_BYTES: usize = 4 << 30;
/// See [`MAX_CHUNKS`].
pub const MAX_SIGNATURES: usize = 1 << 12;

/// The first value that is no priority.
pub fn bad_priority(priorities: &[f64]) -> Option<usize> {
    priorities.iter().position(|priority| !priority.is_finite() || *priority < 0.0)
}

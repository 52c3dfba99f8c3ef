//! Local replay buffers, for training on one machine without a server.
//!
//! - [`layout`]: where the leaves of a transition lie in a row.
//! - [`transitions`]: the rows, written in order and drawn at random.
//! - [`priorities`]: draws in proportion to a power of a priority.
//! - [`frames`]: observations that are stored once. `observations`: which frames of a transition are new.
//! - [`episodes`]: which transitions follow each other.
//! - [`steps`]: n-step returns, windows and goals.
//! - [`offline`]: data sets that do not change.
//! - [`surprise`]: experiences in two tiers, drawn by how much they surprise.
//! - [`cold`]: the last records in a file. [`tiered`]: the newest in memory, and the others there.
//! - [`error`]: what can be wrong with a call.
//!
//! Rows lie on a [`RowRing`](echoic_memory::row_ring::RowRing): all leaves of a transition next to each other, so that a
//! small one is one or two lines of the processor's cache, and no lock is held while bytes are copied.

#![forbid(unsafe_code)]

pub mod cold;
pub mod episodes;
pub mod error;
pub mod frames;
pub mod layout;
mod observations;
pub mod offline;
mod os;
pub mod priorities;
pub mod steps;
pub mod surprise;
pub mod tiered;
pub mod transitions;

pub use echoic_memory::row_ring::Reader as RowRingReader;
pub use error::Error;
pub use layout::RowLayout;
pub use priorities::Priorities;
pub use surprise::SurpriseReplay;
pub use tiered::Tiered;
pub use transitions::Transitions;

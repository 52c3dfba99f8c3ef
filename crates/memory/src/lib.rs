//! Bytes that Echoic owns, and the right to touch them.
//!
//! - [`ring`]: which thread may write or read which slot, decided by atomics alone. It holds no bytes. The
//!   part that runs in every process is `producer`, and the words themselves are in `control`.
//! - [`store`]: the ring joined to its column memory: [`BatchStore`], [`Writer`], [`Lease`], and
//!   [`RemoteStore`] for other processes.
//! - [`slab`]: rows that come and go one by one, and readers that keep them. [`row_ring`]: rows that go in the
//!   order in which they came.
//! - [`gather`]: fields of scattered rows, copied into columns.
//! - [`advice`]: hints for the system and the processor about memory that is needed soon.
//! - [`block`]: one aligned allocation, touched at start. `os`: what differs between systems, with memory that processes
//!   share.
//! - `arena`: memory for the answers of another process, on Linux. [`shared_buffer`]: memory that one process writes
//!   and others read.
//! - [`window`]: rows kept until they are known to have arrived.
//! - [`event`]: parking and waking without lost wake-ups, across processes; [`signal`]: for tasks too.
//! - [`lead`]: which of several threads drives what they share.
//! - [`sync`]: locks that go on after a panic.
//!
//! All `unsafe` code about memory lives in `advice`, `arena`, `row_ring`, `block`, `gather`, `control`, `os` (system calls),
//! `shared_buffer`, `slab`, `store` and `window`; the ring's algorithm is safe code and runs under loom
//! (`crates/memory/tests/loom.rs`).
//!
//! What this crate deliberately does not know: what the bytes mean, the network, Python.

#[cfg(not(unix))]
compile_error!("Echoic runs on Linux and macOS. On Windows, use it in WSL2.");

pub mod advice;
#[cfg(not(loom))]
pub mod arena;
mod bitmap;
pub mod block;
mod control;
#[cfg(any(test, loom))]
pub mod death;
pub mod event;
pub mod gather;
pub mod lead;
mod os;
mod producer;
mod region;
pub mod ring;
#[cfg(not(loom))]
pub mod row_ring;
#[cfg(not(loom))]
pub mod shared_buffer;
pub mod signal;
pub mod slab;
pub mod store;
pub mod sync;
pub mod window;

pub use advice::prefetch;
pub use block::{AllocError, roomy};
pub use os::SHARES_MEMORY;
pub use ring::{Blocked, Counts, Evicted, Ring, Unavailable};
pub use store::{AttachError, BatchStore, Layout, Lease, RemoteStore, Writer};

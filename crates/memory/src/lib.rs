//! Bytes that Echoic owns, and the right to touch them.
//!
//! - [`ring`]: who may write or read which slot, decided by atomics alone. It holds no bytes.
//! - [`store`]: the ring joined to its column memory: [`BatchStore`], [`Writer`], [`Lease`].
//! - [`block`]: one aligned allocation, touched at start.
//! - [`window`]: rows kept until they are known to have arrived.
//! - [`event`]: parking and waking without lost wake-ups.
//!
//! All `unsafe` code about memory lives in `block` and `store`; the ring's algorithm is safe code
//! and runs under loom (`crates/memory/tests/loom.rs`).
//!
//! What this crate deliberately does not know: what the bytes mean, the network, Python.

mod bitmap;
pub mod block;
pub mod event;
mod padded;
pub mod ring;
pub mod store;
mod sync;
pub mod window;

pub use block::AllocError;
pub use ring::{Blocked, Counts, Refusal, Ring};
pub use store::{BatchStore, Lease, Writer};

//! Experience, whatever brings it in and takes it out.
//!
//! - [`spec`]: the contract: path, dtype and shape of every leaf of a sample.
//! - [`stream`]: samples in one by one, fixed-size batches out in order, each once.
//! - [`table`]: items in, items out, as selectors choose and a limiter allows.
//! - [`selectors`]: which items are sampled and removed; [`limiter`]: which calls wait.
//! - [`chunk`] and [`trajectory`]: steps stored once, and items that name slices of them; [`encoding`]:
//!   how the bytes of a chunk are kept.
//! - [`episode`]: whose steps a chunk has.
//! - [`weights`]: what a learner publishes, on its way to the workers.
//! - [`checkpoint`] and [`journal`]: files that bring back what a process had, and find out when they
//!   can't.
//! - [`rollouts`]: groups of token sequences, as fresh as the learner wants them.
//! - [`durable`]: what both kinds of tables do alike to survive a crash.
//! - [`codec`]: values as bytes, for all files and connections.
//! - [`rng`]: the generator of all random choices.
//! - [`histogram`]: durations counted without a lock.
//! - [`metrics`]: statistics of a stream.
//!
//! This crate knows nothing of networks and nothing of Python.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod chunk;
pub mod codec;
pub mod durable;
pub mod encoding;
pub mod episode;
mod error;
mod files;
pub mod histogram;
pub mod journal;
mod kinds;
pub mod limiter;
pub mod metrics;
mod names;
pub mod rng;
pub mod rollouts;
mod scalar;
pub mod selectors;
pub mod spec;
pub mod stream;
pub mod table;
pub mod trajectory;
mod waits;
pub mod weights;
pub mod writer;

pub use episode::Episode;
pub use error::Error;
pub use files::FileError;
pub use histogram::{Histogram, Summary};
pub use metrics::StreamInfo;
pub use spec::{Dtype, Leaf, Spec, SpecError};
pub use stream::{Batch, Incoming, Moment, Stream, StreamConfig, StreamError};
pub use waits::WaitReason;

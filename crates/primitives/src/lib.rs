//! The mathematics of reinforcement learning on slices.
//!
//! Every function works on memory that the caller owns, allocates nothing that grows with its input but for
//! what [`packing`] returns and [`draws`] remembers, starts no thread, and knows neither buffers nor Python.
//!
//! - [`rollout`]: rewards, values and ends of episodes, and how they lie in memory.
//! - [`recursion`]: running backwards through time, the one loop that most functions here share.
//! - [`gae`], [`corrections`], [`returns`]: what is run.
//! - [`exp`]: floating-point numbers, and an exponential that becomes vector instructions.
//! - [`kl`], [`groups`], [`weights`], [`packing`], [`stats`]: answers of language models, and what is known of
//!   numbers that went by. [`plans`], [`bandwidth`], [`prefixes`], [`draws`]: agents that plan, share what
//!   they have read, and learn again from what surprised them. `blocks`: sums in a fixed order.
//! - [`simd`]: loops compiled for what the processor can do. [`error`]: inputs that do not fit.

#![forbid(unsafe_code)]

pub mod corrections;
pub mod error;
pub mod exp;
pub mod gae;
pub mod recursion;
pub mod returns;
pub mod rollout;
pub mod simd;

pub mod bandwidth;
mod blocks;
pub mod draws;
pub mod groups;
pub mod kl;
pub mod packing;
pub mod plans;
pub mod prefixes;
pub mod stats;
pub mod weights;

pub use error::Error;
pub use exp::Real;
pub use rollout::{Flags, Layout, Rollout, Truncation};

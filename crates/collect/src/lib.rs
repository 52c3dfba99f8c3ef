//! Native environments, small policies, and rollouts that need no Python.
//!
//! - [`mod@env`]: the dynamics of four classic control tasks, each a few pure functions.
//! - [`vector`]: many copies of one of them, stepped together, each with its own random stream.
//! - [`policy`]: what chooses actions, and the actor-critic network that we bring.
//! - [`rollout`]: some steps of all environments under a policy, with advantages.
//! - [`collector`]: a thread that makes rollouts ahead of their consumer.
//! - [`error`]: what can go wrong.
//!
//! Nothing here knows Python. Whatever is random comes from the generator of
//! [`echoic_replay::rng`], so that a seed decides everything.

#![forbid(unsafe_code)]

pub mod collector;
pub mod env;
pub mod error;
pub mod policy;
pub mod rollout;
pub mod vector;

pub use error::Error;

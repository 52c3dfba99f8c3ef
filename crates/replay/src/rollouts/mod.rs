//! Rollouts: groups of token sequences that producers make with some version of a policy, and batches of them
//! that a learner uses up while they are fresh.
//!
//! - [`config`] and [`schema`]: the settings of a table. [`filter`]: which groups are kept.
//! - [`item`]: segments of tokens, items, groups.
//! - [`ledger`]: all decisions, without clocks and threads.
//! - [`batch`]: a share of a batch as memory that a consumer looks at.
//! - [`codec`]: all of these values as bytes.
//! - [`durable`]: tables that survive a crash, and their history; `fit`: settings that may change then.
//! - [`table`]: a ledger that threads share, and wait for; [`idle`]: why, and for how long; [`starvation`]: which producers;
//!   `tuner`: how far ahead producers may be.
//!
//! # Invariants
//!
//! 1. Payload is copied in before and out after the lock over the ledger is held.
//! 2. Groups are delivered whole.
//! 3. With a bound on the lag that drops or waits, no token that is delivered is older than it allows.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod batch;
pub mod codec;
pub mod config;
pub mod durable;
pub mod filter;
mod fit;
pub mod idle;
pub mod item;
pub mod ledger;
pub mod schema;
pub mod starvation;
pub mod table;
mod tuner;

pub use self::config::{ConfigError, Delivery, OnExpiry, OnStale, Order, RolloutConfig};
pub use self::schema::{Column, Late, Schema};
pub use self::table::RolloutTable;

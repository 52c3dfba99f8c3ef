//! Rollouts of language models, in groups of answers to one prompt.
//!
//! - [`filter`]: which finished groups are kept.

pub mod filter;

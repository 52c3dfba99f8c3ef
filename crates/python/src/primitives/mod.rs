//! Functions on arrays.
//!
//! - `input`: arguments as numbers without gaps. `output`: results, in memory that is used again.
//! - `kind`: arrays of PyTorch and JAX. `plain`: numbers of arrays as slices.
//! - `steps`: the arguments of functions on time. `gae`, `returns`, `corrections`: those functions. What all their
//!   documentation says is in `step_options.txt` and `step_errors.txt`.
//! - `sequences`: which numbers belong together. `kl`, `groups`, `weights`, `packing`: functions on them.
//! - `stats`: means and variances of what went by.

pub mod corrections;
pub mod gae;
pub mod groups;
pub mod input;
pub mod kind;
pub mod kl;
pub mod output;
pub mod packing;
pub mod plain;
pub mod returns;
mod sequences;
pub mod stats;
mod steps;
pub mod weights;

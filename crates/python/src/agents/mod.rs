//! Kernels of agents that plan.
//!
//! The functions of each file are those of the module of `echoic_primitives` that it is named after.

pub mod bandwidth;
pub mod draws;
pub mod plans;
pub mod prefixes;

//! The mathematics of reinforcement learning on slices.
//!
//! Every function works on memory that the caller owns, allocates nothing that grows with its input,
//! starts no thread, and knows neither buffers nor Python.

#![forbid(unsafe_code)]

//! Native environments, small policies, and rollouts that need no Python.

#![forbid(unsafe_code)]

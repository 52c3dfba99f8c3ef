//! Local replay buffers: what a person who trains on one machine needs, with no server in sight.

#![forbid(unsafe_code)]

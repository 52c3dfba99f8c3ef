//! What a server reports to the processes that watch it.
//!
//! - [`Numbers`]: all numbers of a stream, of tables and of listeners, each with its name and what it means.
//!   Whatever shows numbers takes them from here, so that one number has one name.
//! - [`ProgramGauges`]: numbers that the program around the server adds.
//! - [`Endpoint`]: the same over HTTP, in the text format that Prometheus reads.

mod endpoint;
mod gauges;
mod numbers;
mod request;
mod rollouts;
mod text;

pub use endpoint::{Endpoint, EndpointError};
pub use gauges::{GaugeError, MAX_GAUGE_NAME, MAX_GAUGES, ProgramGauges};
pub use numbers::Numbers;

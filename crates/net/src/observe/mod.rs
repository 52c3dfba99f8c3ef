//! What a server tells those who watch it.
//!
//! - [`Numbers`]: all numbers of a stream, of tables and of listeners, each with its name and what it means.
//!   Whatever shows numbers takes them from here, so that one number has one name.
//! - [`Told`]: numbers that the program around the server adds.
//! - [`Endpoint`]: the same over HTTP, in the text format that Prometheus reads.

mod endpoint;
mod numbers;
mod request;
mod rollouts;
mod text;
mod told;

pub use endpoint::{Endpoint, EndpointError};
pub use numbers::Numbers;
pub use told::{GaugeError, MAX_TOLD, MAX_TOLD_NAME, Told};

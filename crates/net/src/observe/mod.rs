//! What a server tells those who watch it.
//!
//! - [`Numbers`]: all numbers of a stream, of tables and of doors, each with its name and what it means.
//!   Whatever shows numbers takes them from here, so that one number has one name.
//! - [`Endpoint`]: the same over HTTP, in the text format that Prometheus reads.

mod endpoint;
mod numbers;
mod request;
mod rollouts;
mod text;

pub use endpoint::{Endpoint, EndpointError};
pub use numbers::Numbers;

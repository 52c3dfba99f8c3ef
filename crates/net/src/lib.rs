//! How other processes reach Echoic.
//!
//! - [`wire`]: the bytes, as values. It opens no socket.
//! - [`address`]: where a server is.
//! - [`auth`]: proving that one has the token without sending it.
//! - [`transport`]: ways for bytes to come and go: TCP, TLS, Unix sockets, and yours.
//! - [`server`]: from connections to samples in a stream.
//! - [`client`]: from samples to a connection, each exactly once.
//! - [`observe`]: the numbers of a server, by name and over HTTP.
//!
//! This crate knows nothing of Python, and has no `unsafe` code.
#![forbid(unsafe_code)]

pub mod address;
pub mod auth;
mod buffer_pool;
pub mod client;
pub mod observe;
pub mod server;
pub mod transport;
pub mod wire;
mod write_buffer;

pub use address::{Address, AddressError};
pub use auth::Token;

//! Connections that are about tables.
//!
//! - `request_session`: a connection for requests.
//! - `insert_session`: a connection for inserts.

mod insert_session;
mod request_session;

pub(crate) use self::insert_session::{Hold, InsertSession};
pub(crate) use self::request_session::{RequestSession, check_area, fail, failed};

//! Weights of a server elsewhere: being told of them, and publishing them.
//!
//! - `subscriber`: keeps a store that follows the server's. `subscription`: what it says on one connection.
//! - `publisher`: a learner's end, without a thread.

mod publisher;
mod subscriber;
mod subscription;

pub use self::publisher::{PublishError, WeightPublisher};
pub use self::subscriber::WeightSubscriber;

//! Weights of a server elsewhere: being told of them, and publishing them.
//!
//! - `subscriber`: keeps a store that follows the server's. `feed`: what it says on one connection.
//! - `publisher`: a learner's end, without a thread.

mod feed;
mod publisher;
mod subscriber;

pub use self::publisher::{PublishError, WeightPublisher};
pub use self::subscriber::WeightSubscriber;

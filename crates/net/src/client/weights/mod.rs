//! Weights of a remote server: receiving and publishing them.
//!
//! - `subscriber`: keeps a store that follows the server's. `follower`: what it says and hears.
//! - `subscription`: what a worker sees of a store, here or elsewhere.
//! - `remote`: all of it, for one process.
//! - `publisher`: a learner's end, without a thread. `shared_publisher`: the same, for many threads.

mod follower;
mod publisher;
mod remote;
mod shared_publisher;
mod subscriber;
mod subscription;

pub use self::publisher::{PublishError, WeightPublisher};
pub use self::remote::RemoteWeights;
pub use self::shared_publisher::SharedPublisher;
pub use self::subscriber::WeightSubscriber;
pub use self::subscription::{Subscription, SubscriptionError, WeightSource};

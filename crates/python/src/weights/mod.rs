//! What a learner publishes, for the workers.
//!
//! - `store`: of this process. `client`: of a server elsewhere.
//! - `subscription`: who is told. `publication`: what they get.
//! - `form`: from a tree to the bytes of a publication builder, and what is known of trees.

mod client;
mod form;
mod publication;
mod store;
mod subscription;

pub use self::client::RemoteWeightStore;
pub use self::publication::Publication;
pub use self::store::WeightStore;
pub use self::subscription::Subscription;

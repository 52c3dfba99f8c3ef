//! The parameters of a policy on their way from the learner to the workers: the latest counts.
//!
//! A learner makes a [`PublicationBuilder`] in a [`WeightStore`], writes its leaves there and publishes it. Whoever waits
//! gets the [`Publication`], which never changes and exists for as long as it is referenced. A publication
//! may also be a version alone, for programs that send the bytes themselves.
//!
//! - `store`: publishing, waiting, how many publications there may be, and which are on their way.
//! - `plan`: where each leaf lies. `publication`: what was published. `sums`: how chunks are distinguished.
//!   `delta`: what changed in them.
//! - `builder`: what is about to be published. `ahead`: memory for what will be published next.
//!
//! # Invariants
//!
//! 1. The bytes of a publication do not change while anyone has it.
//! 2. At most this many publications and builders of them have bytes at a time as was said when the store was made.
//! 3. Versions rise. In a store that follows another they are that one's concern.

mod ahead;
mod builder;
mod delta;
mod plan;
mod publication;
mod store;
mod sums;

pub use self::builder::{Claim, PublicationBuilder};
pub use self::delta::{Bases, ChunkForm, DeltaWriter};
pub use self::plan::{ALIGNMENT, MAX_BYTES, MAX_LEAVES, Plan, PlanError};
pub use self::publication::{Content, Publication};
pub use self::store::{Seat, Transfer, WeightStore, WeightsConfig, WeightsError, WeightsInfo};
pub use self::sums::{CHUNK_BYTES, MAX_CHUNK_BYTES, sum};

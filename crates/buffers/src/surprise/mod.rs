//! Experiences of two tiers, drawn by how much they surprise: what is young is *hot*, what is older *cold*.
//!
//! - [`scale`]: from a score to a weight: what a temperature means, and why draws do not collapse.
//! - [`lowest`]: which experience is removed first. `tier`: one side: its sums, its order by age, and
//!   its lowest. `index`: all that is known of experiences besides their bytes.
//! - [`rows`]: the bytes, in memory that grows. `archive`: those of cold experiences, in a file.
//! - [`replay`]: all of it together: [`SurpriseReplay`].
//!
//! # Invariants
//!
//! 1. An experience is hot if and only if its age, in updates of the learner, is at most the threshold, once
//!    [`SurpriseReplay::tick`] has returned.
//! 2. Experiences of a tier lie in its list in the order in which they were added, so whoever is due is at
//!    its front: ageing costs a constant for each experience in its life, and nothing for those that stay.
//! 3. Only numbers are changed or looked up under the lock of the index; no row is copied, and nobody waits
//!    for a disk with it.
//!
//! # Limitations
//!
//! The next state of an experience is stored with it, though it often is the state of the one after it. An experience
//! goes by its score and its age in updates, not with its neighbours, so a state that two of them share would need a row, a count
//! and a place of its own, in memory and in the file. That saves less than it seems: of rows with 8 numbers in a
//! state 24 of 272 bytes, with a plan of 512 and a state of 64 numbers 248 of 2,710; and only while the neighbour
//! is there, which of a buffer that has kept a half is every second one. Of frames it would be nearly a half;
//! those are for [`frames`](crate::frames), where the oldest go.

mod archive;
mod index;
pub mod lowest;
pub mod replay;
pub mod rows;
pub mod scale;
mod tier;

pub use index::{Counts, Sizes};
pub use replay::{Ask, Copying, Drawn, Found, Saved, SurpriseReplay, SurpriseSettings, Ticked};
pub use scale::{Mode, ScoreRule};

//! What goes between a client and the rollout tables of a server.
//!
//! It is said over connections for [requests](crate::wire::tables). Rollout tables have a list of their own, which is
//! asked for; a table is called by its place in that list. All values are written as
//! [`codec`](echoic_replay::rollouts::codec) lists them; changes and outcomes as a head that is read, and a bulk that is only copied, and
//! may lie in the client's arena.
//!
//! - `changes`: changes, and wishes for batches, on their way to the server.
//! - `list`: which tables there are. `outcome`: what came of changes. `delivery`: a share of a batch.

mod changes;
mod delivery;
mod list;
mod outcome;

pub use changes::{Bulk, Changes, INLINE_BYTES, MAX_CHANGES, Wish, write_changes};
pub use delivery::DeliveryHead;
pub use list::{check_list, read_list, write_list};
pub use outcome::{Outcomes, read_outcomes, write_outcomes};

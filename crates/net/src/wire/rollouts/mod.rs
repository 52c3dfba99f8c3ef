//! What goes between a client and the rollout tables of a server.
//!
//! It is said over connections for [requests](crate::wire::tables). Rollout tables have a list of their own, which is
//! asked for; a table is called by its place in that list. Changes are written as
//! [`codec`](echoic_replay::rollouts::codec) writes them: a head that is read, and a bulk that is only copied, and
//! may lie in the client's arena.
//!
//! - `changes`: changes, and wishes for batches, on their way to the server.
//! - `list`: which tables there are. `outcome`: what came of changes. `info`: a table's numbers. `delivery`: a share of a batch.

mod changes;
mod delivery;
mod info;
mod list;
mod outcome;

pub use changes::{
    Bulk, Changes, INLINE_BYTES, MAX_CHANGES, Wish, read_form, write_changes, write_form,
};
pub use delivery::DeliveryHead;
pub use info::{read_info, write_info};
pub use list::{check_list, read_list, write_list};
pub use outcome::{Outcomes, read_error, read_outcomes, write_error, write_outcomes};

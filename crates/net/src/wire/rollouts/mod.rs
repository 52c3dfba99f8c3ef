//! What goes between a client and the rollout tables of a server.
//!
//! It is said over connections for [requests](crate::wire::tables). Rollout tables have a list of their own, which is
//! asked for; a table is called by its place in that list. All values are written as
//! [`codec`](echoic_replay::rollouts::codec) lists them; changes and outcomes as a head that is read, and a bulk that is only copied, and
//! may lie in the client's arena.
//!
//! - `changes`: changes, and wishes for batches, on their way to the server; what came of changes.
//! - `delivery`: a share of a batch.

mod changes;
mod delivery;

use std::collections::HashSet;
use std::sync::Arc;

use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::RolloutConfig;

use crate::wire::WireError;
use crate::wire::tables::{MAX_REQUEST, MAX_TABLES};

pub use changes::{
    Bulk, Changes, INLINE_BYTES, MAX_CHANGES, Outcomes, Wish, read_outcomes, write_changes,
    write_outcomes,
};
pub use delivery::DeliveryHead;

/// Appends the list of tables: how many, then of each its settings.
pub fn write_list(out: &mut Vec<u8>, configs: &[Arc<RolloutConfig>]) {
    configs.encode(out);
}

/// Reads the list of tables.
pub fn read_list(reader: &mut Reader<'_>) -> Result<Vec<Arc<RolloutConfig>>, WireError> {
    Ok(reader.get("rollout tables")?)
}

/// What keeps tables from being introduced, although each is good.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit, [`WireError::Content`] a name that is there twice.
pub fn check_list(configs: &[Arc<RolloutConfig>]) -> Result<(), WireError> {
    WireError::check_most("number of rollout tables", MAX_TABLES, configs.len())?;
    let mut names = HashSet::new();
    if let Some(twice) = configs.iter().find(|config| !names.insert(&config.name)) {
        let text = format!("there are two rollout tables named {:?}", twice.name);
        return Err(WireError::Content(text));
    }
    let mut written = Vec::new();
    write_list(&mut written, configs);
    // The number of a request is before it.
    let most = u64::from(MAX_REQUEST).saturating_sub(8);
    WireError::check_most("length of the list of rollout tables", most, written.len())
}

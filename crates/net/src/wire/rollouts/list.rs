//! The settings of a server's rollout tables, as it introduces them.

use std::collections::HashSet;
use std::sync::Arc;

use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::RolloutConfig;

use crate::wire::WireError;
use crate::wire::tables::{MAX_REQUEST, MAX_TABLES};

/// Appends a list: how many, then of each its settings.
pub fn write_list(out: &mut Vec<u8>, configs: &[Arc<RolloutConfig>]) {
    configs.encode(out);
}

/// Reads a list.
pub fn read_list(reader: &mut Reader<'_>) -> Result<Vec<Arc<RolloutConfig>>, WireError> {
    Ok(reader.get("rollout tables")?)
}

/// What keeps tables from being introduced, although each is good.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit, [`WireError::Spec`] a name that is there twice.
pub fn check_list(configs: &[Arc<RolloutConfig>]) -> Result<(), WireError> {
    let at_most = |field, limit: u64, got: usize| match got as u64 {
        got if got > limit => Err(WireError::too_large(field, limit, got)),
        _ => Ok(()),
    };
    at_most("number of rollout tables", MAX_TABLES.into(), configs.len())?;
    let mut names = HashSet::new();
    if let Some(twice) = configs.iter().find(|config| !names.insert(&config.name)) {
        let text = format!("there are two rollout tables named {:?}", twice.name);
        return Err(WireError::Spec(text));
    }
    let mut written = Vec::new();
    write_list(&mut written, configs);
    // The number of a request is before it.
    let most = u64::from(MAX_REQUEST).saturating_sub(8);
    at_most("length of the list of rollout tables", most, written.len())
}

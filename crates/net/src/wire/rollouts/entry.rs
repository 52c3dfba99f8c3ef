//! The rollout tables of a server, as it introduces them.

use std::collections::HashSet;

use echoic_replay::rollouts::{RolloutConfig, RolloutTable};
use echoic_replay::table::MAX_METADATA;

use super::within;
use crate::wire::WireError;
use crate::wire::reader::Reader;
use crate::wire::tables::{MAX_REQUEST, MAX_TABLES};

/// What a client has to know of a rollout table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it was told at its birth.
    pub config: RolloutConfig,
    /// What the layers above keep with it; empty, if nothing.
    pub metadata: Vec<u8>,
}

impl From<&RolloutTable> for Entry {
    fn from(table: &RolloutTable) -> Self {
        let config = RolloutConfig::clone(table.config());
        Self { config, metadata: table.metadata().to_vec() }
    }
}

/// Appends a list: how many, then of each its settings, and the length and bytes of its metadata.
pub fn write_list(out: &mut Vec<u8>, entries: &[Entry]) {
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    out.extend_from_slice(&count(entries.len()));
    for Entry { config, metadata } in entries {
        config.put(out);
        out.extend_from_slice(&count(metadata.len()));
        out.extend_from_slice(metadata);
    }
}

/// Reads a list.
pub fn read_list(reader: &mut Reader<'_>) -> Result<Vec<Entry>, WireError> {
    let count = reader.u32_at_most("number of rollout tables", MAX_TABLES)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let config = within(reader, |take| Ok(RolloutConfig::take(take)?))?;
        let field = "length of a rollout table's metadata";
        let len = reader.u32_at_most(field, MAX_METADATA as u32)?;
        let metadata = reader.bytes("metadata of a rollout table", len as usize)?.to_vec();
        entries.push(Entry { config, metadata });
    }
    Ok(entries)
}

/// What keeps tables from being introduced, although each is good.
///
/// # Errors
///
/// [`WireError::TooLarge`] names the limit, [`WireError::Spec`] a name that is there twice.
pub fn check_list(entries: &[Entry]) -> Result<(), WireError> {
    let at_most = |field, limit: u64, got: usize| match got as u64 {
        got if got > limit => Err(WireError::TooLarge { field, limit, got }),
        _ => Ok(()),
    };
    at_most("number of rollout tables", MAX_TABLES.into(), entries.len())?;
    let mut names = HashSet::new();
    for Entry { config, metadata } in entries {
        let field = "length of a rollout table's metadata";
        at_most(field, MAX_METADATA as u64, metadata.len())?;
        if !names.insert(&config.name) {
            let text = format!("there are two rollout tables named {:?}", config.name);
            return Err(WireError::Spec(text));
        }
    }
    let mut written = Vec::new();
    write_list(&mut written, entries);
    // The number of a request is before it.
    let most = u64::from(MAX_REQUEST).saturating_sub(8);
    at_most("length of the list of rollout tables", most, written.len())
}

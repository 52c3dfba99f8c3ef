//! A rollout table in a checkpoint: its own, or one of a server.
//!
//! - `rollouts-N.head`: format: u32, 7; the settings; the time: u64; the first
//!   record of the table's journal that is not in here, 2^64 - 1 without one: u64; the number of the last batch, 0
//!   before the first: u64.
//! - `rollouts-N.numbers` and `rollouts-N.bulk`: see [`Moment`].

use std::io::{Read, Write};
use std::sync::Arc;

use super::super::config::RolloutConfig;
use super::super::ledger::{Ledger, Moment, StateError};
use crate::Error;
use crate::checkpoint::{self, Writer};
use crate::codec::{Encode, read_formatted, write_formatted};
use crate::fields;

const FORMAT: u32 = 7;

/// A table at a moment.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) config: Arc<RolloutConfig>,
    pub(crate) moment: Moment,
    /// When that was.
    pub(crate) time: u64,
    /// The first record that is not in it; no matter without a journal.
    pub(crate) next: u64,
}

/// A table of a checkpoint, read and checked.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) head: Head,
    pub(crate) ledger: Ledger,
}

/// All about a table but what is in it.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) config: Arc<RolloutConfig>,
    pub(crate) time: u64,
    pub(crate) next: u64,
    /// The number of the last batch that was made; 0 before the first.
    pub(crate) last_batch: u64,
}

fields! { Head { config: Arc<RolloutConfig>, time: u64, next: u64, last_batch: u64 } }

fn name(number: usize, part: &str) -> String {
    format!("rollouts-{number}.{part}")
}

/// Writes a table as the sections of a number.
pub(crate) fn write(writer: &mut Writer, number: usize, saved: &Saved) -> Result<(), Error> {
    let Saved { config, moment, time, next } = saved;
    let (config, last_batch) = (Arc::clone(config), moment.last_batch());
    let head = write_formatted(FORMAT, &Head { config, time: *time, next: *next, last_batch });
    let mut numbers = Vec::new();
    moment.encode(&mut numbers);
    writer.put_section(&name(number, "numbers"), |out| out.write_all(&numbers))?;
    writer.put_section(&name(number, "bulk"), |out| {
        moment.bulk().try_for_each(|piece| out.write_all(piece))
    })?;
    // It says that the others are there.
    writer.put_section(&name(number, "head"), |out| out.write_all(&head))
}

/// How many rollout tables a checkpoint has.
pub(crate) fn count(reader: &checkpoint::Reader) -> usize {
    let has = |number: &usize| reader.sections().any(|section| section == name(*number, "head"));
    (0..).take_while(has).count()
}

/// Reads the table of a number.
pub(crate) fn read(reader: &checkpoint::Reader, number: usize) -> Result<Loaded, Error> {
    let head = read_head(reader, number)?;
    let path = reader.path();
    let state = |source: StateError| Error::unfit(path, source);
    let mut numbers = Vec::new();
    let mut section = reader.section(&name(number, "numbers"))?;
    section.read_to_end(&mut numbers).map_err(|error| state(error.into()))?;
    let mut bulk = reader.section(&name(number, "bulk"))?;
    let ledger = Ledger::load(Arc::clone(&head.config), &numbers, &mut bulk).map_err(state)?;
    // The checksum of the whole section is looked at where it ends.
    if bulk.read(&mut [0]).map_err(|error| state(error.into()))? > 0 {
        return Err(Error::unfit(path, "there are tokens without an item"));
    }
    Ok(Loaded { head, ledger })
}

/// Reads the head of a number.
pub(crate) fn read_head(reader: &checkpoint::Reader, number: usize) -> Result<Head, Error> {
    let bytes = reader.head(&name(number, "head"))?;
    read_formatted(&bytes, FORMAT).map_err(|error| Error::unfit(reader.path(), error))
}

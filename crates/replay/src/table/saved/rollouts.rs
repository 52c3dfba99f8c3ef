//! The rollout tables of a server in its checkpoints: see [`sections`].
//!
//! One that has a directory is kept there, and no part of them; it writes a checkpoint of its own then.

use std::sync::Arc;

use crate::Error;
use crate::checkpoint::{Reader, Writer};
use crate::rollouts::RolloutTable;
use crate::rollouts::durable::sections::{self, Loaded, Saved};

/// Those without a directory, as they are now.
pub(super) fn moments(rollouts: &[Arc<RolloutTable>]) -> Vec<Saved> {
    let here = rollouts.iter().filter(|table| !table.has_directory());
    here.map(|table| table.save()).collect()
}

/// Writes what [`moments`] gave.
pub(super) fn write(moments: &[Saved], writer: &mut Writer) -> Result<(), Error> {
    for (number, saved) in moments.iter().enumerate() {
        sections::write(writer, number, saved)?;
    }
    Ok(())
}

/// Has those with a directory write checkpoints of their own.
pub(super) fn write_own(rollouts: &[Arc<RolloutTable>]) -> Result<(), Error> {
    let mut own = rollouts.iter().filter(|table| table.has_directory() && !table.is_closed());
    own.try_for_each(|table| table.checkpoint().map(drop))
}

/// The rollout tables of a checkpoint, each with the server's table that is to go on from it.
pub(in crate::table) fn read<'a>(
    reader: &Reader,
    rollouts: &'a [Arc<RolloutTable>],
) -> Result<Vec<(&'a RolloutTable, Loaded)>, Error> {
    let mut all = Vec::new();
    for number in 0..sections::count(reader) {
        // The settings are compared before there is memory for the rest.
        let head = sections::read_head(reader, number)?;
        let wrong = |what: String| Error::of_table(&head.config.name, what);
        let known = rollouts.iter().find(|table| table.config().name == head.config.name);
        let table = known.ok_or_else(|| wrong("there is no rollout table of this name".into()))?;
        if table.has_directory() {
            return Err(wrong("it has a directory, so it goes on from there alone".into()));
        }
        table.config().goes_on(&head.config).map_err(|what| {
            wrong(format!("the checkpoint's was made with other settings: {what}"))
        })?;
        all.push((&**table, sections::read(reader, number)?));
    }
    Ok(all)
}

//! A directory, and the table that goes on from what is in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::config::RolloutConfig;
use super::super::table::RolloutTable;
use super::DurableOptions;
use super::entry;
use super::log::{ChangeLog, checkpoints_dir, journal_dir};
use super::replayed::{Opening, Replayed};
use super::sections::{self, Loaded};
use crate::Error;
use crate::checkpoint::{self, Reader};
use crate::files::{Dir, Marker, OwnedDir};
use crate::journal::{Journal, Options};

pub(super) const MARKER: Marker = Marker {
    file: "echoic-rollouts.lock",
    text: "This directory has a rollout table of Echoic. Whoever has it open holds a lock on this file.\n",
    expected: "echoic-rollouts.lock",
    holder: "another process has this table open",
};

/// The checkpoints of a table, the oldest first.
pub(super) fn checkpoints(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let root = checkpoints_dir(dir);
    // Before the first one there is no such directory, or it is not marked as ours yet.
    let is_new = match Dir::open(&root) {
        Err(error) if error.is_missing() => true,
        opened => opened?.names()?.is_empty(),
    };
    if is_new {
        return Ok(Vec::new());
    }
    Ok(checkpoint::list(&root)?.into_iter().map(|found| found.path).collect())
}

/// Goes on from a checkpoint; the first record that is not in it.
pub(super) fn restore(replayed: &mut Replayed, path: &Path) -> Result<u64, Error> {
    let reader = Reader::open(path)?;
    let Loaded { head, ledger } = sections::read(&reader, 0)?;
    replayed.ledger = Some(ledger);
    replayed.time = head.time;
    Ok(head.next)
}

/// What the machine's clock says, in milliseconds since 1970.
pub(in crate::rollouts) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// As [`unix_ms`], in a millisecond that begins after the call. The holder of the lock of a directory gets no
/// millisecond that an earlier holder got: two openings take less than one when nothing has to reach a disk, and
/// would begin one [generation](super::super::ledger) twice.
fn fresh_unix_ms() -> u64 {
    let called = unix_ms();
    // A clock that is put back meanwhile is not waited for.
    for _ in 0..20 {
        thread::sleep(Duration::from_micros(100));
        if unix_ms() != called {
            break;
        }
    }
    unix_ms()
}

impl RolloutTable {
    /// The table of a directory, which is made if it is not there. A table that was there goes on as it was when
    /// it was closed, or when its process was killed; of its settings, some may be [others](RolloutConfig::goes_on).
    pub fn open(
        config: RolloutConfig,
        dir: impl AsRef<Path>,
        durable: DurableOptions,
    ) -> Result<Self, Error> {
        Self::open_with(config, dir.as_ref(), durable, Options::default())
    }

    /// As [`RolloutTable::open`], with more settings of the journal.
    pub(super) fn open_with(
        config: RolloutConfig,
        dir: &Path,
        durable: DurableOptions,
        options: Options,
    ) -> Result<Self, Error> {
        config.check().map_err(|error| Error::Settings(error.to_string()))?;
        let (config, path) = (Arc::new(config), dir.to_owned());
        let OwnedDir { dir, lock, is_new } = MARKER.own(&path, true)?;
        // Even if no record of it is left: there was a table that may have given numbers. Another process may have
        // made it since the names were read, and left it before we had the lock.
        let again = !is_new || dir.names()?.iter().any(|name| name != MARKER.file);
        dir.sync()?;
        let mut replayed = Replayed::new(path.clone());
        let mut from = 0;
        if let Some(newest) = checkpoints(&path)?.last() {
            from = restore(&mut replayed, newest)?;
            match Dir::open(&journal_dir(&path)) {
                Err(error) if error.is_missing() => {
                    let what = "there are checkpoints, and no journal that goes on from them";
                    return Err(Error::unfit(&path, what));
                }
                opened => drop(opened?),
            }
        }
        let options = Options { durability: durable.durability, from, ..options };
        let (journal, mut replay) = Journal::open(journal_dir(&path), options)?;
        while let Some((sequence, record)) = replay.next_record()? {
            replayed.apply(sequence, record)?;
        }
        let dropped = replay.torn().cloned();
        let (time, unix_ms) = (replayed.time, if again { fresh_unix_ms() } else { unix_ms() });
        let opening = Opening { config: Arc::clone(&config), time, unix_ms, again };
        let other = |what| {
            Error::Settings(format!("{} has a table with other settings: {what}", path.display()))
        };
        let ledger = opening.of(replayed.ledger).map_err(other)?;
        let most = (journal.max_record() as u64).saturating_sub(entry::MOST_OF_END);
        let (blobs, fields) =
            (u64::from(config.max_blob_bytes), config.schema.field_bytes() as u64);
        // The tokens may come in parts.
        if blobs > 0 && blobs + fields > most {
            return Err(Error::Unfit(format!(
                "max_blob_bytes {blobs} and {fields} bytes of fields make a record of more than {most} bytes, which is \
                 the most that the journal takes: an item's blobs come at once, so max_blob_bytes can be at most {}",
                most.saturating_sub(fields)
            )));
        }
        let record = entry::opened(&config, unix_ms, again, time);
        if !journal.push(record, None) {
            journal.check()?;
        }
        journal.nudge();
        let mut table = Self::of(ledger, time);
        table.keep_with(|producers| {
            ChangeLog::new(journal, checkpoints_dir(&path), durable, dropped, lock, producers)
        });
        Ok(table)
    }
}

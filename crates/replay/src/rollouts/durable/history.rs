//! What was done with a rollout table, once more.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::config::RolloutConfig;
use super::super::ledger::{Ledger, Share};
use super::entry::Entry;
use super::log::journal_dir;
use super::opening::{MARKER, checkpoints, restore};
use super::replayed::{Replayed, nonsense};
use super::sections::{self, Head};
use crate::Error;
use crate::checkpoint::Reader;
use crate::files::{Lock, OwnedDir};
use crate::journal::{Replay, Torn};

/// A moment in the past of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before the record of this number.
    Record(u64),
    /// When the batch of this number was just made and its first share delivered.
    Batch(u64),
    /// By this time of the table, in milliseconds: all that happened then is done.
    Time(u64),
}

/// A share as it was delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivered {
    /// Its record.
    pub record: u64,
    /// When that was, by the table's time.
    pub time: u64,
    /// What was delivered.
    pub share: Share,
}

/// The history of a table whose directory no process has open. Files are only read: what a crash has left at the end of
/// the journal is passed over, and stays.
///
/// It begins with the first change, if the whole journal was [kept](super::DurableOptions::history), else with the oldest
/// checkpoint. Each share that is delivered is compared with what the journal says of it.
///
/// ```
/// use echoic_replay::rollouts::durable::{History, DurableOptions};
/// use echoic_replay::rollouts::RolloutTable;
/// # use echoic_replay::rollouts::ledger::{Reserve, Change};
/// # use echoic_replay::rollouts::{Column, RolloutConfig, Schema};
/// # use echoic_replay::Dtype;
/// # let ids = Column { name: "ids".into(), dtype: Dtype::Int(4), shape: vec![] };
/// # let schema = Schema { columns: vec![ids], ..Schema::default() };
/// # let config = RolloutConfig::new("t", schema, 1, 1);
/// # let dir = std::env::temp_dir().join(format!("echoic-doc-history-{}", std::process::id()));
/// let table = RolloutTable::open(config, &dir, DurableOptions { history: true, ..DurableOptions::default() })?;
/// table.apply(&Change::Reserve(Reserve { count: 3, ..Reserve::default() }))?;
/// table.close();
///
/// let mut history = History::open(&dir, None)?;
/// assert_eq!(history.next_share(u64::MAX)?, Some(None), "nothing was delivered");
/// assert_eq!(history.ledger().map(|ledger| ledger.counts().running), Some(3));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    replay: Replay,
    replayed: Replayed,
    /// The record that comes next, when its time had to be known before.
    ahead: Option<(u64, Vec<u8>)>,
    /// The number of the next record.
    next: u64,
    _lock: Lock,
}

impl History {
    /// Opens the past of a directory, at its beginning, or at the last checkpoint before a point.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] while the table is open.
    pub fn open(dir: impl AsRef<Path>, before: Option<Point>) -> Result<Self, Error> {
        let is_early = |base: &Head| match before {
            None => false,
            Some(Point::Record(record)) => base.next <= record,
            Some(Point::Batch(batch)) => base.last_batch < batch,
            Some(Point::Time(time)) => base.time <= time,
        };
        let (path, OwnedDir { lock, .. }) = (dir.as_ref().to_owned(), MARKER.share(dir.as_ref())?);
        let whole = Replay::open(journal_dir(&path), None)?;
        let (first, mut from, mut base) = (whole.first(), 0, None);
        for checkpoint in checkpoints(&path)? {
            let head = sections::read_head(&Reader::open(&checkpoint)?, 0)?;
            // The oldest one, if the journal has nothing that is older; the last one that is early enough.
            let is_needed = first > 0 && base.is_none();
            if head.next >= first && (is_needed || is_early(&head)) {
                (from, base) = (head.next, Some(checkpoint));
            }
        }
        let mut replayed = Replayed::new(path.clone());
        if let Some(base) = base {
            restore(&mut replayed, &base)?;
        }
        let replay = match from == first {
            true => whole,
            false => Replay::open(journal_dir(&path), Some(from))?,
        };
        Ok(Self { path, replay, replayed, ahead: None, next: from, _lock: lock })
    }

    /// That it is at a point.
    pub fn check(&self, point: Point) -> Result<(), Error> {
        let is_there = match point {
            Point::Record(record) => self.next == record,
            Point::Batch(batch) => self.last_batch() == batch,
            Point::Time(time) => self.time() <= time,
        };
        match is_there {
            true => Ok(()),
            false => Err(Error::Unfit(format!(
                "the history in {} does not have {point:?}, or not any more",
                self.path.display()
            ))),
        }
    }

    /// Applies the next record; `false` behind the last one. What was delivered, if something was.
    fn step(&mut self) -> Result<Option<Option<Delivered>>, Error> {
        let done = match self.ahead.take() {
            Some((record, bytes)) => Some((record, self.replayed.apply(record, &bytes)?)),
            None => match self.replay.next_record()? {
                Some((record, bytes)) => Some((record, self.replayed.apply(record, bytes)?)),
                None => None,
            },
        };
        let Some((record, share)) = done else { return Ok(None) };
        self.next = record.saturating_add(1);
        let time = self.replayed.time;
        Ok(Some(share.map(|share| Delivered { record, time, share })))
    }

    /// The number and the time of the next record; none behind the last one.
    fn peek(&mut self) -> Result<Option<(u64, u64)>, Error> {
        if self.ahead.is_none() {
            let next = self.replay.next_record()?;
            self.ahead = next.map(|(record, bytes)| (record, bytes.to_vec()));
        }
        let Some((record, bytes)) = &self.ahead else { return Ok(None) };
        let time = Entry::time(bytes);
        let time = time.map_err(|error| nonsense(&self.path, *record, error))?;
        Ok(Some((*record, time)))
    }

    /// Goes on to the next share that was delivered, through at most this many records: a caller that checks for
    /// signals now and then continues after a few. `None` when nothing was delivered among them and there are more;
    /// `Some(None)` at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] when another share came of it than then.
    pub fn next_share(&mut self, records: u64) -> Result<Option<Option<Delivered>>, Error> {
        for _ in 0..records {
            match self.step()? {
                Some(None) => {}
                found => return Ok(Some(found.flatten())),
            }
        }
        Ok(None)
    }

    /// Goes on to a point, or to the end if that comes before, through at most this many records; whether it is there,
    /// `None` when there are more before the point. What lies before the place where it is can't be gone to: open it
    /// again.
    pub fn at(&mut self, point: Point, records: u64) -> Result<Option<bool>, Error> {
        for _ in 0..records {
            let is_there = match point {
                Point::Record(record) => self.next >= record,
                Point::Batch(batch) => self.last_batch() >= batch,
                Point::Time(time) => self.peek()?.is_some_and(|(_, next)| next > time),
            };
            if is_there {
                return Ok(Some(true));
            }
            if self.step()?.is_none() {
                return Ok(Some(false));
            }
        }
        Ok(None)
    }

    /// The ledger as it was; `None` before the first record.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.replayed.ledger.as_ref()
    }

    fn last_batch(&self) -> u64 {
        self.ledger().map_or(0, Ledger::last_batch)
    }

    /// The settings that the table had.
    pub fn config(&self) -> Option<&Arc<RolloutConfig>> {
        self.ledger().map(Ledger::config)
    }

    /// The number of the next record.
    pub fn record(&self) -> u64 {
        self.next
    }

    /// The number behind the last record.
    pub fn end(&self) -> u64 {
        self.replay.end()
    }

    /// The table's time, in milliseconds.
    pub fn time(&self) -> u64 {
        self.replayed.time
    }

    /// What a crash has left at the end of the journal.
    pub fn torn(&self) -> Option<&Torn> {
        self.replay.torn()
    }
}

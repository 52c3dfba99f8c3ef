//! From the entries of a journal to their ledger.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::config::RolloutConfig;
use super::super::ledger::{Ledger, Outcome, Share};
use super::entry::{Came, Entry};
use crate::Error;

/// A record that is whole, so it was written like this.
pub(super) fn nonsense(path: &Path, sequence: u64, what: impl Display) -> Error {
    let path = path.display();
    Error::Unfit(format!("the journal in {path}: record {sequence} is invalid: {what}"))
}

/// A table on its way back; see the [module](self).
#[derive(Debug)]
pub(super) struct Replayed {
    /// For messages.
    pub(super) path: PathBuf,
    /// `None` before the first record.
    pub(super) ledger: Option<Ledger>,
    /// When the last thing happened.
    pub(super) time: u64,
}

impl Replayed {
    /// Goes on from a table as it was in a checkpoint, if there is one.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, ledger: None, time: 0 }
    }

    /// Applies a record; what was delivered by that, if something was.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`]: then nothing that this has made may be used.
    pub(super) fn apply(&mut self, sequence: u64, record: &[u8]) -> Result<Option<Share>, Error> {
        let path = &self.path;
        let nonsense = |what: String| nonsense(path, sequence, what);
        let time = Entry::time(record).map_err(|error| nonsense(error.to_string()))?;
        if time < self.time {
            return Err(nonsense(format!("it is of time {time}, after {}", self.time)));
        }
        let entry = Entry::read(record).map_err(|error| nonsense(error.to_string()))?;
        self.time = time;
        match (entry, &mut self.ledger) {
            (Entry::Opened { config, unix_ms, again }, before) => {
                let config = Arc::new(*config);
                let opening = Opening { config, time, unix_ms, again };
                self.ledger = Some(opening.of(before.take()).map_err(nonsense)?);
                Ok(None)
            }
            (Entry::Change(..), None) => Err(nonsense("it comes before the settings".into())),
            (Entry::Change(change, told), Some(ledger)) => {
                let applied = ledger.apply(time, &change);
                drop(ledger.take_dead());
                let came = Came::of(&applied);
                if came != told {
                    let (path, came) = (path.display(), describe(came));
                    let why = applied.err().map_or_else(String::new, |error| format!(": {error}"));
                    let what = format!("{} was told, {came} came{why}", describe(told));
                    // Another release wrote it, and did something else then.
                    return Err(Error::Unfit(format!(
                        "the journal in {path}: at record {sequence} something else comes of it: {what}"
                    )));
                }
                match applied {
                    Ok(Outcome::Delivered(share)) => Ok(Some(share)),
                    _ => Ok(None),
                }
            }
        }
    }
}

/// What decides how a ledger goes on when its directory is opened.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) config: Arc<RolloutConfig>,
    /// The table's.
    pub(super) time: u64,
    /// The machine's.
    pub(super) unix_ms: u64,
    /// Whether others may have been given numbers that the ledger knows nothing of.
    pub(super) again: bool,
}

impl Opening {
    /// Goes on with a ledger, with settings that are the same but for those that may change; or with a new one.
    pub(super) fn of(self, before: Option<Ledger>) -> Result<Ledger, String> {
        let Self { config, time, unix_ms, again } = self;
        let mut ledger = match before {
            Some(mut ledger) => {
                config.goes_on(ledger.config())?;
                ledger.reconfigure(config).map_err(|error| error.to_string())?;
                ledger.wake(time, time);
                ledger
            }
            None => Ledger::new(config).map_err(|error| error.to_string())?,
        };
        if again {
            ledger.begin_generation(unix_ms, None);
        }
        Ok(ledger)
    }
}

fn describe(came: Came) -> String {
    match came {
        Came::Done => "something else than a share".into(),
        Came::Refused => "a refusal".into(),
        Came::Share { lease, digest } => format!(
            "batch {}, rank {}, attempt {} with digest {digest:08x}",
            lease.batch, lease.rank, lease.attempt
        ),
    }
}

//! Writes the checkpoints of a server, one at a time for all callers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use echoic_memory::sync::Mutex;
use tracing::{error, info};

use super::{Contents, Loaded, load, save};
use crate::Error;
use crate::checkpoint::retain;
use crate::rollouts::RolloutTable;
use crate::stream::Stream;
use crate::table::Tables;

/// Told where the checkpoint is, or why there is none.
type OnSaved = Box<dyn FnOnce(&Result<PathBuf, Error>) + Send>;

/// Checkpoints of a server's tables, rollout tables and stream in one directory.
pub struct Checkpointer {
    tables: Arc<Tables>,
    stream: Option<Arc<Stream>>,
    rollouts: Arc<Vec<Arc<RolloutTable>>>,
    root: PathBuf,
    keep: usize,
    release: &'static str,
    /// Held while files are written.
    writing: Mutex<()>,
    requests: Mutex<CheckpointRequests>,
    past: Mutex<Past>,
}

/// What a checkpointer did so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Past {
    /// Checkpoints that were written.
    pub written: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Bytes of all files that were written for checkpoints.
    pub bytes: u64,
    /// How long writing them took, together.
    pub time: Duration,
    /// How long the last one took.
    pub last_time: Duration,
    /// When it was there.
    pub last: Option<Instant>,
}

/// Requests for a checkpoint that has not begun, and whether a thread serves them.
#[derive(Default)]
struct CheckpointRequests {
    asked: Vec<OnSaved>,
    running: bool,
}

impl Checkpointer {
    /// A checkpointer for the `keep` newest checkpoints of a root, signed with a release of the program.
    pub fn new(
        tables: Arc<Tables>,
        stream: Option<Arc<Stream>>,
        root: PathBuf,
        keep: usize,
        release: &'static str,
    ) -> Self {
        let (writing, requests, past) = (Mutex::default(), Mutex::default(), Mutex::default());
        let rollouts = Arc::default();
        Self { tables, stream, rollouts, root, keep, release, writing, requests, past }
    }

    /// One that has rollout tables in its checkpoints, too.
    #[must_use]
    pub fn with_rollouts(mut self, rollouts: Arc<Vec<Arc<RolloutTable>>>) -> Self {
        self.rollouts = rollouts;
        self
    }

    /// What it did so far.
    pub fn past(&self) -> Past {
        *self.past.lock()
    }

    fn contents(&self) -> Contents<'_> {
        let (stream, rollouts) = (self.stream.as_deref(), &self.rollouts[..]);
        Contents { tables: &self.tables, stream, rollouts }
    }

    /// Writes a checkpoint, after the one that is being written if there is one, and removes those that
    /// are older than the ones to be kept; where it is.
    ///
    /// # Errors
    ///
    /// An error of the removal comes when the checkpoint is there.
    pub fn save(&self) -> Result<PathBuf, Error> {
        let _writing = self.writing.lock();
        let since = Instant::now();
        let saved = save(self.contents(), &self.root, &[("release", self.release)]);
        let mut past = self.past.lock();
        match &saved {
            Ok(summary) => {
                let now = Instant::now();
                past.written += 1;
                past.bytes += summary.written_bytes;
                let took = now.duration_since(since);
                past.last_time = took;
                past.time += took;
                past.last = Some(now);
                let (path, bytes) = (summary.path.display(), summary.written_bytes);
                info!(%path, bytes, seconds = took.as_secs_f64(), "wrote a checkpoint");
            }
            Err(error) => {
                past.failed += 1;
                error!(%error, "wrote no checkpoint");
            }
        }
        drop(past);
        let summary = saved?;
        retain(&self.root, self.keep)?;
        Ok(summary.path)
    }

    /// Loads a checkpoint: the newest of a root, or the one of this path.
    pub fn load(&self, path: &Path) -> Result<Loaded, Error> {
        load(self.contents(), path)
    }

    /// Has a checkpoint written by another thread, which calls `on_saved` then. All that ask before it begins
    /// share it.
    pub fn ask(self: &Arc<Self>, on_saved: impl FnOnce(&Result<PathBuf, Error>) + Send + 'static) {
        let mut requests = self.requests.lock();
        requests.asked.push(Box::new(on_saved));
        if requests.running {
            return;
        }
        requests.running = true;
        drop(requests);
        let own = Arc::clone(self);
        let thread = thread::Builder::new().name("echoic-checkpoint".into());
        if let Err(error) = thread.spawn(move || while own.run() {}) {
            let mut requests = self.requests.lock();
            requests.running = false;
            let asked = std::mem::take(&mut requests.asked);
            drop(requests);
            let failed = Err(Error::Thread { what: "that writes checkpoints", source: error });
            asked.into_iter().for_each(|on_saved| on_saved(&failed));
        }
    }

    /// Writes one checkpoint for all requests; `false` when there are none.
    fn run(&self) -> bool {
        let mut requests = self.requests.lock();
        let asked = std::mem::take(&mut requests.asked);
        requests.running = !asked.is_empty();
        drop(requests);
        if asked.is_empty() {
            return false;
        }
        let saved = self.save();
        asked.into_iter().for_each(|on_saved| on_saved(&saved));
        true
    }
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer").field("root", &self.root).finish_non_exhaustive()
    }
}

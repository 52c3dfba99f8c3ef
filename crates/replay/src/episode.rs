//! Names of episodes, which chunks carry so that tables can count them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::trajectory::Trajectory;

/// Names an episode: a random number of its own, so that the writers of many processes need not agree.
///
/// Two of a million episodes have the same with a probability of 3 · 10⁻⁸; then a table counts one too few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Episode(NonZeroU64);

impl Episode {
    /// One that no other episode has.
    pub fn fresh() -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A process that was forked has the keys and the counter of its parent.
        let number = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(NonZeroU64::new(KEYS.hash_one(number)).unwrap_or(NonZeroU64::MIN))
    }

    /// The one of a number; none, if that is 0.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Its number, which is not 0.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// Counts, for each episode, the items that have steps of it.
#[derive(Debug, Default)]
pub(crate) struct EpisodeCounts {
    items: HashMap<Episode, u32>,
    /// How many had items once, and have none now.
    pub(crate) deleted: u64,
}

impl EpisodeCounts {
    /// How many have items.
    pub(crate) fn len(&self) -> u64 {
        self.items.len() as u64
    }

    /// An item comes.
    pub(crate) fn enter(&mut self, item: &Trajectory) {
        for episode in item.episodes() {
            *self.items.entry(*episode).or_default() += 1;
        }
    }

    /// An item that had come goes.
    pub(crate) fn leave(&mut self, item: &Trajectory) {
        for episode in item.episodes() {
            if let Some(items) = self.items.get_mut(episode) {
                *items -= 1;
                if *items == 0 {
                    self.items.remove(episode);
                    self.deleted = self.deleted.saturating_add(1);
                }
            }
        }
    }
}

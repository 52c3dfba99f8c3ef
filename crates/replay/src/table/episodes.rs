//! How many episodes the items of a table are from.

use std::collections::HashMap;

use crate::episode::Episode;
use crate::trajectory::Trajectory;

/// Counts, for each episode, the items that have steps of it.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    items: HashMap<Episode, u32>,
    /// How many had items once, and have none now.
    pub(super) deleted: u64,
}

impl Episodes {
    /// How many have items.
    pub(super) fn len(&self) -> u64 {
        self.items.len() as u64
    }

    /// An item comes.
    pub(super) fn enter(&mut self, item: &Trajectory) {
        for episode in item.episodes() {
            *self.items.entry(*episode).or_default() += 1;
        }
    }

    /// An item that had come goes.
    pub(super) fn leave(&mut self, item: &Trajectory) {
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

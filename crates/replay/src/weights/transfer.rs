//! What is on its way to somebody who does not share our memory.
//!
//! A transfer keeps its publication, so that it can end although there are newer ones by then. Where a
//! publisher waits for a place, all transfers are cut but those of the latest publication and of the oldest:
//! so the slowest neither stops the learner nor is kept from ever having anything, since whoever is cut begins
//! again with the latest, which is the oldest one day.

use std::sync::Arc;

use super::publication::Publication;
use super::store::Shelf;

/// Bytes of a publication on their way to somebody, in chunks.
pub struct Transfer {
    pub(super) shelf: Arc<Shelf>,
    pub(super) publication: Arc<Publication>,
}

impl Transfer {
    /// What is sent.
    pub fn publication(&self) -> &Arc<Publication> {
        &self.publication
    }

    /// Whether it is to be dropped, because its place is wanted.
    pub fn is_cut(&self) -> bool {
        self.shelf.is_cut(self.publication.serial())
    }

    /// Counts bytes that were sent, and those that need not be.
    pub fn count(&self, sent: usize, saved: usize) {
        self.shelf.count(sent, saved);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.shelf.end_transfer(self.publication.serial());
    }
}

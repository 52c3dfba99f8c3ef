//! What was published: a version, and the bytes that belong to it.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use echoic_memory::shared_buffer::{SharedBuffer, SharedBufferView};

use super::delta::Bases;
use super::plan::Plan;
use super::store::Shelf;
use super::sums::sum;

/// A publication: a version, and the bytes of a tree that never change while anyone has them.
#[derive(Debug)]
pub struct Publication {
    version: u64,
    /// How many were published in its store before it, and itself.
    serial: u64,
    content: Option<Content>,
}

impl Publication {
    pub(super) fn new(version: u64, serial: u64, content: Option<Content>) -> Self {
        Self { version, serial, content }
    }

    /// Which version it is.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where it stands in the order of what its store has published, from 1 on.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Its bytes, unless it is a version alone.
    pub fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }
}

impl AsRef<[u8]> for Publication {
    /// Its bytes, if they are of this process.
    fn as_ref(&self) -> &[u8] {
        self.content().and_then(Content::bytes).unwrap_or_default()
    }
}

/// The bytes of a publication.
pub struct Content {
    plan: Arc<Plan>,
    bytes: Bytes,
    /// Of each chunk, once it was asked for.
    sums: Box<[OnceLock<u64>]>,
}

enum Bytes {
    /// In memory of this process.
    Held(Held),
    /// In that of another process, which the end of the guard notifies that it is not in use any more.
    Lent { view: Arc<SharedBufferView>, _guard: Box<dyn Any + Send + Sync> },
}

/// A shared buffer and the place that it takes in a store, given back when dropped.
pub(super) struct Held {
    buffer: Option<SharedBuffer>,
    shelf: Arc<Shelf>,
    /// A process may read it that will not report its end.
    spoiled: AtomicBool,
}

impl Held {
    pub(super) fn new(buffer: SharedBuffer, shelf: Arc<Shelf>) -> Self {
        Self { buffer: Some(buffer), shelf, spoiled: AtomicBool::new(false) }
    }

    pub(super) fn buffer(&self) -> Option<&SharedBuffer> {
        self.buffer.as_ref()
    }

    pub(super) fn buffer_mut(&mut self) -> Option<&mut SharedBuffer> {
        self.buffer.as_mut()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let spoiled = *self.spoiled.get_mut();
        self.shelf.take_back(self.buffer.take().filter(|_| !spoiled));
    }
}

impl Content {
    pub(super) fn held(plan: Arc<Plan>, held: Held, sums: Box<[OnceLock<u64>]>) -> Self {
        Self { plan, bytes: Bytes::Held(held), sums }
    }

    /// Bytes that another process wrote, of which `guard` is dropped when they are not in use any more. `None` when
    /// the view is too small for the plan.
    pub fn lent(
        plan: Arc<Plan>,
        view: Arc<SharedBufferView>,
        guard: Box<dyn Any + Send + Sync>,
    ) -> Option<Self> {
        if view.len() < plan.nbytes() {
            return None;
        }
        Some(Self { plan, bytes: Bytes::Lent { view, _guard: guard }, sums: Box::default() })
    }

    /// Where its leaves lie.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Where its bytes start. They are there, and do not change, for as long as the publication.
    pub fn pointer(&self) -> NonNull<u8> {
        match &self.bytes {
            Bytes::Held(held) => held.buffer().map_or(NonNull::dangling(), |buffer| {
                // A slice's address is not null.
                NonNull::from(&**buffer).cast()
            }),
            Bytes::Lent { view, .. } => view.pointer(),
        }
    }

    /// Its bytes, if they are of this process.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::Held(held) => held.buffer()?.get(..self.plan.nbytes()),
            Bytes::Lent { .. } => None,
        }
    }

    /// One chunk of them.
    pub fn chunk(&self, index: usize) -> Option<&[u8]> {
        self.bytes()?.get(self.plan.chunk(index)?)
    }

    /// The sum of a chunk, which is found when it is first asked for.
    pub fn sum(&self, index: usize) -> Option<u64> {
        let place = self.sums.get(index)?;
        let chunk = self.chunk(index)?;
        Some(*place.get_or_init(|| sum(chunk)))
    }

    /// Publications of the same store before the latest, to send what changed since. From the first call on the store
    /// keeps those whose memory is not wanted.
    pub fn bases(&self) -> Bases {
        match &self.bytes {
            Bytes::Held(held) => held.shelf.bases(),
            Bytes::Lent { .. } => Bases::default(),
        }
    }

    /// What to hand to other processes: which memory it is, of how many bytes, and its file.
    pub fn file(&self) -> Option<(u64, usize, BorrowedFd<'_>)> {
        match &self.bytes {
            Bytes::Held(held) => {
                let buffer = held.buffer()?;
                Some((buffer.id(), buffer.len(), buffer.file()?))
            }
            Bytes::Lent { .. } => None,
        }
    }

    /// Says that another process may read it without ever reporting that it has stopped: its
    /// memory is not written again.
    pub fn spoil(&self) {
        if let Bytes::Held(held) = &self.bytes {
            held.spoiled.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("nbytes", &self.plan.nbytes()).finish_non_exhaustive()
    }
}

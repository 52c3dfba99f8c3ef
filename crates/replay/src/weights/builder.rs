//! What is about to be published.

use std::sync::{Arc, OnceLock};

use echoic_memory::shared_buffer::SharedBuffer;

use super::delta::{ChunkForm, apply};
use super::plan::Plan;
use super::publication::{Content, Held, Publication};
use super::store::{Shelf, WeightsError};
use super::sums::sum;

/// A wish to publish a version, which counts among those that wait for a place.
pub struct Claim {
    pub(super) shelf: Arc<Shelf>,
    pub(super) version: u64,
}

impl Claim {
    /// The same claim for another version, which was not known before.
    #[must_use]
    pub fn retarget(mut self, version: u64) -> Self {
        self.version = version;
        self
    }

    /// Which version is to be published.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A publication builder, if there is a place for one.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the version is not new any more, or there is no memory.
    pub fn try_build(&self, plan: &Arc<Plan>) -> Result<Option<PublicationBuilder>, WeightsError> {
        let Some(buffer) = self.shelf.place(self.version, plan.nbytes())? else { return Ok(None) };
        let held = Held::new(buffer, Arc::clone(&self.shelf));
        let sums = (0..plan.chunks()).map(|_| OnceLock::new()).collect();
        let (shelf, plan) = (Arc::clone(&self.shelf), Arc::clone(plan));
        let mut builder = PublicationBuilder { shelf, version: self.version, plan, held, sums };
        builder.clear_gaps();
        Ok(Some(builder))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shelf.unclaim();
    }
}

/// Bytes that are not visible until they are published. Given back when dropped.
pub struct PublicationBuilder {
    shelf: Arc<Shelf>,
    version: u64,
    plan: Arc<Plan>,
    held: Held,
    sums: Box<[OnceLock<u64>]>,
}

impl PublicationBuilder {
    /// Between leaves are zeros: what an earlier publication left there would make other chunks of equal
    /// leaves.
    fn clear_gaps(&mut self) {
        if self.held.buffer().is_none_or(SharedBuffer::is_zeroed) {
            return;
        }
        let plan = Arc::clone(&self.plan);
        let mut end = 0;
        for (start, len) in plan.offsets().iter().zip(plan.spec().leaf_bytes()) {
            if let Some(gap) = self.bytes_mut().get_mut(end..*start) {
                gap.fill(0);
            }
            end = start + len;
        }
    }

    /// Which version it is to be.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where its leaves lie.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// All its bytes, which are whatever they were before.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let nbytes = self.plan.nbytes();
        self.held.buffer_mut().and_then(|buffer| buffer.get_mut(..nbytes)).unwrap_or_default()
    }

    /// The bytes of a leaf; none when there is no such leaf.
    pub fn leaf_mut(&mut self, leaf: usize) -> &mut [u8] {
        let start = self.plan.offsets().get(leaf).copied();
        let len = self.plan.spec().leaf_bytes().get(leaf).copied();
        let range = start.zip(len).map(|(start, len)| start..start + len);
        range.and_then(|range| self.bytes_mut().get_mut(range)).unwrap_or_default()
    }

    /// Has the system give all memory now. Until then it is there when it is first written, or what [`Self::reserve`]
    /// has asked for: so an upload takes no more than has come.
    ///
    /// # Errors
    ///
    /// [`WeightsError::Memory`] when there is too little.
    pub fn reserve_all(&self) -> Result<(), WeightsError> {
        Ok(self.held.buffer().map_or(Ok(()), SharedBuffer::populate)?)
    }

    /// Has the system give the memory of a chunk now; nothing when there is no such chunk.
    ///
    /// # Errors
    ///
    /// [`WeightsError::Memory`] when there is too little.
    pub fn reserve(&self, index: usize) -> Result<(), WeightsError> {
        let place = self.held.buffer().zip(self.plan.chunk(index));
        Ok(place.map_or(Ok(()), |(buffer, range)| buffer.populate_range(range))?)
    }

    /// Writes a chunk whose sum is known; `false` when there is no such chunk, or it has another length.
    pub fn put(&mut self, index: usize, bytes: &[u8], sum: u64) -> bool {
        let place = self.chunk_mut(index).filter(|place| place.len() == bytes.len());
        let Some(place) = place else { return false };
        place.copy_from_slice(bytes);
        self.set_sum(index, sum);
        true
    }

    /// Makes a chunk of what it was in another publication and what changed since; whether it has the wanted sum. If
    /// not, its bytes have no meaning.
    pub fn patch(
        &mut self,
        index: usize,
        (form, delta): (ChunkForm, &[u8]),
        base: &[u8],
        wanted: u64,
    ) -> bool {
        let Some(place) = self.chunk_mut(index) else { return false };
        let is_right = apply(form, delta, base, place) && sum(place) == wanted;
        if is_right {
            self.set_sum(index, wanted);
        }
        is_right
    }

    /// The bytes of a chunk.
    pub fn chunk_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let range = self.plan.chunk(index)?;
        self.bytes_mut().get_mut(range)
    }

    /// Takes note of the sum that the bytes of a chunk have.
    pub fn set_sum(&mut self, index: usize, sum: u64) {
        if let Some(place) = self.sums.get_mut(index) {
            *place = OnceLock::from(sum);
        }
    }

    /// Makes it visible.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when its version is not new any more, or the store is closed.
    pub fn publish(self) -> Result<Arc<Publication>, WeightsError> {
        let Self { shelf, version, plan, held, sums } = self;
        let nbytes = plan.nbytes();
        let published = shelf.install(version, Some(Content::held(plan, held, sums)))?;
        shelf.prepare(nbytes);
        Ok(published)
    }
}

//! The items of a sample, as they came.

use std::ops::Range;

use echoic_memory::arena::AnswerBuffer;
use echoic_replay::Spec;
use echoic_replay::table::Infos;

use crate::buffer_pool::PooledBuffer;
use crate::client::payload::Payload;
use crate::wire::WireError;
use crate::wire::tables::{ALIGNMENT, BatchHead, Layout};

/// Sampled items, in one buffer: read there from the socket, or written there by the server, and looked at
/// there.
#[derive(Debug)]
pub struct Batch {
    payload: Payload,
    infos: Infos,
    layout: Layout,
    columns: Vec<Range<usize>>,
}

/// A buffer that a payload is read into.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: PooledBuffer,
    /// Where the payload begins: a multiple of [`ALIGNMENT`] in memory.
    start: usize,
    filled: usize,
}

impl Incoming {
    /// `bytes` has [`ALIGNMENT`] more than the payload.
    pub(super) fn new(bytes: PooledBuffer) -> Self {
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, filled: 0 }
    }

    /// What is not filled yet.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        let (start, end) = (self.start, self.bytes.len() - ALIGNMENT + self.start);
        &mut self.bytes[start + self.filled..end]
    }

    pub(super) fn fill(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The buffer, and where in it the payload begins and ends.
    pub(super) fn into_parts(self) -> (PooledBuffer, usize, usize) {
        (self.bytes, self.start, self.start + self.filled)
    }

    /// Reads the head; `spec` is that of the table which was asked for.
    pub(super) fn finish<'a>(
        self,
        spec: impl FnOnce(u64) -> Option<Option<&'a Spec>>,
    ) -> Result<Option<(u64, Batch)>, WireError> {
        let payload = &self.bytes[self.start..][..self.filled];
        let (BatchHead { id, infos, layout }, head) = BatchHead::read(payload)?;
        let Some(spec) = spec(id) else { return Ok(None) };
        check_form(&layout, infos.keys.len(), spec)?;
        let columns = layout.columns(infos.keys.len(), head, spec)?;
        let end = columns.last().map_or(head, |last| last.end);
        if end != payload.len() {
            let (expected, got) = (end as u64, payload.len() as u64);
            return Err(WireError::Sequence { field: "length of a batch", expected, got });
        }
        let place = |column: Range<usize>| self.start + column.start..self.start + column.end;
        let columns = columns.into_iter().map(place).collect();
        Ok(Some((id, Batch { payload: Payload::Pooled(self.bytes), infos, layout, columns })))
    }
}

/// That a table without rows gives none. A batch without items, whatever it should be of, is of rows.
fn check_form(layout: &Layout, count: usize, spec: Option<&Spec>) -> Result<(), WireError> {
    if *layout == Layout::Rows && spec.is_none() && count > 0 {
        return Err(WireError::meaningless("form of a batch", 0));
    }
    Ok(())
}

impl Batch {
    /// A batch whose columns the server has written at a place.
    pub(super) fn placed(
        head: BatchHead,
        place: AnswerBuffer,
        spec: Option<&Spec>,
    ) -> Result<Self, WireError> {
        let BatchHead { infos, layout, .. } = head;
        check_form(&layout, infos.keys.len(), spec)?;
        let columns = layout.columns(infos.keys.len(), 0, spec)?;
        let (limit, got) = (place.len() as u64, columns.last().map_or(0, |last| last.end) as u64);
        if got > limit {
            return Err(WireError::too_large("length of a batch", limit, got));
        }
        Ok(Self { payload: Payload::Placed(place), infos, layout, columns })
    }

    /// Bytes of all columns.
    pub(super) fn bytes(&self) -> usize {
        self.columns.iter().map(ExactSizeIterator::len).sum()
    }

    /// How many items it has.
    pub fn len(&self) -> usize {
        self.infos.keys.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known about the items.
    pub fn infos(&self) -> &Infos {
        &self.infos
    }

    /// How the items lie in the columns.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the server has written it where it is, into memory that is shared with it.
    pub fn is_shared(&self) -> bool {
        self.payload.is_shared()
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The leaf of all items, one after the other; it begins at a multiple of 64 in memory.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column(&self, column: usize) -> &[u8] {
        &self.payload[self.columns[column].clone()]
    }

    /// As [`Batch::column`].
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column_mut(&mut self, column: usize) -> &mut [u8] {
        &mut self.payload[self.columns[column].clone()]
    }
}

//! Items of a [`TrajectoryWriter`]: from the steps that a caller names to what a sink gets.

use std::sync::Arc;

use super::column::Column;
use super::queue::Parts;
use super::{ChunkId, ItemNumber, ItemSteps, OutgoingItem, Sink, TrajectoryWriter, WriterError};
use crate::chunk::Slice;
use crate::trajectory::{Signature, Trajectory, TrajectoryError};

impl TrajectoryWriter {
    /// Makes an item of steps, to be handed over when their chunks are cut.
    ///
    /// # Errors
    ///
    /// [`WriterError::Priority`], [`WriterError::Column`], [`WriterError::Gone`],
    /// [`WriterError::Absent`] or [`WriterError::Trajectory`].
    pub fn create_item(
        &mut self,
        table: u32,
        priority: f64,
        signature: &Arc<Signature>,
        steps: &ItemSteps,
    ) -> Result<ItemNumber, WriterError> {
        if !priority.is_finite() || priority < 0.0 {
            return Err(WriterError::Priority(priority));
        }
        let Self { columns, queue, slices, .. } = self;
        let wait = resolve(columns, signature, steps, slices);
        let joins = wait.as_ref().ok().and_then(|_| queue.group_of(signature, slices));
        if joins.is_none() {
            // Those that join a group have the kinds of its first.
            check_kinds(columns, signature, steps)?;
        }
        let due = self.steps.saturating_add(wait?);
        let group = joins.unwrap_or_else(|| {
            for (column, part) in &slices.parts {
                columns[*column as usize].segment_mut(part.segment).named += 1;
            }
            (queue.open_group(signature, slices), 0)
        });
        let item_number = ItemNumber(self.next_item);
        self.next_item += 1;
        // There is one zero less to think of.
        queue.push(item_number, (table, priority.abs()), group, due);
        Ok(item_number)
    }

    /// Hands over the items whose data is complete, with the chunks that they need first, and says how
    /// many there were. The sink may stop it before any item.
    pub fn emit<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.queue.settle(&mut self.columns, self.steps);
        let mut emitted = 0;
        while self.queue.settled() > 0 && sink.has_room() && self.emit_next(sink) {
            emitted += 1;
        }
        if !self.released.is_empty() {
            sink.release(&self.released);
            self.released.clear();
        }
        emitted
    }

    fn emit_next<S: Sink + ?Sized>(&mut self, sink: &mut S) -> bool {
        let Self { columns, queue, next_chunk, released, .. } = self;
        let Some((item, group)) = queue.pop() else { return false };
        let first = group.trajectory.get_or_insert_with(|| {
            let mut slices = Vec::with_capacity(group.slices.parts.len());
            for (column, part) in &group.slices.parts {
                let (segment, chooser) =
                    columns[*column as usize].segment_and_chooser(part.segment);
                if segment.id.is_none() {
                    segment.encode(chooser);
                }
                let chunk = segment.chunk.as_ref().expect("a settled item's chunks are cut");
                let id = *segment.id.get_or_insert_with(|| {
                    let id = ChunkId(*next_chunk);
                    *next_chunk += 1;
                    sink.chunk(id, chunk);
                    id
                });
                group.chunks.push(id);
                slices.push(Slice { chunk: Arc::clone(chunk), offset: part.offset, len: part.len });
            }
            let ends = (!group.slices.is_plain()).then(|| group.slices.ends.as_slice().into());
            Trajectory::checked(Arc::clone(&group.signature), slices.into(), ends)
        });
        sink.item(OutgoingItem {
            item_number: item.item_number,
            table: item.table,
            priority: item.priority,
            trajectory: first.shifted(item.shift),
            chunks: &group.chunks,
        });
        queue.end_group(&item, |column, part, reach| {
            columns[column as usize].unname(part, reach, released);
        });
        true
    }

    /// Cuts the chunks that items in the queue need, so that the next [`emit`](Self::emit) hands over all.
    pub fn seal(&mut self) {
        self.queue.settle(&mut self.columns, u64::MAX);
    }

    /// [`seal`](Self::seal) and [`emit`](Self::emit).
    pub fn flush<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.seal();
        self.emit(sink)
    }
}

/// Finds what an item is made of, and how many steps it may wait for its data.
fn resolve(
    columns: &[Column],
    signature: &Signature,
    steps: &ItemSteps,
    Parts { parts, ends }: &mut Parts,
) -> Result<u64, WriterError> {
    let (expected, got) = (signature.columns.len(), steps.columns());
    if expected != got {
        return Err(TrajectoryError::Columns { expected, got }.into());
    }
    parts.clear();
    ends.clear();
    let mut wait = 0;
    for (column, spans) in signature.columns.iter().zip(steps.iter()) {
        let begin = parts.len();
        let mut total = 0u64;
        for span in spans.iter().filter(|span| span.len > 0) {
            let column = span.column as usize;
            let Some(source) = columns.get(column) else {
                return Err(WriterError::Column { column, columns: columns.len() });
            };
            total += u64::from(span.len);
            let value = source.locate(span.first, span.len)?;
            wait = wait.max(source.wait(value + u64::from(span.len)));
            source.parts(value, span.len, |part| {
                if parts.len() > begin
                    && let Some((last_column, last)) = parts.last_mut()
                    && *last_column == span.column
                    && last.segment == part.segment
                    && last.offset + last.len == part.offset
                {
                    last.len += part.len;
                } else {
                    parts.push((span.column, part));
                }
            });
        }
        if total == 0 || (column.squeezed && total > 1) {
            let expected = if column.squeezed { "just 1" } else { "at least 1" };
            let path = column.path.clone();
            return Err(TrajectoryError::Steps { path, expected, got: total }.into());
        }
        ends.push(parts.len() as u32);
    }
    Ok(wait)
}

/// Refuses steps of columns of other kinds than those of the signature.
fn check_kinds(
    columns: &[Column],
    signature: &Signature,
    steps: &ItemSteps,
) -> Result<(), WriterError> {
    for (column, spans) in signature.columns.iter().zip(steps.iter()) {
        for span in spans.iter().filter(|span| span.len > 0) {
            let source = columns.get(span.column as usize);
            if source.is_some_and(|source| *source.kind != column.kind) {
                return Err(TrajectoryError::Kind { path: column.path.clone() }.into());
            }
        }
    }
    Ok(())
}

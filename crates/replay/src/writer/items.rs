//! Items of a [`TrajectoryWriter`]: from the steps that a caller names to what a sink gets.

use std::sync::Arc;

use super::queue::Pending;
use super::{ChunkId, ItemSteps, ItemTicket, OutgoingItem, Sink, TrajectoryWriter, WriterError};
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
    ) -> Result<ItemTicket, WriterError> {
        if !priority.is_finite() || priority < 0.0 {
            return Err(WriterError::Priority(priority));
        }
        let (parts, ends) = (self.queue.parts.len(), self.queue.ends.len());
        match self.resolve(signature, steps) {
            Ok((plain, wait)) => {
                for index in parts..self.queue.parts.len() {
                    let (column, part) = self.queue.parts[index];
                    let column = &mut self.columns[column as usize];
                    column.segment_mut(part.segment).name(part.offset, part.len);
                }
                if plain {
                    self.queue.ends.truncate(ends);
                }
                let ticket = ItemTicket(self.next_ticket);
                self.next_ticket += 1;
                self.queue.items.push_back(Pending {
                    ticket,
                    table,
                    // There is one zero less to think of.
                    priority: priority.abs(),
                    signature: Arc::clone(signature),
                    parts: (self.queue.parts.len() - parts) as u32,
                    plain,
                    due: self.steps.saturating_add(wait),
                });
                Ok(ticket)
            }
            Err(error) => {
                self.queue.parts.truncate(parts);
                self.queue.ends.truncate(ends);
                Err(error)
            }
        }
    }

    /// Queues the parts of an item; says whether each column is one part, and how many steps the item may
    /// wait for its data.
    fn resolve(
        &mut self,
        signature: &Signature,
        steps: &ItemSteps,
    ) -> Result<(bool, u64), WriterError> {
        let (expected, got) = (signature.columns.len(), steps.columns());
        if expected != got {
            return Err(TrajectoryError::Columns { expected, got }.into());
        }
        let start = self.queue.parts.len();
        let (mut plain, mut wait) = (true, 0);
        for (column, spans) in signature.columns.iter().zip(steps.iter()) {
            let begin = self.queue.parts.len();
            let mut total = 0u64;
            for span in spans.iter().filter(|span| span.len > 0) {
                let source = self.columns.get(span.column as usize);
                let source = source.ok_or(WriterError::Column {
                    column: span.column as usize,
                    columns: self.columns.len(),
                })?;
                if *source.kind != column.kind {
                    return Err(TrajectoryError::Kind { path: column.path.clone() }.into());
                }
                total += u64::from(span.len);
                let value = source.locate(span.first, span.len)?;
                wait = wait.max(source.wait(value + u64::from(span.len)));
                let queue = &mut self.queue.parts;
                source.parts(value, span.len, |part| {
                    if queue.len() > begin
                        && let Some((last_column, last)) = queue.back_mut()
                        && *last_column == span.column
                        && last.segment == part.segment
                        && last.offset + last.len == part.offset
                    {
                        last.len += part.len;
                    } else {
                        queue.push_back((span.column, part));
                    }
                });
            }
            if total == 0 || (column.squeezed && total > 1) {
                let expected = if column.squeezed { "just 1" } else { "at least 1" };
                let path = column.path.clone();
                return Err(TrajectoryError::Steps { path, expected, got: total }.into());
            }
            plain &= self.queue.parts.len() == begin + 1;
            self.queue.ends.push_back((self.queue.parts.len() - start) as u32);
        }
        Ok((plain, wait))
    }

    /// Hands over the items whose data is complete, with the chunks that they need first, and says how
    /// many there were. The sink may stop it before any item.
    pub fn emit<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.queue.settle(&mut self.columns, self.steps);
        let mut emitted = 0;
        while self.queue.settled() > 0 && sink.has_room() {
            let Some(item) = self.queue.pop() else { break };
            self.emit_item(item, sink);
            emitted += 1;
        }
        if !self.released.is_empty() {
            sink.release(&self.released);
            self.released.clear();
        }
        emitted
    }

    fn emit_item<S: Sink + ?Sized>(&mut self, item: Pending, sink: &mut S) {
        let mut slices = Vec::with_capacity(item.parts as usize);
        self.chunks.clear();
        for (number, part) in self.queue.parts.drain(..item.parts as usize) {
            let column = &mut self.columns[number as usize];
            let (segment, chooser) = column.segment_and_chooser(part.segment);
            if segment.id.is_none() {
                segment.encode(chooser);
            }
            let chunk = segment.chunk.as_ref().expect("a settled item's chunks are cut");
            let id = *segment.id.get_or_insert_with(|| {
                let id = ChunkId(self.next_chunk);
                self.next_chunk += 1;
                sink.chunk(id, chunk);
                id
            });
            self.chunks.push(id);
            slices.push(Slice { chunk: Arc::clone(chunk), offset: part.offset, len: part.len });
            column.unname(part.segment, &mut self.released);
        }
        let columns = item.signature.columns.len();
        let ends = (!item.plain).then(|| self.queue.ends.drain(..columns).collect());
        sink.item(OutgoingItem {
            ticket: item.ticket,
            table: item.table,
            priority: item.priority,
            trajectory: Trajectory::checked(item.signature, slices.into(), ends),
            chunks: &self.chunks,
        });
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

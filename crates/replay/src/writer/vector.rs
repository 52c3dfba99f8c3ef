//! Writers of environments that step together.
//!
//! A [`VectorWriter`] is as many [`TrajectoryWriter`]s as there are environments, with the same columns and
//! one sink. A step comes as one value for each environment, and items are described once for all: by steps
//! counted from the newest of each environment.
//!
//! # Invariants
//!
//! 1. All writers have the same columns under the same numbers.
//! 2. A call is refused for all environments, or for none.
//! 3. What the sink is given follows the rules of [`Sink`], with numbers that are unique among all
//!    environments; they are not without gaps.
//! 4. `calls` has, for each environment, the number of the call that created each item of its queue.
//!
//! # Limitations
//!
//! The items of one environment come in the order in which they were created, and so do all items that
//! become complete together. An item does not wait for older ones of other environments: these may not
//! step for long.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::structured::Take;
use super::{
    ChunkId, ColumnConfig, ItemNumber, ItemSteps, OutgoingItem, Sink, TrajectoryWriter,
    WriterError, length_error,
};
use crate::chunk::{Chunk, ColumnKind};
use crate::trajectory::{Signature, TrajectoryError};

/// Appends steps of many environments and makes items of each; see the [module](self).
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::Dtype;
/// use echoic_replay::chunk::{Chunk, ColumnKind};
/// use echoic_replay::encoding::Policy;
/// use echoic_replay::trajectory::{Column, Signature};
/// use echoic_replay::writer::structured::Take;
/// use echoic_replay::writer::vector::VectorWriter;
/// use echoic_replay::writer::{ChunkId, ChunkLength, ColumnConfig, OutgoingItem, Sink};
///
/// struct Count(usize);
/// impl Sink for Count {
///     fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}
///     fn item(&mut self, _: OutgoingItem<'_>) {
///         self.0 += 1;
///     }
/// }
///
/// let (chunk_length, encoding) = (ChunkLength::Auto, Policy::Never);
/// let mut writer = VectorWriter::new(3, ColumnConfig { keep_alive: 10, chunk_length, encoding })?;
/// let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![] };
/// let obs = writer.column("obs", &kind)?;
/// writer.append(&[Some(&[10, 20, 30])], None, false)?;
/// writer.append(&[Some(&[11, 21, 31])], Some(&[true, false, true]), false)?;
///
/// let column = Column { path: "obs".into(), kind, squeezed: false };
/// let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
/// let pair = [(obs, Take::Slice { start: -2, stop: 0, step: 1 })];
/// let made = writer.create_items(0, &[1.0; 3], &signature, &pair, None)?;
/// assert_eq!(made, [true, false, true], "the second has one step only");
/// let mut sink = Count(0);
/// writer.flush(&mut sink);
/// assert_eq!(sink.0, 2);
/// # Ok::<(), echoic_replay::writer::WriterError>(())
/// ```
#[derive(Debug)]
pub struct VectorWriter {
    writers: Vec<TrajectoryWriter>,
    calls: Vec<VecDeque<u64>>,
    next_call: u64,
    /// Used again by each item.
    steps: ItemSteps,
    /// The oldest item of each environment, by its call. Used again whenever items are handed over.
    oldest: BinaryHeap<Reverse<(u64, usize)>>,
}

impl VectorWriter {
    /// A writer without columns for this many environments.
    ///
    /// # Errors
    ///
    /// [`WriterError::Config`]; [`WriterError::NoEnvironment`].
    pub fn new(environments: usize, config: ColumnConfig) -> Result<Self, WriterError> {
        if environments == 0 {
            return Err(WriterError::NoEnvironment);
        }
        let writers = (0..environments).map(|_| TrajectoryWriter::new(config));
        Ok(Self {
            writers: writers.collect::<Result<_, _>>()?,
            calls: vec![VecDeque::new(); environments],
            next_call: 0,
            steps: ItemSteps::default(),
            oldest: BinaryHeap::new(),
        })
    }

    /// Settings of a column, as [`TrajectoryWriter::configure`].
    pub fn configure(&mut self, path: &str, config: ColumnConfig) -> Result<(), WriterError> {
        self.writers.iter_mut().try_for_each(|writer| writer.configure(path, config))
    }

    /// The number of the column of this name, as [`TrajectoryWriter::column`].
    pub fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, WriterError> {
        let mut number = 0;
        for writer in &mut self.writers {
            // By invariant 1 the first is refused, or none.
            number = writer.column(path, kind)?;
        }
        Ok(number)
    }

    /// Adds a step, or more of the open one, to the environments that are marked in `environments`, or to
    /// all. `values` has the bytes of each column for all environments, marked or not, one after the
    /// other. What else there is to know is said at [`TrajectoryWriter::append`].
    ///
    /// # Errors
    ///
    /// As there, and [`WriterError::Environments`].
    pub fn append(
        &mut self,
        values: &[Option<&[u8]>],
        environments: Option<&[bool]>,
        partial: bool,
    ) -> Result<(), WriterError> {
        let count = self.writers.len();
        self.check_mask(environments)?;
        let first = &self.writers[0];
        if let Some(column) = (first.columns.len()..values.len()).find(|at| values[*at].is_some()) {
            return Err(WriterError::Column { column, columns: first.columns.len() });
        }
        for (column, value) in first.columns.iter().zip(values) {
            if let Some(value) = value
                && column.step_bytes.checked_mul(count) != Some(value.len())
            {
                return Err(length_error(column, count, value.len()));
            }
        }
        let mut row = vec![None; values.len()];
        let mut each = |writers: &mut [TrajectoryWriter], call: &mut Call<'_>| {
            for (number, writer) in writers.iter_mut().enumerate() {
                if environments.is_some_and(|marked| !marked[number]) {
                    continue;
                }
                for (value, all) in row.iter_mut().zip(values) {
                    *value = all.map(|all| {
                        let bytes = all.len() / count;
                        &all[number * bytes..(number + 1) * bytes]
                    });
                }
                call(writer, &row)?;
            }
            Ok(())
        };
        if self.writers.iter().any(TrajectoryWriter::step_is_open) {
            each(&mut self.writers, &mut |writer, row| writer.check(row, 1))?;
        }
        each(&mut self.writers, &mut |writer, row| writer.append(row, partial).map(drop))
    }

    /// Makes an item for each of the environments that are marked, or of all, whose histories have all of
    /// the steps, and says for which. `takes` names a column and its steps, counted from the newest value
    /// of the environment in this column, for each column of the signature; there is a priority for each
    /// environment.
    ///
    /// # Errors
    ///
    /// As [`TrajectoryWriter::create_item`], and [`WriterError::Environments`].
    pub fn create_items(
        &mut self,
        table: u32,
        priorities: &[f64],
        signature: &Arc<Signature>,
        takes: &[(u32, Take)],
        environments: Option<&[bool]>,
    ) -> Result<Vec<bool>, WriterError> {
        self.check_mask(environments)?;
        self.check_count("priorities", priorities.len())?;
        let marked = |number: usize| environments.is_none_or(|marked| marked[number]);
        let bad = |number: &usize| !(priorities[*number].is_finite() && priorities[*number] >= 0.0);
        if let Some(number) = (0..priorities.len()).filter(|number| marked(*number)).find(bad) {
            return Err(WriterError::Priority(priorities[number]));
        }
        let (expected, got) = (signature.columns.len(), takes.len());
        if expected != got {
            return Err(TrajectoryError::Columns { expected, got }.into());
        }
        for (column, (_, take)) in signature.columns.iter().zip(takes) {
            if !take.is_possible() {
                let path = column.path.clone();
                let expected = "some of the past, in the order of time";
                return Err(TrajectoryError::Steps { path, expected, got: 0 }.into());
            }
        }
        let mut made = vec![false; self.writers.len()];
        for (number, writer) in self.writers.iter_mut().enumerate() {
            if !marked(number) {
                continue;
            }
            self.steps.clear();
            let mut complete = true;
            for (column, take) in takes {
                if !self.steps.latest(writer, *column, *take)? {
                    complete = false;
                    break;
                }
            }
            if complete {
                // What it refuses now it refuses in the first environment: the rest was checked.
                writer.create_item(table, priorities[number], signature, &self.steps)?;
                self.calls[number].push_back(self.next_call);
                made[number] = true;
            }
        }
        self.next_call += 1;
        Ok(made)
    }

    /// Begins another episode in the environments that are marked, or in all, as
    /// [`TrajectoryWriter::end_episode`].
    pub fn end_episode(
        &mut self,
        environments: Option<&[bool]>,
        clear: bool,
    ) -> Result<(), WriterError> {
        self.check_mask(environments)?;
        for (number, writer) in self.writers.iter_mut().enumerate() {
            if environments.is_none_or(|marked| marked[number]) {
                writer.end_episode(clear);
            }
        }
        Ok(())
    }

    /// Hands over what is complete, as [`TrajectoryWriter::emit`]: what was created first comes first.
    pub fn emit<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        let environments = self.writers.len();
        let mut lane = Lane { sink, environment: 0, environments, room: 0, chunks: Vec::new() };
        let oldest = |(environment, calls): (usize, &VecDeque<u64>)| {
            calls.front().map(|call| Reverse((*call, environment)))
        };
        self.oldest.clear();
        self.oldest.extend(self.calls.iter().enumerate().filter_map(oldest));
        let mut emitted = 0;
        while let Some(Reverse((_, environment))) = self.oldest.pop() {
            (lane.environment, lane.room) = (environment, 1);
            if self.writers[environment].emit(&mut lane) == 0 {
                // Its oldest item is not complete, or the sink has no room.
                continue;
            }
            emitted += 1;
            let calls = &mut self.calls[environment];
            calls.pop_front();
            self.oldest.extend(calls.front().map(|call| Reverse((*call, environment))));
        }
        for (environment, writer) in self.writers.iter_mut().enumerate() {
            if !writer.released.is_empty() {
                (lane.environment, lane.room) = (environment, 0);
                writer.emit(&mut lane);
            }
        }
        emitted
    }

    /// Hands over all items, as [`TrajectoryWriter::flush`].
    pub fn flush<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.writers.iter_mut().for_each(TrajectoryWriter::seal);
        self.emit(sink)
    }

    /// The writer of each environment, to look at. There is at least one.
    pub fn writers(&self) -> &[TrajectoryWriter] {
        &self.writers
    }

    /// How many items were created and not handed over yet.
    pub fn pending(&self) -> usize {
        self.writers.iter().map(TrajectoryWriter::pending).sum()
    }

    fn check_mask(&self, environments: Option<&[bool]>) -> Result<(), WriterError> {
        environments.map_or(Ok(()), |marked| self.check_count("marks", marked.len()))
    }

    fn check_count(&self, what: &'static str, got: usize) -> Result<(), WriterError> {
        let expected = self.writers.len();
        if expected == got {
            return Ok(());
        }
        Err(WriterError::Environments { what, expected, got })
    }
}

/// What is done with the row of an environment.
type Call<'a> = dyn FnMut(&mut TrajectoryWriter, &[Option<&[u8]>]) -> Result<(), WriterError> + 'a;

/// The sink of one environment: its numbers are distinguished from those of the others.
struct Lane<'a, S: ?Sized> {
    sink: &'a mut S,
    environment: usize,
    environments: usize,
    /// How many more items it takes.
    room: usize,
    chunks: Vec<ChunkId>,
}

impl<S: ?Sized> Lane<'_, S> {
    fn number(&self, number: u64) -> u64 {
        number * self.environments as u64 + self.environment as u64
    }

    fn rename(&mut self, chunks: &[ChunkId]) {
        self.chunks.clear();
        for chunk in chunks {
            self.chunks.push(ChunkId(self.number(chunk.0)));
        }
    }
}

impl<S: Sink + ?Sized> Sink for Lane<'_, S> {
    fn has_room(&mut self) -> bool {
        self.room > 0 && self.sink.has_room()
    }

    fn chunk(&mut self, id: ChunkId, chunk: &Arc<Chunk>) {
        self.sink.chunk(ChunkId(self.number(id.0)), chunk);
    }

    fn item(&mut self, item: OutgoingItem<'_>) {
        self.room -= 1;
        self.rename(item.chunks);
        let item_number = ItemNumber(self.number(item.item_number.0));
        let OutgoingItem { table, priority, trajectory, .. } = item;
        let chunks = &self.chunks;
        self.sink.item(OutgoingItem { item_number, table, priority, trajectory, chunks });
    }

    fn release(&mut self, chunks: &[ChunkId]) {
        self.rename(chunks);
        self.sink.release(&self.chunks);
    }
}

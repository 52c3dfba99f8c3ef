//! Steps in, one by one and column by column; chunks and items out.
//!
//! A [`TrajectoryWriter`] is the part of a writer that knows neither a table nor a connection. Columns come
//! into being by name ([`TrajectoryWriter::column`]), [`append`](TrajectoryWriter::append) adds a step,
//! [`create_item`](TrajectoryWriter::create_item) names steps of the recent past ([`ItemSteps`]), and
//! [`emit`](TrajectoryWriter::emit) hands over to a [`Sink`] what is complete. [`structured`] creates the
//! items by itself, by patterns and conditions; [`vector`] has a writer for each of many environments.
//!
//! # Invariants
//!
//! 1. No call waits or does input or output; a refused call changes nothing.
//! 2. What a sink is given follows the rules of [`Sink`].
//! 3. A column holds the values of its window ([`ColumnConfig::keep_alive`]), at most one chunk more, and
//!    the chunks that items in the queue name. The queue is as long as the caller lets it get: it should
//!    stop creating items while [`TrajectoryWriter::pending`] is more than it likes.
//! 4. No item waits for its data for more steps than the longest chunk has that it names: a column that
//!    gets values more seldom is cut short.
//! 5. The steps of a chunk are from one episode, and it knows which.
//!
//! # Limitations
//!
//! There is no clock in here. [`ChunkLength::Prompt`] hands items over soon, counted in steps. Whoever wants
//! those of a slow actor sooner calls [`flush`](TrajectoryWriter::flush) from time to time; short chunks cost
//! little when there are few.

pub mod config;
pub mod error;
pub mod sink;
pub mod steps;
pub mod structured;
pub mod tuner;
pub mod vector;

mod column;
mod items;
mod queue;
mod segment;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::chunk::ColumnKind;
use crate::episode::Episode;
use column::Column;
use queue::{Parts, Queue};
use structured::Take;

pub use config::{ChunkLength, ColumnConfig};
pub use error::WriterError;
pub use sink::{ChunkId, ItemNumber, OutgoingItem, Sink};
pub use steps::{ItemSteps, Span, StepRef};

/// Appends steps and makes items of them; see the [module](self).
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::Dtype;
/// use echoic_replay::chunk::{Chunk, ColumnKind};
/// use echoic_replay::encoding::Policy;
/// use echoic_replay::trajectory::{Column, Signature};
/// use echoic_replay::writer::*;
///
/// struct Print(Vec<String>);
/// impl Sink for Print {
///     fn chunk(&mut self, id: ChunkId, chunk: &Arc<Chunk>) {
///         self.0.push(format!("chunk {} of {}", id.0, chunk.len()));
///     }
///     fn item(&mut self, item: OutgoingItem<'_>) {
///         self.0.push(format!("item of {} steps", item.trajectory.steps(0)));
///     }
/// }
///
/// let config =
///     ColumnConfig { keep_alive: 10, chunk_length: ChunkLength::Auto, encoding: Policy::Never };
/// let mut writer = TrajectoryWriter::new(config)?;
/// let kind = ColumnKind { dtype: Dtype::Float(4), shape: vec![] };
/// let reward = writer.column("reward", &kind)?;
/// for value in [1.0f32, 2.0, 3.0] {
///     writer.append(&[Some(&value.to_ne_bytes())], false)?;
/// }
/// let column = Column { path: "reward".into(), kind, squeezed: false };
/// let signature = Arc::new(Signature { structure: String::new(), columns: vec![column] });
/// let mut steps = ItemSteps::default();
/// steps.column([Span { column: reward, first: 1, len: 2 }]);
/// writer.create_item(0, 1.0, &signature, &steps)?;
///
/// let mut sink = Print(vec![]);
/// assert_eq!(writer.emit(&mut sink), 0, "the chunk is not full");
/// assert_eq!(writer.flush(&mut sink), 1);
/// assert_eq!(sink.0, ["chunk 0 of 3", "item of 2 steps"]);
/// # Ok::<(), WriterError>(())
/// ```
#[derive(Debug)]
pub struct TrajectoryWriter {
    config: ColumnConfig,
    /// Settings of columns by name, also of those that don't exist yet.
    configs: HashMap<String, ColumnConfig>,
    columns: Vec<Column>,
    by_path: HashMap<String, u32>,
    /// Complete steps, which is also the number of the open or next one.
    steps: u64,
    open: bool,
    episode: u64,
    /// Its name, which chunks carry.
    episode_name: Episode,
    episode_start: u64,
    queue: Queue,
    next_item: u64,
    next_chunk: u64,
    /// Chunks to report to the sink.
    released: Vec<ChunkId>,
    /// What the item that is being created is made of.
    slices: Parts,
}

impl TrajectoryWriter {
    /// A writer without columns.
    pub fn new(config: ColumnConfig) -> Result<Self, WriterError> {
        config.check()?;
        Ok(Self {
            config,
            configs: HashMap::new(),
            columns: Vec::new(),
            by_path: HashMap::new(),
            steps: 0,
            open: false,
            episode: 0,
            episode_name: Episode::fresh(),
            episode_start: 0,
            queue: Queue::default(),
            next_item: 0,
            next_chunk: 0,
            released: Vec::new(),
            slices: Parts::default(),
        })
    }

    /// Settings of the column of this name, whether it exists or not. A chunk under construction keeps
    /// the length that it was begun with; one that was handed over keeps its encoding.
    pub fn configure(&mut self, path: &str, config: ColumnConfig) -> Result<(), WriterError> {
        config.check()?;
        self.configs.insert(path.into(), config);
        if let Some(column) = self.by_path.get(path) {
            self.columns[*column as usize].configure(&config, &mut self.released);
        }
        Ok(())
    }

    /// The number of the column of this name, which comes into being if there is none.
    ///
    /// # Errors
    ///
    /// [`WriterError::Kind`] when it exists with another kind; [`WriterError::TooLarge`].
    pub fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, WriterError> {
        if let Some(number) = self.by_path.get(path) {
            let column = &self.columns[*number as usize];
            if *column.kind != *kind {
                let (expected, got) = (describe(&column.kind), describe(kind));
                return Err(WriterError::Kind { path: path.into(), expected, got });
            }
            return Ok(*number);
        }
        let config = self.configs.get(path).unwrap_or(&self.config);
        let number = self.columns.len() as u32;
        self.columns.push(Column::new(path, kind.clone(), config, self.episode_name)?);
        self.by_path.insert(path.into(), number);
        Ok(number)
    }

    /// Promises that no item will name steps of a column: they are checked, but not stored.
    pub(crate) fn ignore(&mut self, column: u32) {
        self.columns[column as usize].wanted = false;
    }

    /// Adds a step, or more of the open one: `values` has the bytes of each column, in the order of their
    /// numbers, and `None` or nothing for columns without a value. The step stays open when it is
    /// `partial`; steps can be named as soon as they have a value. Returns the number of the step.
    ///
    /// # Errors
    ///
    /// [`WriterError::Column`], [`WriterError::Length`] or [`WriterError::Twice`].
    pub fn append(&mut self, values: &[Option<&[u8]>], partial: bool) -> Result<u64, WriterError> {
        self.check(values, 1)?;
        let step = self.steps;
        for (column, value) in self.columns.iter_mut().zip(values) {
            if let Some(value) = value
                && column.wanted
            {
                column.push(step, value, 1, &mut self.released);
            }
        }
        self.close_step(partial);
        Ok(step)
    }

    /// Like [`append`](Self::append) of the columns of these numbers, whose values `fill` writes, given
    /// the position in `columns` and zeroed memory.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_with(
        &mut self,
        columns: &[u32],
        partial: bool,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<u64, WriterError> {
        let step = self.steps;
        for (position, number) in columns.iter().enumerate() {
            let column = self.get(*number)?;
            if column.has_latest(step) || columns[..position].contains(number) {
                return Err(WriterError::Twice { path: column.path.clone(), step });
            }
        }
        // Should `fill` panic, the step is one that is open.
        self.open = true;
        for (position, number) in columns.iter().enumerate() {
            let column = &mut self.columns[*number as usize];
            if column.wanted {
                column.push_with(step, |to| fill(position, to), &mut self.released);
            }
        }
        self.close_step(partial);
        Ok(step)
    }

    /// Adds many complete steps: `values` has the bytes of all steps of each column. Returns their numbers.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), and [`WriterError::StepOpen`].
    pub fn append_batch(
        &mut self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<Range<u64>, WriterError> {
        self.check_batch(steps, values)?;
        let first = self.steps;
        for (column, value) in self.columns.iter_mut().zip(values) {
            if let Some(value) = value
                && column.wanted
            {
                column.push(first, value, steps, &mut self.released);
            }
        }
        self.steps += steps as u64;
        self.settle_due();
        Ok(first..self.steps)
    }

    /// Whether a batch can be appended.
    pub(crate) fn check_batch(
        &self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<(), WriterError> {
        if self.open {
            return Err(WriterError::StepOpen { step: self.steps });
        }
        self.check(values, steps)
    }

    #[inline]
    fn check(&self, values: &[Option<&[u8]>], steps: usize) -> Result<(), WriterError> {
        if let Some(column) = (self.columns.len()..values.len()).find(|at| values[*at].is_some()) {
            return Err(WriterError::Column { column, columns: self.columns.len() });
        }
        for (column, value) in self.columns.iter().zip(values) {
            let Some(value) = value else { continue };
            if column.step_bytes.checked_mul(steps) != Some(value.len()) {
                return Err(length_error(column, steps, value.len()));
            }
            if self.open && column.has_latest(self.steps) {
                return Err(WriterError::Twice { path: column.path.clone(), step: self.steps });
            }
        }
        Ok(())
    }

    #[inline]
    fn close_step(&mut self, partial: bool) {
        self.open = partial;
        if !partial {
            self.steps += 1;
            self.settle_due();
        }
    }

    #[inline]
    fn settle_due(&mut self) {
        if self.queue.due().is_some_and(|due| due <= self.steps) {
            self.queue.settle(&mut self.columns, self.steps);
        }
    }

    fn get(&self, column: u32) -> Result<&Column, WriterError> {
        let (column, columns) = (column as usize, self.columns.len());
        match self.columns.get(column) {
            Some(found) => Ok(found),
            None => Err(WriterError::Column { column, columns }),
        }
    }

    /// Begins another episode: the open step is complete as it is, the items in the queue are
    /// [sealed](Self::seal), and, with `clear`, no step so far can be named any more.
    pub fn end_episode(&mut self, clear: bool) {
        self.seal();
        self.steps += u64::from(self.open);
        self.open = false;
        self.episode += 1;
        self.episode_start = self.steps;
        self.episode_name = Episode::fresh();
        for column in &mut self.columns {
            if clear {
                column.clear(&mut self.released);
            }
            column.begin_episode(self.episode_name);
        }
    }

    /// The steps of a column that can be named, oldest first, as runs of consecutive ones.
    pub fn history(&self, column: u32) -> Result<impl Iterator<Item = Range<u64>>, WriterError> {
        Ok(self.get(column)?.history())
    }

    /// Names the last steps of each of these columns, instead of what `steps` had.
    ///
    /// # Errors
    ///
    /// [`WriterError::Column`] or [`WriterError::Short`].
    pub fn last_steps(
        &self,
        columns: &[u32],
        last: u32,
        steps: &mut ItemSteps,
    ) -> Result<(), WriterError> {
        steps.clear();
        let take = Take::Slice { start: -i64::from(last), stop: 0, step: 1 };
        for number in columns {
            if !steps.latest(self, *number, take)? {
                let column = self.get(*number)?;
                let found = column.history().map(|run| run.end - run.start).sum();
                return Err(WriterError::Short { path: column.path.clone(), last, found });
            }
        }
        Ok(())
    }

    /// Copies the value of a step that can be named.
    ///
    /// # Errors
    ///
    /// [`WriterError::Column`], [`WriterError::Gone`], [`WriterError::Absent`], or
    /// [`WriterError::Length`] when `to` has another size.
    pub fn read(&self, at: StepRef, to: &mut [u8]) -> Result<(), WriterError> {
        let column = self.get(at.column)?;
        let value = column.locate(at.step, 1)?;
        if column.step_bytes != to.len() {
            return Err(length_error(column, 1, to.len()));
        }
        column.read(value, to);
        Ok(())
    }

    /// Whether all these steps can be named.
    pub(crate) fn has(&self, span: Span) -> bool {
        self.get(span.column).is_ok_and(|column| column.find(span.first, span.len).is_ok())
    }

    /// The name and kind of each column.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (&str, &Arc<ColumnKind>)> {
        self.columns.iter().map(|column| (column.path.as_str(), &column.kind))
    }

    /// How many steps are complete, over all episodes; the number of the open or next step.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the last append was partial.
    pub fn step_is_open(&self) -> bool {
        self.open
    }

    /// Which episode this is, from 0.
    pub fn episode(&self) -> u64 {
        self.episode
    }

    /// The number of the episode's first step.
    pub fn episode_start(&self) -> u64 {
        self.episode_start
    }

    /// How many items were created and not handed over yet. Nothing here bounds them: a caller whose sink
    /// has no room should wait before it creates more.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the values that the writer holds, whether a sink holds them too or not.
    pub fn held_bytes(&self) -> usize {
        self.columns.iter().map(Column::held_bytes).sum()
    }
}

fn describe(kind: &ColumnKind) -> String {
    format!("{}{:?}", kind.dtype, kind.shape)
}

#[cold]
fn length_error(column: &Column, steps: usize, got: usize) -> WriterError {
    let expected = column.step_bytes.saturating_mul(steps);
    WriterError::Length { path: column.path.clone(), steps, expected, got }
}

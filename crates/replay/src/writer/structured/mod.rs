//! Items by pattern: what to make of the steps is said once, and evaluated at every append.
//!
//! A [`StructuredWriter`] has [`Pattern`]s. After every append it looks which of them have all their
//! [`Condition`]s met and all their steps in the history, and creates their items, in the order of the
//! patterns.
//!
//! # Invariants
//!
//! 1. A pattern is applied at most once at a step. When a step is appended in parts, it is applied at the
//!    first part after which all it needs is there.
//! 2. Steps that are missing, because the episode is too young or a column was not given, are like a
//!    condition that does not hold.
//! 3. A column is kept as far back as patterns reach; one that no pattern needs is not kept at all.

pub mod condition;
pub mod error;
pub mod pattern;
pub mod priority;

mod rule;

use std::collections::HashMap;
use std::ops::Range;

use super::{ChunkLength, ColumnConfig, Sink, TrajectoryWriter};
use crate::chunk::ColumnKind;
use crate::encoding::Policy;
use rule::Rule;

pub use crate::scalar::Scalar;
pub use condition::{Condition, Term, Test};
pub use error::StructuredError;
pub use pattern::{Pattern, PatternLeaf, Take};
pub use priority::{Priority, Reduce};

/// A window may be longer than patterns reach back, so that chunks need not be short.
const LEAST_WINDOW: u64 = 256;

/// Appends steps and makes items by patterns; see the [module](self).
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::Dtype;
/// use echoic_replay::chunk::{Chunk, ColumnKind};
/// use echoic_replay::encoding::Policy;
/// use echoic_replay::writer::structured::*;
/// use echoic_replay::writer::{ChunkId, ChunkLength, OutgoingItem, Sink};
///
/// struct Steps(Vec<u64>);
/// impl Sink for Steps {
///     fn chunk(&mut self, _: ChunkId, _: &Arc<Chunk>) {}
///     fn item(&mut self, item: OutgoingItem<'_>) {
///         self.0.push(item.trajectory.steps(0));
///     }
/// }
///
/// let take = Take::Slice { start: -3, stop: 0, step: 1 };
/// let every_second = Condition::Compare {
///     term: Term::StepIndex,
///     modulo: Some(2),
///     test: Test::Equal,
///     value: Scalar::Int(0),
/// };
/// let pattern = Pattern {
///     table: 0,
///     structure: String::new(),
///     leaves: vec![PatternLeaf { path: "obs".into(), source: "obs".into(), take }],
///     conditions: vec![every_second],
///     priority: Priority::Constant(1.0),
/// };
/// let mut writer = StructuredWriter::new(ChunkLength::Auto, Policy::Never, vec![pattern])?;
/// writer.column("obs", &ColumnKind { dtype: Dtype::UInt(1), shape: vec![] })?;
/// for obs in 0..7u8 {
///     writer.append(&[Some(&[obs])], false)?;
/// }
/// let mut sink = Steps(vec![]);
/// writer.flush(&mut sink);
/// assert_eq!(sink.0, [3, 3, 3], "at the steps 2, 4 and 6");
/// # Ok::<(), StructuredError>(())
/// ```
#[derive(Debug)]
pub struct StructuredWriter {
    writer: TrajectoryWriter,
    rules: Vec<Rule>,
    /// The columns that patterns need, with how far back.
    sources: HashMap<String, u64>,
}

impl StructuredWriter {
    /// A writer for these patterns.
    ///
    /// # Errors
    ///
    /// [`StructuredError`] when a pattern can't be applied, or a fixed chunk has no steps.
    pub fn new(
        length: ChunkLength,
        encoding: Policy,
        patterns: Vec<Pattern>,
    ) -> Result<Self, StructuredError> {
        let mut sources = HashMap::new();
        for pattern in &patterns {
            pattern.check()?;
            for (path, reach) in pattern.sources() {
                let known = sources.entry(path.to_owned()).or_insert(reach);
                *known = reach.max(*known);
            }
        }
        let longest = match length {
            ChunkLength::Auto | ChunkLength::Prompt => LEAST_WINDOW,
            ChunkLength::Fixed(length) => length.into(),
        };
        let config = |reach: u64| {
            let keep_alive = u32::try_from(reach.max(longest)).unwrap_or(u32::MAX);
            ColumnConfig { keep_alive, chunk_length: length, encoding }
        };
        let mut writer = TrajectoryWriter::new(config(1))?;
        for (path, reach) in &sources {
            writer.configure(path, config(*reach))?;
        }
        Ok(Self { writer, rules: patterns.into_iter().map(Rule::new).collect(), sources })
    }

    /// The number of the column of this name, as [`TrajectoryWriter::column`].
    ///
    /// # Errors
    ///
    /// As there, and [`StructuredError::NotScalar`] when a pattern takes its steps as numbers and they
    /// aren't.
    pub fn column(&mut self, path: &str, kind: &ColumnKind) -> Result<u32, StructuredError> {
        let number = |rule: &Rule| rule.pattern().scalars().any(|scalar| scalar == path);
        if !Scalar::fits(kind) && self.rules.iter().any(number) {
            let (path, got) = (path.into(), super::describe(kind));
            return Err(StructuredError::NotScalar { path, got });
        }
        let before = self.writer.columns().len();
        let column = self.writer.column(path, kind)?;
        if self.writer.columns().len() > before {
            if !self.sources.contains_key(path) {
                self.writer.ignore(column);
            }
            self.rules.iter_mut().for_each(|rule| rule.bind(path, column, kind));
        }
        Ok(column)
    }

    /// Adds a step, or more of the open one, as [`TrajectoryWriter::append`], and applies the patterns.
    ///
    /// # Errors
    ///
    /// As there, when nothing has changed; or [`WriterError::Priority`](super::WriterError::Priority)
    /// when a priority that was computed is negative or not finite: then the step is in, but that item
    /// is not.
    pub fn append(
        &mut self,
        values: &[Option<&[u8]>],
        partial: bool,
    ) -> Result<u64, StructuredError> {
        let step = self.writer.append(values, partial)?;
        self.apply(step, false).map(|()| step)
    }

    /// Like [`append`](Self::append), with values written in place, as [`TrajectoryWriter::append_with`].
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_with(
        &mut self,
        columns: &[u32],
        partial: bool,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<u64, StructuredError> {
        let step = self.writer.append_with(columns, partial, fill)?;
        self.apply(step, false).map(|()| step)
    }

    /// Adds many complete steps, as [`TrajectoryWriter::append_batch`], and applies the patterns at each.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); when priorities were refused, the first of these errors.
    pub fn append_batch(
        &mut self,
        steps: usize,
        values: &[Option<&[u8]>],
    ) -> Result<Range<u64>, StructuredError> {
        self.writer.check_batch(steps, values)?;
        let first = self.writer.steps();
        let mut result = Ok(());
        let mut row = vec![None; values.len()];
        for index in 0..steps {
            for (value, all) in row.iter_mut().zip(values) {
                *value = all.map(|all| {
                    let bytes = all.len() / steps;
                    &all[index * bytes..(index + 1) * bytes]
                });
            }
            let appended = self.append(&row, false);
            result = result.and(appended.map(drop));
        }
        result.map(|()| first..self.writer.steps())
    }

    fn apply(&mut self, newest: u64, at_end: bool) -> Result<(), StructuredError> {
        let mut result = Ok(());
        for rule in &mut self.rules {
            let applied = rule.apply(&mut self.writer, newest, at_end);
            result = result.and(applied);
        }
        result
    }

    /// Applies the patterns that wait for the end of the episode, and ends it as
    /// [`TrajectoryWriter::end_episode`]. Without `clear`, later items can have steps of this episode.
    ///
    /// # Errors
    ///
    /// [`WriterError::Priority`](super::WriterError::Priority) as in [`append`](Self::append); the
    /// episode has ended all the same.
    pub fn end_episode(&mut self, clear: bool) -> Result<(), StructuredError> {
        let steps = self.writer.steps() + u64::from(self.writer.step_is_open());
        let result = match steps.checked_sub(1) {
            Some(newest) if steps > self.writer.episode_start() => self.apply(newest, true),
            _ => Ok(()),
        };
        self.writer.end_episode(clear);
        result
    }

    /// Hands over what is complete, as [`TrajectoryWriter::emit`].
    pub fn emit<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.writer.emit(sink)
    }

    /// Hands over all items, as [`TrajectoryWriter::flush`].
    pub fn flush<S: Sink + ?Sized>(&mut self, sink: &mut S) -> usize {
        self.writer.flush(sink)
    }

    /// Cuts what items in the queue need, as [`TrajectoryWriter::seal`].
    pub fn seal(&mut self) {
        self.writer.seal();
    }

    /// The writer beneath, to look at.
    pub fn writer(&self) -> &TrajectoryWriter {
        &self.writer
    }
}

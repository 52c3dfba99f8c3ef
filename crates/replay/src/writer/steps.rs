//! Which steps an item is made of, as a caller names them.
//!
//! Steps are counted over the whole life of a writer and never begin again at zero, so that a name kept
//! from an earlier episode can't come to mean another step.

use std::ops::Range;

use super::structured::Take;
use super::{TrajectoryWriter, WriterError};

/// The value of one column in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepRef {
    /// Number of the column.
    pub column: u32,
    /// Which step, counted from the writer's first one.
    pub step: u64,
}

/// Consecutive steps of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Number of the column.
    pub column: u32,
    /// The first step, counted from the writer's first one.
    pub first: u64,
    /// How many.
    pub len: u32,
}

impl From<StepRef> for Span {
    fn from(StepRef { column, step }: StepRef) -> Self {
        Self { column, first: step, len: 1 }
    }
}

/// The steps of an item, column by column of its signature.
///
/// A column is any sequence of spans: steps may be left out, repeated, or in another order. It can be
/// used again after [`clear`](Self::clear), which keeps its memory.
///
/// ```
/// use echoic_replay::writer::{ItemSteps, Span};
///
/// let mut steps = ItemSteps::default();
/// steps.column([Span { column: 0, first: 3, len: 5 }]);
/// steps.column([7, 5].map(|first| Span { column: 1, first, len: 1 }));
/// assert_eq!(steps.columns(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemSteps {
    spans: Vec<Span>,
    /// Where the spans of each column end.
    ends: Vec<usize>,
}

impl ItemSteps {
    /// Adds the next column.
    pub fn column(&mut self, spans: impl IntoIterator<Item = Span>) {
        self.spans.extend(spans);
        self.ends.push(self.spans.len());
    }

    /// Adds the next column: steps counted from the newest value of a column of the writer. Whether that has all of
    /// them; if not, nothing is added.
    pub(super) fn latest(
        &mut self,
        writer: &TrajectoryWriter,
        column: u32,
        take: Take,
    ) -> Result<bool, WriterError> {
        let (column, number) = (writer.get(column)?, column);
        // Most items name steps of the last run.
        let last = column.last_run().unwrap_or_default();
        if take.reach() <= last.end - last.start {
            self.add(number, take, last.end - last.start, [last]);
            return Ok(true);
        }
        let len = column.history().map(|run| run.end - run.start).sum();
        let found = take.reach() <= len;
        if found {
            self.add(number, take, len, column.history());
        }
        Ok(found)
    }

    /// Adds a column of steps counted from the end of these runs, which have `len` steps.
    fn add(
        &mut self,
        column: u32,
        take: Take,
        len: u64,
        runs: impl IntoIterator<Item = Range<u64>>,
    ) {
        let (start, stop, step) = take.range();
        let end = len - stop.unsigned_abs();
        // Positions in the runs become steps run by run; the next one that is wanted is `at`.
        let (mut at, mut seen) = (len - start.unsigned_abs(), 0);
        for run in runs {
            let after = seen + (run.end - run.start);
            while at < after.min(end) {
                let first = run.start + (at - seen);
                let len = if step == 1 { after.min(end) - at } else { 1 };
                self.spans.push(Span { column, first, len: len as u32 });
                at += if step == 1 { len } else { u64::from(step) };
            }
            seen = after;
        }
        self.ends.push(self.spans.len());
    }

    /// Forgets all columns.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.ends.clear();
    }

    /// How many columns were added.
    pub fn columns(&self) -> usize {
        self.ends.len()
    }

    /// The spans of each column.
    pub fn iter(&self) -> impl Iterator<Item = &[Span]> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.spans[std::mem::replace(&mut start, *end)..*end])
    }
}

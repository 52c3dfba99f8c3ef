//! Which steps an item is made of, as a caller names them.
//!
//! Steps are counted over the whole life of a writer and never begin again at zero, so that a name kept
//! from an earlier episode can't come to mean another step.

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
        let (start, stop, step) = take.range();
        let len: u64 = writer.history(column)?.map(|run| run.end - run.start).sum();
        let back = |steps: i64| len.checked_sub(steps.unsigned_abs());
        let (Some(first), Some(end)) = (back(start), back(stop)) else { return Ok(false) };
        // Positions in the history become steps run by run; the next one that is wanted is `at`.
        let (mut at, mut seen) = (first, 0);
        for run in writer.history(column)? {
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
        Ok(true)
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

//! What is given for each step, or for each observation, and copies of it.

use std::fmt;
use std::sync::Arc;

use echoic_memory::slab::Field;
use echoic_replay::Dtype;

use super::Value;
use super::episodes::Episodes;
use super::normal::{Float, Normal};
use super::part::{Borrowed, Part};
use crate::error::Error;

/// What the rows of a column belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// One for each step.
    Steps,
    /// One for each step, and behind the last step of each episode the observation that it led to.
    Observations,
}

/// Rows that their owner lends.
pub struct Column {
    /// What it is called in errors.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its rows, one after the other.
    pub bytes: Borrowed,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// What the rows belong to.
    pub axis: Axis,
    /// Whether the bytes are of a file that is mapped.
    pub on_disk: bool,
    /// How its rows are normalised.
    pub normal: Option<Arc<Normal>>,
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({}: {:?} of {} bytes)", self.name, self.axis, self.row_bytes)
    }
}

impl Column {
    /// How many rows there are to be.
    fn rows(&self, episodes: &Episodes) -> usize {
        match self.axis {
            Axis::Steps => episodes.steps(),
            Axis::Observations => episodes.steps() + episodes.len(),
        }
    }

    /// Checks that there are as many rows as it says.
    pub(super) fn check(&self, episodes: &Episodes) -> Result<(), Error> {
        let (expected, bytes) = (self.rows(episodes), (*self.bytes).as_ref().len());
        if expected.checked_mul(self.row_bytes) == Some(bytes) {
            return Ok(());
        }
        let got = bytes.checked_div(self.row_bytes).unwrap_or(0);
        Err(Error::rows(&self.name, expected, got))
    }

    /// Mean and spread of the rows that steps have as their own.
    ///
    /// # Errors
    ///
    /// [`Error`] when there are not the rows that there should be, or some are not finite.
    pub fn measure(&self, float: Float, episodes: &Episodes) -> Result<Normal, Error> {
        self.check(episodes)?;
        let all = (*self.bytes).as_ref();
        let rows = episodes.ranges().enumerate().flat_map(|(episode, steps)| {
            let skipped = if self.axis == Axis::Observations { episode } else { 0 };
            steps.map(move |step| self.slice(all, step + skipped))
        });
        Normal::of(&self.name, float, self.row_bytes / float.bytes(), rows)
    }

    fn slice<'a>(&self, all: &'a [u8], row: usize) -> &'a [u8] {
        &all[row * self.row_bytes..][..self.row_bytes]
    }

    /// Copies a row, normalised.
    fn write(&self, all: &[u8], row: usize, to: &mut [u8]) {
        to.copy_from_slice(self.slice(all, row));
        if let Some(normal) = &self.normal {
            normal.apply(to);
        }
    }

    /// The rows where they are.
    pub(super) fn into_part(self, episodes: &Episodes) -> Result<Part, Error> {
        let expected = self.rows(episodes);
        let (stride, on_disk) = (self.row_bytes, self.on_disk);
        let missing = || Error::rows(&self.name, expected, 0);
        Part::borrowed(self.bytes, stride, expected, on_disk).ok_or_else(missing)
    }

    /// A copy of the rows.
    pub(super) fn copied(&self, episodes: &Episodes) -> Result<Part, Error> {
        let (all, bytes) = ((*self.bytes).as_ref(), self.row_bytes);
        Ok(Part::own(self.rows(episodes), bytes, |first, stride, rows| {
            for (number, row) in rows.chunks_exact_mut(stride).enumerate() {
                self.write(all, first + number, &mut row[..bytes]);
            }
        })?)
    }
}

/// Whether the next observation of each step is the observation of the step after it, wherever its episode
/// has one.
pub(super) fn is_shifted(column: &Column, next: &Column, episodes: &Episodes) -> bool {
    let bytes = column.row_bytes;
    if (next.row_bytes, next.axis, column.axis) != (bytes, Axis::Steps, Axis::Steps) {
        return false;
    }
    let (own, others) = ((*column.bytes).as_ref(), (*next.bytes).as_ref());
    episodes.ranges().all(|steps| {
        let (from, to) = (steps.start * bytes, steps.end * bytes);
        own[from + bytes..to] == others[from..to - bytes]
    })
}

/// An axis of observations from a column and its shifted copy.
pub(super) fn joined(column: &Column, next: &Column, episodes: &Episodes) -> Result<Part, Error> {
    let (own, others, bytes) = ((*column.bytes).as_ref(), (*next.bytes).as_ref(), column.row_bytes);
    let mut sources = episodes.ranges().flat_map(|steps| {
        let last = steps.end - 1;
        steps.map(|step| (false, step)).chain([(true, last)])
    });
    let rows = episodes.steps() + episodes.len();
    Ok(Part::own(rows, bytes, |_, stride, rows| {
        for (row, (is_next, step)) in rows.chunks_exact_mut(stride).zip(&mut sources) {
            let (column, all) = if is_next { (next, others) } else { (column, own) };
            column.write(all, step, &mut row[..bytes]);
        }
    })?)
}

/// Rows of steps that have these fields.
pub(super) fn side_by_side(
    episodes: &Episodes,
    columns: &[Column],
    fields: &[(Value, Field)],
    row_bytes: usize,
) -> Result<Part, Error> {
    let sources = fields.iter().map(|(value, field)| {
        let column = &columns[value.column];
        (column, (*column.bytes).as_ref(), usize::from(value.next), *field)
    });
    let sources: Vec<_> = sources.collect();
    Ok(Part::own(episodes.steps(), row_bytes, |first, stride, rows| {
        for (column, all, next, field) in &sources {
            let mut episode = episodes.of(first);
            for (number, row) in rows.chunks_exact_mut(stride).enumerate() {
                let step = first + number;
                if step == episodes.range(episode).end {
                    episode += 1;
                }
                let row_of = match column.axis {
                    Axis::Steps => step,
                    Axis::Observations => step + episode + next,
                };
                column.write(all, row_of, &mut row[field.offset..][..field.bytes]);
            }
        }
    })?)
}

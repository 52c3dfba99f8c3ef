//! Which steps an automatic item has, and what else there is to say about it.

use super::condition::{Condition, Term};
use super::error::StructuredError;
use super::priority::Priority;
use crate::chunk::ColumnKind;
use crate::spec::{ANY_LENGTH, Spec};
use crate::trajectory::{Column, Signature};

/// Items that are made by themselves: whenever all conditions hold and all steps exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// The caller's number of a table.
    pub table: u32,
    /// The tree of the item, as in [`Signature::structure`](crate::trajectory::Signature::structure).
    pub structure: String,
    /// The item's columns.
    pub leaves: Vec<PatternLeaf>,
    /// When it is applied: at every step, if there are none.
    pub conditions: Vec<Condition>,
    /// Of the items.
    pub priority: Priority,
}

/// One column of the items: steps of one column of the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternLeaf {
    /// Path of the item's column.
    pub path: String,
    /// Name of the writer's column.
    pub source: String,
    /// Which steps.
    pub take: Take,
}

/// Steps relative to the newest, as in an index or slice of the history: -1 is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// This step, without a time axis.
    One(i64),
    /// Every `step`-th from `start` to before `stop`, where 0 is the end.
    Slice {
        /// The first: negative.
        start: i64,
        /// Where it ends: after `start` and at most 0.
        stop: i64,
        /// Distance between steps: positive.
        step: u32,
    },
}

impl Take {
    /// Which steps as start, stop and step.
    pub(in crate::writer) fn range(self) -> (i64, i64, u32) {
        match self {
            Self::One(index) => (index, index.saturating_add(1), 1),
            Self::Slice { start, stop, step } => (start, stop, step),
        }
    }

    /// How many steps these are.
    pub fn steps(self) -> u64 {
        match self {
            Self::One(_) => 1,
            Self::Slice { start, stop, step } => {
                stop.abs_diff(start).div_ceil(u64::from(step).max(1))
            }
        }
    }

    /// Whether it is a step without a time axis.
    pub fn is_one(self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Whether there are such steps: some, of the past, in the order of time.
    pub(in crate::writer) fn is_possible(self) -> bool {
        let (start, stop, step) = self.range();
        start >= -i64::from(u32::MAX) && start < stop && stop <= 0 && step > 0
    }

    /// How far back it goes, at least 1.
    pub(in crate::writer) fn reach(self) -> u64 {
        self.range().0.unsigned_abs()
    }
}

impl Pattern {
    /// Names of the writer's columns that it needs; one may come several times.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.sources().map(|(path, _)| path)
    }

    /// Compares its items with what a table says of them, as far as that goes before there is a step: `Err` with how
    /// they differ.
    pub fn check_leaves(&self, spec: &Spec) -> Result<(), String> {
        let (expected, got) = (spec.leaves(), &self.leaves);
        if expected.len() != got.len() {
            let (expected, got) = (expected.len(), got.len());
            return Err(format!("expected an item of {expected} leaves, got {got}"));
        }
        for (expected, got) in expected.iter().zip(got) {
            if expected.path != got.path {
                let path = if got.path.is_empty() { "(root)" } else { &got.path };
                return Err(format!(
                    "expected the leaf `{expected}`, got one of the path `{path}`"
                ));
            }
            let steps = got.take.steps();
            let fits = |axis: &usize| *axis == ANY_LENGTH || *axis as u64 == steps;
            if !got.take.is_one() && !expected.shape.first().is_some_and(fits) {
                return Err(format!("expected the leaf `{expected}`, got one of {steps} steps"));
            }
        }
        Ok(())
    }

    /// The same, once it is known of what kind its columns are; before, nothing is refused.
    pub fn check_items<'a>(
        &self,
        spec: &Spec,
        kind: impl Fn(&str) -> Option<&'a ColumnKind>,
    ) -> Result<(), String> {
        let column = |leaf: &PatternLeaf| {
            let (path, kind) = (leaf.path.clone(), kind(&leaf.source)?.clone());
            Some(Column { path, kind, squeezed: leaf.take.is_one() })
        };
        let Some(columns) = self.leaves.iter().map(column).collect() else { return Ok(()) };
        let signature = Signature { structure: self.structure.clone(), columns };
        let steps: Vec<u64> = self.leaves.iter().map(|leaf| leaf.take.steps()).collect();
        signature.check(spec, &steps)
    }

    /// Refuses what can't be applied.
    pub(super) fn check(&self) -> Result<(), StructuredError> {
        if self.leaves.is_empty() {
            return Err(StructuredError::Empty);
        }
        for leaf in &self.leaves {
            if !leaf.take.is_possible() {
                let (start, stop, step) = leaf.take.range();
                let path = leaf.path.clone();
                return Err(StructuredError::Slice { path, start, stop, step });
            }
        }
        let by_zero = |condition: &Condition| match condition {
            Condition::Compare { modulo, .. } => *modulo == Some(0),
            Condition::EndOfEpisode => false,
        };
        if self.conditions.iter().any(by_zero) {
            return Err(StructuredError::Modulo);
        }
        self.priority.check(self.leaves.len())
    }

    /// Whether it waits for the end of the episode.
    pub(super) fn at_end(&self) -> bool {
        self.conditions.contains(&Condition::EndOfEpisode)
    }

    /// The columns that must hold one number in a step.
    pub(super) fn scalars(&self) -> impl Iterator<Item = &str> {
        let data = self.conditions.iter().filter_map(|condition| match condition {
            Condition::Compare { term: Term::Data(path), .. } => Some(path.as_str()),
            _ => None,
        });
        let leaf = self.priority.leaf().and_then(|leaf| self.leaves.get(leaf));
        data.chain(leaf.map(|leaf| leaf.source.as_str()))
    }

    /// The columns that it needs, with how many steps back.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&str, u64)> {
        let leaves = self.leaves.iter().map(|leaf| (leaf.source.as_str(), leaf.take.reach()));
        leaves.chain(self.scalars().map(|path| (path, 1)))
    }
}

//! A pattern at work: bound to the columns of its writer, and when it was last applied.

use std::sync::Arc;

use super::condition::{Condition, Term};
use super::error::StructuredError;
use super::pattern::{Pattern, Take};
use super::priority::Priority;
use crate::chunk::ColumnKind;
use crate::scalar::Scalar;
use crate::spec::Dtype;
use crate::trajectory::{Column, Signature};
use crate::writer::{ItemSteps, Span, StepRef, TrajectoryWriter};

/// A column of the writer.
#[derive(Debug, Clone)]
struct Source {
    column: u32,
    kind: ColumnKind,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Rule {
    pattern: Pattern,
    at_end: bool,
    /// For each leaf, its column once that exists.
    leaves: Vec<Option<Source>>,
    /// For each condition on data, its column once that exists.
    data: Vec<Option<(u32, Dtype)>>,
    /// Once all leaves have their columns.
    signature: Option<Arc<Signature>>,
    /// The last step that was counted, and how many since the last item.
    counted: Option<u64>,
    since_applied: u64,
    applied: Option<u64>,
    /// Used again for every item.
    steps: ItemSteps,
    values: Vec<f64>,
}

impl Rule {
    pub fn new(pattern: Pattern) -> Self {
        Self {
            at_end: pattern.at_end(),
            leaves: vec![None; pattern.leaves.len()],
            data: vec![None; pattern.conditions.len()],
            signature: None,
            counted: None,
            since_applied: 0,
            applied: None,
            steps: ItemSteps::default(),
            values: Vec::new(),
            pattern,
        }
    }

    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// A column has come into being.
    pub fn bind(&mut self, path: &str, column: u32, kind: &ColumnKind) {
        for (leaf, source) in self.pattern.leaves.iter().zip(&mut self.leaves) {
            if leaf.source == path {
                *source = Some(Source { column, kind: kind.clone() });
            }
        }
        for (condition, source) in self.pattern.conditions.iter().zip(&mut self.data) {
            if matches!(condition, Condition::Compare { term: Term::Data(data), .. } if data == path)
            {
                *source = Some((column, kind.dtype));
            }
        }
        let columns = self.pattern.leaves.iter().zip(&self.leaves).map(|(leaf, source)| {
            Some(Column {
                path: leaf.path.clone(),
                kind: source.as_ref()?.kind.clone(),
                squeezed: matches!(leaf.take, Take::One(_)),
            })
        });
        let structure = self.pattern.structure.clone();
        let columns = columns.collect::<Option<_>>();
        self.signature = columns.map(|columns| Arc::new(Signature { structure, columns }));
    }

    /// Creates the item of the newest step, if it is due and has not been created.
    pub fn apply(
        &mut self,
        writer: &mut TrajectoryWriter,
        newest: u64,
        at_end: bool,
    ) -> Result<(), StructuredError> {
        if self.counted != Some(newest) {
            self.counted = Some(newest);
            self.since_applied += 1;
        }
        if self.applied == Some(newest) || self.at_end != at_end {
            return Ok(());
        }
        if self.signature.is_none() || !self.due(writer, newest) || !self.gather(writer, newest) {
            return Ok(());
        }
        let Some(signature) = &self.signature else { return Ok(()) };
        let priority = match self.pattern.priority {
            Priority::Constant(priority) => priority,
            Priority::Column { leaf, reduce, absolute } => {
                self.values.clear();
                let source = self.leaves[leaf].as_ref().expect("the signature is made of all");
                for span in self.steps.iter().nth(leaf).unwrap_or_default() {
                    for step in span.first..span.first + u64::from(span.len) {
                        let at = StepRef { column: source.column, step };
                        let value =
                            read(writer, at, source.kind.dtype).map_or(f64::NAN, Scalar::to_f64);
                        self.values.push(if absolute { value.abs() } else { value });
                    }
                }
                reduce.apply(&self.values)
            }
        };
        writer.create_item(self.pattern.table, priority, signature, &self.steps)?;
        self.applied = Some(newest);
        self.since_applied = 0;
        Ok(())
    }

    /// Whether all conditions hold.
    fn due(&self, writer: &TrajectoryWriter, newest: u64) -> bool {
        self.pattern.conditions.iter().zip(&self.data).all(|(condition, data)| {
            let Condition::Compare { term, modulo, test, value } = condition else { return true };
            let left = match term {
                Term::StepIndex => Some(Scalar::Int((newest - writer.episode_start()).into())),
                Term::StepsSinceApplied => Some(Scalar::Int(self.since_applied.into())),
                Term::Data(_) => data.and_then(|(column, dtype)| {
                    read(writer, StepRef { column, step: newest }, dtype)
                }),
            };
            left.is_some_and(|left| {
                test.holds(modulo.map_or(left, |modulo| left.remainder(modulo)), *value)
            })
        })
    }

    /// Collects the steps of the item; `false` when one is missing.
    fn gather(&mut self, writer: &TrajectoryWriter, newest: u64) -> bool {
        self.steps.clear();
        for (leaf, source) in self.pattern.leaves.iter().zip(&self.leaves) {
            let Some(Source { column, .. }) = *source else { return false };
            let (start, stop, step) = leaf.take.range();
            let at = |back: i64| (newest + 1).checked_sub(back.unsigned_abs());
            let (Some(first), Some(end)) = (at(start), at(stop)) else { return false };
            if step == 1 {
                let span = Span { column, first, len: (end - first) as u32 };
                if !writer.has(span) {
                    return false;
                }
                self.steps.column([span]);
            } else {
                let spans = (first..end).step_by(step as usize);
                let spans = spans.map(|first| Span { column, first, len: 1 });
                if !spans.clone().all(|span| writer.has(span)) {
                    return false;
                }
                self.steps.column(spans);
            }
        }
        true
    }
}

/// The number in a step, if it has one.
fn read(writer: &TrajectoryWriter, at: StepRef, dtype: Dtype) -> Option<Scalar> {
    // Asked first, for a refusal of the writer has a text.
    if !writer.has(at.into()) {
        return None;
    }
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..dtype.itemsize()];
    writer.read(at, bytes).ok()?;
    Some(Scalar::decode(dtype, bytes))
}

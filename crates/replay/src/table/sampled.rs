//! Items on their way out of a table.

use std::sync::Arc;

use echoic_memory::slab::Field;

use super::core::{Drawn, Infos};
use super::{Form, Table};
use crate::trajectory::{Gather, Signature, Trajectory};

/// Drawn items, whose memory stays as it is until this is dropped.
#[derive(Debug)]
pub struct Sampled {
    table: Arc<Table>,
    infos: Infos,
    drawn: Option<Drawn>,
}

/// How the drawn items lie in a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Stack {
    /// Rows of the table's spec.
    Rows,
    /// Trajectories of one form.
    Trajectories {
        /// What they look like.
        signature: Arc<Signature>,
        /// For each column, how many steps each trajectory has.
        steps: Vec<Vec<u64>>,
    },
    /// Trajectories of different forms, which make no batch.
    Mixed,
}

impl Sampled {
    pub(super) fn new(table: Arc<Table>, infos: Infos, drawn: Drawn) -> Self {
        Self { table, infos, drawn: Some(drawn) }
    }

    /// What is known about the items.
    pub fn infos(&self) -> &Infos {
        &self.infos
    }

    /// As [`Sampled::infos`], to keep; the items are no longer held.
    pub fn into_infos(mut self) -> Infos {
        std::mem::take(&mut self.infos)
    }

    /// How many items were drawn.
    pub fn len(&self) -> usize {
        self.infos.keys.len()
    }

    /// Whether none was drawn.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the items lie in a batch.
    pub fn stack(&self) -> Stack {
        let trajectories = self.trajectories();
        let Some(first) = trajectories.first() else { return Stack::Rows };
        let signature = first.signature();
        let same = |one: &Arc<Trajectory>| {
            Arc::ptr_eq(one.signature(), signature) || one.signature() == signature
        };
        if !trajectories.iter().all(same) {
            return Stack::Mixed;
        }
        let columns = 0..signature.columns.len();
        let steps =
            columns.map(|column| trajectories.iter().map(|one| one.steps(column)).collect());
        Stack::Trajectories { signature: Arc::clone(signature), steps: steps.collect() }
    }

    /// The trajectories; none when the table has rows.
    pub fn trajectories(&self) -> &[Arc<Trajectory>] {
        match &self.drawn {
            Some(Drawn::Trajectories(trajectories)) => trajectories,
            _ => &[],
        }
    }

    /// Copies every leaf of all items, one item after the other, into its column.
    ///
    /// # Panics
    ///
    /// When a column is not as long as all its values, or trajectories differ in form.
    pub fn gather(&self, columns: &mut [&mut [u8]]) {
        match &self.drawn {
            Some(Drawn::Rows(pinned)) => {
                let Form::Rows(spec) = &self.table.config.form else { return };
                let mut offset = 0;
                let fields: Vec<Field> = spec
                    .leaf_bytes()
                    .iter()
                    .map(|bytes| {
                        offset += bytes;
                        Field { offset: offset - bytes, bytes: *bytes }
                    })
                    .collect();
                pinned.gather(&fields, columns);
            }
            Some(Drawn::Trajectories(trajectories)) => {
                let mut gather = Gather::default();
                for (column, target) in columns.iter_mut().enumerate() {
                    let mut rest = &mut **target;
                    for trajectory in trajectories {
                        let bytes = trajectory.column_bytes(column);
                        let (part, after) = rest.split_at_mut(bytes);
                        trajectory.gather_column(column, part, &mut gather);
                        rest = after;
                    }
                    assert!(rest.is_empty(), "column {column} has {} bytes too many", rest.len());
                }
                gather.finish();
            }
            None => {}
        }
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        // Rows that were removed meanwhile can be used again when nobody reads them.
        let rows = matches!(self.drawn, Some(Drawn::Rows(_)));
        self.drawn = None;
        if rows {
            self.table.room.notify();
        }
    }
}

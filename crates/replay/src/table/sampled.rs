//! Items on their way out of a table.

use std::sync::Arc;

use echoic_memory::slab::Field;

use super::core::{Drawn, Infos};
use super::{Form, Table, TableError};
use crate::durable::Receipt;
use crate::encoding::Encoding;
use crate::stream::Wait;
use crate::trajectory::{Gather, Signature, Trajectory};

/// How many bytes are copied while one is decoded.
const DECODING: usize = 4;

/// Drawn items, whose memory stays as it is until this is dropped.
#[derive(Debug)]
pub struct Sampled {
    table: Arc<Table>,
    infos: Infos,
    drawn: Option<Drawn>,
    receipt: Option<Receipt>,
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
    pub(super) fn new(
        table: Arc<Table>,
        infos: Infos,
        drawn: Drawn,
        receipt: Option<Receipt>,
    ) -> Self {
        Self { table, infos, drawn: Some(drawn), receipt }
    }

    /// What has to be [kept](Table::is_durable) before the batch is handed on, if anything: that the items were
    /// drawn, in a table of [`Durability::Sync`](super::Durability::Sync) whose items go after some draws.
    /// A crash before that has them drawn again.
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipt
    }

    /// Waits until the batch may be handed on: see [`Sampled::receipt`].
    ///
    /// # Errors
    ///
    /// As [`Table::keep`]; then the batch is not to be used.
    pub fn keep(&self, wait: Wait<'_>) -> Result<(), TableError> {
        self.receipt.map_or(Ok(()), |receipt| self.table.keep_until(receipt, wait))
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
        let same = |one: &Trajectory| {
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
    pub fn trajectories(&self) -> &[Trajectory] {
        match &self.drawn {
            Some(Drawn::Trajectories(trajectories)) => trajectories,
            _ => &[],
        }
    }

    /// About how many bytes [`Sampled::gather`] has to copy; one that is decoded counts for several, and a chunk is
    /// decoded whole.
    pub fn gather_cost(&self) -> usize {
        let slices = self.trajectories().iter().flat_map(|trajectory| trajectory.slices());
        let mut last = None;
        let cost = slices.map(|slice| {
            let is_new = last.replace(Arc::as_ptr(slice.chunk)) != Some(Arc::as_ptr(slice.chunk));
            match slice.chunk.encoding() {
                Encoding::Raw => {
                    slice.chunk.raw_len() / slice.chunk.len() as usize * slice.len as usize
                }
                _ if is_new => slice.chunk.raw_len().saturating_mul(DECODING),
                _ => 0,
            }
        });
        match (&self.drawn, &self.table.config.form) {
            (Some(Drawn::Rows(_)), Form::Rows(spec)) => spec.nbytes().saturating_mul(self.len()),
            _ => cost.fold(0, usize::saturating_add),
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

//! The items of a sample: what is known about them, then their leaves, column by column.
//!
//! Columns begin at multiples of [`ALIGNMENT`] from the start of the payload, so that a payload that is
//! read to such an address can be looked at where it is.

use std::ops::Range;
use std::sync::Arc;

use echoic_replay::Spec;
use echoic_replay::codec::{Reader, write_values};
use echoic_replay::table::Infos;
use echoic_replay::trajectory::Signature;

use super::answer::weight;
use super::{MAX_BATCH, MAX_ITEMS, signature};
use crate::wire::WireError;

/// Where columns may begin.
pub const ALIGNMENT: usize = 64;

/// How the items of a batch lie in its columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// As the table's spec says: each column has the same leaf of every item.
    Rows,
    /// Trajectories of one form, each with a number of steps of its own.
    Trajectories {
        /// What they look like.
        signature: Arc<Signature>,
        /// For each column, how many steps each trajectory has.
        steps: Vec<Vec<u64>>,
    },
}

/// All of a batch but the columns.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchHead {
    /// To which request.
    pub id: u64,
    /// What is known about the items.
    pub infos: Infos,
    /// How they lie in the columns.
    pub layout: Layout,
}

impl BatchHead {
    /// Appends the payload up to the columns.
    pub fn write(out: &mut Vec<u8>, id: u64, infos: &Infos, layout: &Layout) {
        let Infos { keys, probabilities, priorities, times_sampled, versions, .. } = infos;
        let Infos { table_size, total_weight, .. } = infos;
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&u32::try_from(keys.len()).unwrap_or(u32::MAX).to_le_bytes());
        let form = matches!(layout, Layout::Trajectories { .. });
        out.extend_from_slice(&[form.into(), 0, 0, 0]);
        out.extend_from_slice(&table_size.to_le_bytes());
        out.extend_from_slice(&total_weight.to_le_bytes());
        write_values(out, keys, u64::to_le_bytes);
        write_values(out, probabilities, f64::to_le_bytes);
        write_values(out, priorities, f64::to_le_bytes);
        write_values(out, versions, u64::to_le_bytes);
        write_values(out, times_sampled, u32::to_le_bytes);
        if let Layout::Trajectories { signature, steps } = layout {
            signature::write(out, signature);
            steps.iter().for_each(|steps| write_values(out, steps, u64::to_le_bytes));
        }
    }

    /// Reads the start of a payload; how many bytes it has.
    pub fn read(payload: &[u8]) -> Result<(Self, usize), WireError> {
        let mut reader = Reader::new(payload);
        let id = reader.u64("number of a request")?;
        let count = reader.u32_at_most("number of items", MAX_ITEMS)?;
        let of_trajectories = reader.flag("form of a batch")?;
        match reader.array("reserved")? {
            [0, 0, 0] => {}
            [got, ..] => {
                return Err(WireError::meaningless("reserved", got.into()));
            }
        }
        let infos = Infos {
            table_size: reader.u64("size of the table")?,
            total_weight: weight(&mut reader)?,
            keys: reader.values("keys", count, u64::from_le_bytes)?,
            probabilities: reader.values("probabilities", count, f64::from_le_bytes)?,
            priorities: reader.values("priorities", count, f64::from_le_bytes)?,
            versions: reader.values("versions", count, u64::from_le_bytes)?,
            times_sampled: reader.values("times sampled", count, u32::from_le_bytes)?,
        };
        let layout = if of_trajectories {
            let signature = Arc::new(signature::read(&mut reader)?);
            let steps = signature.columns.iter();
            let steps = steps.map(|_| reader.values("steps", count, u64::from_le_bytes));
            let steps = steps.collect::<Result<_, _>>()?;
            Layout::Trajectories { signature, steps }
        } else {
            Layout::Rows
        };
        let used = payload.len().saturating_sub(reader.left());
        Ok((Self { id, infos, layout }, used))
    }
}

impl Layout {
    /// Where the columns of `count` items are in a payload whose head has `head` bytes. `spec` is the
    /// table's, for rows.
    ///
    /// # Errors
    ///
    /// [`WireError::Codec`] when they do not fit.
    pub fn columns(
        &self,
        count: usize,
        head: usize,
        spec: Option<&Spec>,
    ) -> Result<Vec<Range<usize>>, WireError> {
        let sizes: Vec<Option<usize>> = match self {
            Self::Rows => {
                let leaves = spec.map(Spec::leaf_bytes).unwrap_or_default();
                leaves.iter().map(|bytes| bytes.checked_mul(count)).collect()
            }
            Self::Trajectories { signature, steps } => {
                let columns = signature.columns.iter().zip(steps);
                let sizes = columns.map(|(column, steps)| {
                    let total =
                        steps.iter().try_fold(0u64, |sum, steps| sum.checked_add(*steps))?;
                    column.kind.step_bytes()?.checked_mul(usize::try_from(total).ok()?)
                });
                sizes.collect()
            }
        };
        let mut end = head;
        let place = |size: Option<usize>| {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(size?)?;
            (end <= MAX_BATCH as usize).then_some(start..end)
        };
        let columns: Option<Vec<_>> = sizes.into_iter().map(place).collect();
        let (limit, got) = (MAX_BATCH.into(), u64::MAX);
        columns.ok_or(WireError::too_large("length of a batch", limit, got))
    }
}

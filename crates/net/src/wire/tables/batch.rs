//! The items of a sample: what is known about them, then their leaves, column by column.
//!
//! Columns begin at multiples of [`ALIGNMENT`] from the start of the payload, so that a payload that is
//! read to such an address can be looked at where it is.

use std::ops::Range;
use std::sync::Arc;

use echoic_replay::Spec;
use echoic_replay::codec::{Decode, Encode, Reader, write_count};
use echoic_replay::table::Infos;
use echoic_replay::trajectory::Signature;

use super::answer::check_weight;
use super::{MAX_BATCH, MAX_ITEMS};
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
        id.encode(out);
        write_count(out, keys.len());
        let form = matches!(layout, Layout::Trajectories { .. });
        out.extend_from_slice(&[form.into(), 0, 0, 0]);
        table_size.encode(out);
        total_weight.encode(out);
        u64::encode_all(keys, out);
        f64::encode_all(probabilities, out);
        f64::encode_all(priorities, out);
        u64::encode_all(versions, out);
        u32::encode_all(times_sampled, out);
        if let Layout::Trajectories { signature, steps } = layout {
            signature.encode(out);
            steps.iter().for_each(|steps| u64::encode_all(steps, out));
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
            total_weight: check_weight(reader.f64("weight of a table")?)?,
            keys: u64::decode_all(&mut reader, "keys", count as usize)?,
            probabilities: f64::decode_all(&mut reader, "probabilities", count as usize)?,
            priorities: f64::decode_all(&mut reader, "priorities", count as usize)?,
            versions: u64::decode_all(&mut reader, "versions", count as usize)?,
            times_sampled: u32::decode_all(&mut reader, "times sampled", count as usize)?,
        };
        let layout = if of_trajectories {
            let signature: Arc<Signature> = reader.get("signature")?;
            let steps = signature.columns.iter();
            let steps = steps.map(|_| u64::decode_all(&mut reader, "steps", count as usize));
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

//! What an item is made of: for each leaf, slices of chunks.

mod gather;

use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::chunk::{ColumnKind, Slice, SliceRef};
use crate::encoding::Encoding;
use crate::episode::Episode;
use crate::fields;
use crate::spec::{ANY_LENGTH, Leaf, Spec};
pub(crate) use gather::Gather;

/// One leaf of a trajectory, whatever its length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// Where the leaf stands in the tree: keys joined by `/`, empty for a tree that is one leaf.
    pub path: String,
    /// What its values are.
    pub kind: ColumnKind,
    /// Whether it is one step without a time axis.
    pub squeezed: bool,
}

/// The form of trajectories: the same for many, so stored once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The tree that the leaves belong to, in a notation of the layer above; opaque here.
    pub structure: String,
    /// The leaves in the order of the columns.
    pub columns: Vec<Column>,
}

fields! {
    Column { path: String, kind: ColumnKind, squeezed: bool }
    Signature { structure: String, columns: Vec<Column> }
}

impl Signature {
    /// Compares trajectories of this form, whose columns have this many steps, with the leaves that a table
    /// asks for. Where a leaf's first axis may have any length, it is the axis of time.
    ///
    /// # Errors
    ///
    /// What differs.
    pub fn check(&self, spec: &Spec, steps: &[u64]) -> Result<(), String> {
        let leaves = spec.leaves();
        if leaves.len() != self.columns.len() {
            let (expected, got) = (leaves.len(), self.columns.len());
            return Err(format!("expected an item of {expected} leaves, got {got}"));
        }
        for ((leaf, column), steps) in leaves.iter().zip(&self.columns).zip(steps) {
            let time = (!column.squeezed).then_some(*steps as usize);
            let shape = time.iter().chain(&column.kind.shape);
            let fits = leaf.shape.len() == shape.clone().count()
                && leaf.shape.iter().zip(shape.clone()).enumerate().all(
                    |(axis, (expected, got))| {
                        expected == got || (axis == 0 && *expected == ANY_LENGTH && time.is_some())
                    },
                );
            if leaf.path != column.path || leaf.dtype != column.kind.dtype || !fits {
                let (path, shape) = (column.path.clone(), shape.copied().collect());
                let got = Leaf { path, dtype: column.kind.dtype, shape };
                // Its axes look like those of steps, but none of them is time.
                let one = leaf.has_any_length() && time.is_none();
                let one = if one { ", which is one step without an axis of time" } else { "" };
                return Err(format!("expected the leaf `{leaf}`, got `{got}`{one}"));
            }
        }
        Ok(())
    }
}

/// Slices of chunks for each leaf.
///
/// The items of a writer mostly differ in where they begin in the same chunks. So they share all but that, and a
/// trajectory takes 16 bytes.
#[derive(Debug, Clone)]
pub struct Trajectory {
    parts: Arc<Parts>,
    /// How many steps after those of `parts` its slices begin.
    shift: u32,
}

/// What trajectories share.
#[derive(Debug)]
struct Parts {
    signature: Arc<Signature>,
    /// The slices of all columns, one after the other.
    slices: Box<[Slice]>,
    /// Where the slices of each column end; none when each has just one.
    ends: Option<Box<[u32]>>,
    /// Whose steps these are, each once: looked up here, so that a table need not look at chunks to count.
    episodes: SmallVec<[Episode; 1]>,
}

/// Slices that make no trajectory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrajectoryError {
    /// Give slices for every column.
    #[error("a trajectory has {expected} columns, got {got}")]
    Columns {
        /// Columns of the signature.
        expected: usize,
        /// Columns given.
        got: usize,
    },
    /// Slice chunks of this column's kind.
    #[error("column `{path}`: the chunk has steps of another dtype or shape")]
    Kind {
        /// Which column.
        path: String,
    },
    /// Slice steps that the chunk has.
    #[error("column `{path}`: steps {offset} to {end} of a chunk that has {len}")]
    Range {
        /// Which column.
        path: String,
        /// First step asked for.
        offset: u64,
        /// End of what was asked for.
        end: u64,
        /// Steps of the chunk.
        len: u32,
    },
    /// Give at least one step, and just one to a column without a time axis.
    #[error("column `{path}`: {got} steps, expected {expected}")]
    Steps {
        /// Which column.
        path: String,
        /// What would do.
        expected: &'static str,
        /// Steps given.
        got: u64,
    },
}

impl Trajectory {
    /// Checks slices, given for each column, against the signature.
    pub fn new(
        signature: Arc<Signature>,
        columns: Vec<Vec<Slice>>,
    ) -> Result<Self, TrajectoryError> {
        let mut end = 0;
        let ends = columns.iter().map(|slices| {
            end += slices.len() as u32;
            end
        });
        let ends: SmallVec<[u32; 8]> = ends.collect();
        Self::joined(signature, columns.into_iter().flatten().collect(), &ends)
    }

    /// As [`Trajectory::new`], of slices that lie one column after the other; where those of each end.
    pub(crate) fn joined(
        signature: Arc<Signature>,
        slices: Box<[Slice]>,
        ends: &[u32],
    ) -> Result<Self, TrajectoryError> {
        if ends.len() != signature.columns.len() {
            let (expected, got) = (signature.columns.len(), ends.len());
            return Err(TrajectoryError::Columns { expected, got });
        }
        let (mut start, mut plain) = (0, true);
        for (column, end) in signature.columns.iter().zip(ends) {
            check(column, shifted(&slices[start as usize..*end as usize], 0))?;
            plain &= end - start == 1;
            start = *end;
        }
        let ends = (!plain).then(|| ends.into());
        Ok(Self::of(signature, slices, ends))
    }

    /// Slices that were checked before, already one column after the other: see the fields of [`Parts`].
    pub(crate) fn checked(
        signature: Arc<Signature>,
        slices: Box<[Slice]>,
        ends: Option<Box<[u32]>>,
    ) -> Self {
        Self::of(signature, slices, ends).shifted(0)
    }

    fn of(signature: Arc<Signature>, slices: Box<[Slice]>, ends: Option<Box<[u32]>>) -> Self {
        let episodes = episodes(&slices);
        Self { parts: Arc::new(Parts { signature, slices, ends, episodes }), shift: 0 }
    }

    /// The one whose slices all begin this many steps later in the same chunks, which was checked before.
    pub(crate) fn shifted(&self, by: u32) -> Self {
        let trajectory = Self { parts: Arc::clone(&self.parts), shift: self.shift + by };
        #[cfg(debug_assertions)]
        for (index, column) in trajectory.signature().columns.iter().enumerate() {
            assert_eq!(check(column, trajectory.column(index)), Ok(()));
        }
        trajectory
    }

    /// What the trajectory looks like.
    pub fn signature(&self) -> &Arc<Signature> {
        &self.parts.signature
    }

    /// The slices of a column, in the order of time.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column(
        &self,
        column: usize,
    ) -> impl ExactSizeIterator<Item = SliceRef<'_>> + Clone + use<'_> {
        let Parts { slices, ends, .. } = &*self.parts;
        let slices = match ends {
            None => &slices[column..=column],
            Some(ends) => {
                let start = if column == 0 { 0 } else { ends[column - 1] };
                &slices[start as usize..ends[column] as usize]
            }
        };
        shifted(slices, self.shift)
    }

    /// How many steps a column has.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn steps(&self, column: usize) -> u64 {
        self.column(column).map(|slice| u64::from(slice.len)).sum()
    }

    /// Bytes of a column.
    ///
    /// # Panics
    ///
    /// When there is no such column.
    pub fn column_bytes(&self, column: usize) -> usize {
        let step = self.signature().columns[column].kind.step_bytes().unwrap_or(0);
        self.steps(column) as usize * step
    }

    /// Copies the values of a column, which are as many bytes as `to` has.
    ///
    /// # Panics
    ///
    /// When they are not, or there is no such column.
    pub fn copy_column(&self, column: usize, to: &mut [u8]) {
        let mut gather = Gather::default();
        self.gather_column(column, to, &mut gather);
        gather.finish();
    }

    /// As [`Trajectory::copy_column`], once `gather` is finished.
    pub(crate) fn gather_column<'a, 'b>(
        &'a self,
        column: usize,
        to: &'b mut [u8],
        gather: &mut Gather<'a, 'b>,
    ) {
        let step = self.signature().columns[column].kind.step_bytes().unwrap_or(0);
        let mut rest = to;
        for slice in self.column(column) {
            let (part, after) = rest.split_at_mut(slice.len as usize * step);
            gather.add(slice, part);
            rest = after;
        }
        assert!(rest.is_empty(), "a column has {} bytes too few", rest.len());
    }

    /// Compares with the leaves that a table asks for.
    ///
    /// # Errors
    ///
    /// What differs.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let steps = (0..self.signature().columns.len()).map(|column| self.steps(column));
        self.signature().check(spec, &steps.collect::<SmallVec<[u64; 8]>>())
    }

    /// Whether reading it means to decode.
    pub fn is_encoded(&self) -> bool {
        self.parts.slices.iter().any(|slice| slice.chunk.encoding() != Encoding::Raw)
    }

    /// The episodes that steps of it are from, as far as chunks know them, each once.
    pub fn episodes(&self) -> &[Episode] {
        &self.parts.episodes
    }

    /// Every slice.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = SliceRef<'_>> + Clone + use<'_> {
        shifted(&self.parts.slices, self.shift)
    }
}

/// These slices, this many steps later.
fn shifted(
    slices: &[Slice],
    by: u32,
) -> impl ExactSizeIterator<Item = SliceRef<'_>> + Clone + use<'_> {
    slices.iter().map(move |Slice { chunk, offset, len }| SliceRef {
        chunk,
        offset: offset + by,
        len: *len,
    })
}

impl Parts {
    /// How many steps later the slices of another begin, if that is all in which they differ.
    fn shift_to(&self, other: &Self) -> Option<u32> {
        let shift = other.slices.first()?.offset.checked_sub(self.slices.first()?.offset)?;
        let same = Arc::ptr_eq(&self.signature, &other.signature)
            && self.ends == other.ends
            && self.slices.len() == other.slices.len();
        let moved = |(one, other): (&Slice, &Slice)| {
            Arc::ptr_eq(&one.chunk, &other.chunk)
                && one.len == other.len
                && one.offset.checked_add(shift) == Some(other.offset)
        };
        (same && self.slices.iter().zip(&other.slices).all(moved)).then_some(shift)
    }
}

/// Lets trajectories that come from elsewhere, one after the other, share what those of a writer share.
///
/// It keeps none of them.
#[derive(Debug, Default)]
pub struct Sharing {
    /// As many as there are kinds of items at a step, mostly.
    recent: [Weak<Parts>; 4],
    oldest: usize,
}

impl Sharing {
    /// The trajectory, as a shift of an earlier one if it is one.
    #[must_use]
    pub fn share(&mut self, trajectory: Trajectory) -> Trajectory {
        let shifted = self.recent.iter().find_map(|recent| {
            let parts = recent.upgrade()?;
            let shift = parts.shift_to(&trajectory.parts)? + trajectory.shift;
            Some(Trajectory { parts, shift })
        });
        shifted.unwrap_or_else(|| {
            self.recent[self.oldest] = Arc::downgrade(&trajectory.parts);
            self.oldest = (self.oldest + 1) % self.recent.len();
            trajectory
        })
    }
}

/// Of all chunks, each once.
fn episodes(slices: &[Slice]) -> SmallVec<[Episode; 1]> {
    let mut episodes = SmallVec::new();
    for episode in slices.iter().filter_map(|slice| slice.chunk.episode()) {
        // Most items have steps of one.
        if episodes.last() != Some(&episode) {
            episodes.push(episode);
        }
    }
    if episodes.len() > 1 {
        episodes.sort_unstable();
        episodes.dedup();
    }
    episodes
}

fn check<'a>(
    column: &Column,
    slices: impl Iterator<Item = SliceRef<'a>>,
) -> Result<(), TrajectoryError> {
    let path = || column.path.clone();
    let mut steps = 0;
    for slice in slices {
        if **slice.chunk.kind() != column.kind {
            return Err(TrajectoryError::Kind { path: path() });
        }
        let (offset, len) = (u64::from(slice.offset), slice.chunk.len());
        let end = offset + u64::from(slice.len);
        if end > len.into() || slice.len == 0 {
            return Err(TrajectoryError::Range { path: path(), offset, end, len });
        }
        steps += u64::from(slice.len);
    }
    match (column.squeezed, steps) {
        (_, 0) => Err(TrajectoryError::Steps { path: path(), expected: "at least 1", got: 0 }),
        (true, got) if got > 1 => {
            Err(TrajectoryError::Steps { path: path(), expected: "just 1", got })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chunk::Chunk;
    use crate::spec::Dtype;

    fn signature(columns: usize) -> Arc<Signature> {
        let kind = ColumnKind { dtype: Dtype::UInt(1), shape: vec![] };
        let column = Column { path: String::new(), kind, squeezed: false };
        Arc::new(Signature { structure: String::new(), columns: vec![column; columns] })
    }

    proptest! {
        #[test]
        fn a_shared_trajectory_has_the_slices_that_it_had(
            items in prop::collection::vec((any::<bool>(), prop::collection::vec((0usize..2, 0u32..4, 1u32..3), 1..3)), 1..40),
            keep in prop::collection::vec(any::<bool>(), 40),
        ) {
            let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(1), shape: vec![] });
            let chunk = || Arc::new(Chunk::raw(Arc::clone(&kind), 8, [0; 8].into()).unwrap());
            let (chunks, forms) = ([chunk(), chunk()], [signature(1), signature(2)]);
            let (mut sharing, mut kept) = (Sharing::default(), vec![]);
            for ((split, slices), keep) in items.into_iter().zip(keep) {
                let slices = slices.into_iter().map(|(chunk, offset, len)| {
                    Slice { chunk: Arc::clone(&chunks[chunk]), offset, len }
                });
                let slices: Vec<Slice> = slices.collect();
                let columns = match split && slices.len() > 1 {
                    true => slices.into_iter().map(|slice| vec![slice]).collect(),
                    false => vec![slices],
                };
                let form = Arc::clone(&forms[columns.len() - 1]);
                let one = Trajectory::new(form, columns).unwrap();
                let shared = sharing.share(one.clone());
                let each = |one: &Trajectory| -> Vec<_> {
                    let columns = 0..one.signature().columns.len();
                    let slices = columns.map(|column| one.column(column).collect::<Vec<_>>());
                    let slice = |slice: SliceRef<'_>| (Arc::as_ptr(slice.chunk), slice.offset, slice.len);
                    slices.map(|slices| slices.into_iter().map(slice).collect::<Vec<_>>()).collect()
                };
                prop_assert_eq!(each(&shared), each(&one));
                prop_assert!(Arc::ptr_eq(shared.signature(), one.signature()));
                kept.extend(keep.then_some(shared));
            }
        }
    }

    #[test]
    fn a_trajectory_some_steps_later_in_the_same_chunk_shares_the_slices_of_the_first() {
        let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(1), shape: vec![] });
        let chunk = Arc::new(Chunk::raw(kind, 8, [0; 8].into()).unwrap());
        let form = signature(1);
        let at = |offset| {
            let slice = Slice { chunk: Arc::clone(&chunk), offset, len: 2 };
            Trajectory::new(Arc::clone(&form), vec![vec![slice]]).unwrap()
        };
        let mut sharing = Sharing::default();
        let first = sharing.share(at(1));
        assert!(Arc::ptr_eq(&sharing.share(at(4)).parts, &first.parts));
        assert!(!Arc::ptr_eq(&sharing.share(at(0)).parts, &first.parts), "it is before the first");
        let weak = Arc::downgrade(&first.parts);
        drop(first);
        assert!(weak.upgrade().is_none(), "nothing is kept for those that may come");
    }
}

//! Where each leaf of a tree lies among the bytes of a publication.

use std::ops::Range;

use super::sums::{CHUNK_BYTES, MAX_CHUNK_BYTES};
use crate::codec::{CodecError, Decode, Encode, Reader};
use crate::spec::{Leaf, Spec, SpecError};

/// Every leaf begins at a multiple of this: a cache line, and what XLA and AVX-512 want.
pub const ALIGNMENT: usize = 64;
/// The most bytes of a publication: more than a machine has. What there is memory for is found out when it is taken.
pub const MAX_BYTES: usize = 4 << 40;
/// The most leaves of a tree. Mixtures of experts have tens of thousands.
pub const MAX_LEAVES: usize = 1 << 18;

/// Up to how many chunks they have [`CHUNK_BYTES`].
const FEW_CHUNKS: usize = 1 << 16;

/// Weights that can't be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// See there.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Join some of them.
    #[error("the weights have {got} leaves, and a publication has at most {MAX_LEAVES}")]
    TooMany {
        /// How many they have.
        got: usize,
    },
    /// Carry the bytes by other means, and publish the version alone.
    #[error("the weights have {got} bytes, and a publication has at most {MAX_BYTES}")]
    TooLarge {
        /// How many they have.
        got: usize,
    },
}

/// The leaves of a tree one behind the other, and the form of the tree.
///
/// ```
/// use echoic_replay::weights::Plan;
/// use echoic_replay::{Dtype, Leaf};
///
/// let leaf = |path: &str| Leaf { path: path.into(), dtype: Dtype::Float(4), shape: vec![3] };
/// let plan = Plan::new(String::new(), vec![leaf("bias"), leaf("weight")])?;
/// assert_eq!((plan.offsets(), plan.nbytes()), (&[0, 64][..], 76));
/// # Ok::<(), echoic_replay::weights::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    structure: String,
    spec: Spec,
    offsets: Vec<usize>,
    nbytes: usize,
}

impl Plan {
    /// The plan of these leaves, which belong to a tree of this form.
    pub fn new(structure: String, leaves: Vec<Leaf>) -> Result<Self, PlanError> {
        if leaves.len() > MAX_LEAVES {
            return Err(PlanError::TooMany { got: leaves.len() });
        }
        let spec = Spec::new(leaves)?;
        let too_large = |got| PlanError::TooLarge { got };
        let (mut offsets, mut end) = (Vec::with_capacity(spec.leaves().len()), 0usize);
        for bytes in spec.leaf_bytes() {
            let start = end.checked_next_multiple_of(ALIGNMENT);
            let start = start.ok_or_else(|| too_large(usize::MAX))?;
            end = start.checked_add(*bytes).ok_or_else(|| too_large(usize::MAX))?;
            offsets.push(start);
        }
        if end > MAX_BYTES {
            return Err(too_large(end));
        }
        Ok(Self { structure, spec, offsets, nbytes: end })
    }

    /// The form of the tree, to build it again.
    pub fn structure(&self) -> &str {
        &self.structure
    }

    /// The leaves.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Where each leaf begins.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// How many bytes there are, those between leaves included.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Bytes of its chunks, of which the last may have fewer: [`CHUNK_BYTES`], and up to [`MAX_CHUNK_BYTES`] for more than
    /// 16 GiB, so that the sums of all chunks stay few.
    pub fn chunk_bytes(&self) -> usize {
        let mut bytes = CHUNK_BYTES;
        while bytes < MAX_CHUNK_BYTES && self.nbytes.div_ceil(bytes) > FEW_CHUNKS {
            bytes *= 2;
        }
        bytes
    }

    /// How many chunks.
    pub fn chunks(&self) -> usize {
        self.nbytes.div_ceil(self.chunk_bytes())
    }

    /// The bytes of a chunk; `None` when there is no such chunk.
    pub fn chunk(&self, index: usize) -> Option<Range<usize>> {
        let bytes = self.chunk_bytes();
        let start = index.checked_mul(bytes).filter(|start| *start < self.nbytes)?;
        Some(start..self.nbytes.min(start + bytes))
    }
}

impl Encode for Plan {
    fn encode(&self, out: &mut Vec<u8>) {
        self.structure.encode(out);
        self.spec.encode(out);
    }
}

impl Decode for Plan {
    const LEAST: usize = <(String, Spec)>::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let structure = from.get(field)?;
        // Before there is memory for them, which is several times what they have as bytes.
        let count = from.u32_at_most("number of leaves", MAX_LEAVES as u32)?;
        let leaves = from.many(field, count, Leaf::LEAST, |from| from.get(field))?;
        Self::new(structure, leaves).map_err(|error| match error {
            PlanError::Spec(error) => error.into(),
            PlanError::TooMany { got } => {
                CodecError::TooLarge { field, limit: MAX_LEAVES as u64, got: got as u64 }
            }
            PlanError::TooLarge { got } => {
                CodecError::TooLarge { field, limit: MAX_BYTES as u64, got: got as u64 }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dtype;

    fn plan(bytes: usize) -> Result<Plan, PlanError> {
        Plan::new(
            String::new(),
            vec![Leaf { path: "w".into(), dtype: Dtype::UInt(1), shape: vec![bytes] }],
        )
    }

    #[test]
    fn chunks_cover_all_bytes_once() {
        for bytes in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1] {
            let plan = plan(bytes).unwrap();
            let chunks: Vec<_> = (0..plan.chunks()).filter_map(|at| plan.chunk(at)).collect();
            assert_eq!(chunks.iter().map(Range::len).sum::<usize>(), bytes);
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(plan.chunk(plan.chunks()), None);
        }
    }

    #[test]
    fn chunks_grow_with_what_is_published() {
        for (bytes, chunk, count) in [
            (16 << 30, CHUNK_BYTES, 1 << 16),
            ((16 << 30) + 1, 2 * CHUNK_BYTES, (1 << 15) + 1),
            (61 << 30, 1 << 20, 61 << 10),
            (MAX_BYTES, MAX_CHUNK_BYTES, 1 << 20),
        ] {
            let plan = plan(bytes).unwrap();
            assert_eq!((plan.chunk_bytes(), plan.chunks()), (chunk, count));
            let last = plan.chunk(count - 1).unwrap();
            assert_eq!((last.start, last.end), ((count - 1) * chunk, bytes));
            assert_eq!(plan.chunk(count), None);
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let leaf = |at| Leaf { path: format!("{at}"), dtype: Dtype::UInt(1), shape: vec![] };
        let leaves = |count| (0..count).map(leaf).collect();
        assert!(Plan::new(String::new(), leaves(MAX_LEAVES)).is_ok());
        let got = MAX_LEAVES + 1;
        assert_eq!(Plan::new(String::new(), leaves(got)), Err(PlanError::TooMany { got }));
        assert!(plan(MAX_BYTES).is_ok());
        assert_eq!(plan(MAX_BYTES + 1), Err(PlanError::TooLarge { got: MAX_BYTES + 1 }));
    }
}

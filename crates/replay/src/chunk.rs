//! Values of one column at consecutive steps: immutable, shared, perhaps encoded.
//!
//! A writer cuts what it appends into chunks, column by column; an item names slices of them.
//! Chunks are shared by reference count, between items and between tables, and are freed when the
//! last item that names them has gone.
//!
//! # Invariants
//!
//! 1. A chunk has at least one step and at most [`MAX_BYTES`] decoded.
//! 2. What is kept decodes to just these bytes. It was made here from them, or was decoded once when it
//!    came from outside, so reading a chunk does not fail.
//! 3. A [`ChunkMeter`] counts a chunk from when it was given to it until the chunk is dropped.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::codec::CodecError;
use crate::encoding::{Chooser, Encoding, Policy, codec};
use crate::episode::Episode;
use crate::fields;
use crate::spec::{Dtype, Leaf};

/// Names a chunk for as long as there are files that have it: no other has the same, in any process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChunkKey(pub(crate) u128);

impl ChunkKey {
    fn fresh() -> Self {
        static PROCESS: LazyLock<u64> = LazyLock::new(|| {
            // The standard library's only random numbers, and the time in case they repeat.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            RandomState::new().hash_one(now.as_nanos())
        });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(u128::from(*PROCESS) << 64 | u128::from(number))
    }
}

/// The most bytes of a chunk, decoded.
pub const MAX_BYTES: usize = 1 << 30;

/// The most axes of a step: what numpy allows.
pub const MAX_AXES: usize = 64;

/// What the values of a column are: dtype and shape of one step.
#[derive(Debug, Clone, Eq, Hash)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "what is equal is as derived")]
pub struct ColumnKind {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of one step.
    pub shape: Vec<usize>,
}

fields! { ColumnKind { dtype: Dtype, shape: Vec<usize> } }

impl PartialEq for ColumnKind {
    fn eq(&self, other: &Self) -> bool {
        // Of few axes: a call that compares memory costs more. Items of a writer are compared so, column by column.
        self.dtype == other.dtype && self.shape.iter().eq(&other.shape)
    }
}

impl ColumnKind {
    /// Bytes of one step; `None` when that is past what an address can hold.
    pub fn step_bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.itemsize(), |bytes, axis| bytes.checked_mul(*axis))
    }

    /// Bytes of `len` steps, if a chunk may have them.
    fn chunk_bytes(&self, len: u32) -> Result<usize, ChunkError> {
        if len == 0 {
            return Err(ChunkError::Empty);
        }
        if self.shape.len() > MAX_AXES {
            return Err(ChunkError::Axes { got: self.shape.len() });
        }
        let bytes = self.step_bytes().and_then(|step| step.checked_mul(len as usize));
        match bytes {
            Some(bytes) if bytes <= MAX_BYTES => Ok(bytes),
            _ => Err(ChunkError::TooLarge { len, step: self.step_bytes().unwrap_or(usize::MAX) }),
        }
    }
}

impl From<&Leaf> for ColumnKind {
    fn from(leaf: &Leaf) -> Self {
        Self { dtype: leaf.dtype, shape: leaf.shape.clone() }
    }
}

/// Steps `offset .. offset + len` of a chunk.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Where the values are.
    pub chunk: Arc<Chunk>,
    /// The first step.
    pub offset: u32,
    /// How many steps.
    pub len: u32,
}

/// A [`Slice`] of a chunk that another owner holds.
#[derive(Debug, Clone, Copy)]
pub struct SliceRef<'a> {
    /// Where the values are.
    pub chunk: &'a Arc<Chunk>,
    /// The first step.
    pub offset: u32,
    /// How many steps.
    pub len: u32,
}

/// Bytes that make no chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// Give as many bytes as the steps have.
    #[error("{len} steps of {step} bytes are not {got} bytes")]
    Length {
        /// How many steps.
        len: u32,
        /// Bytes of a step.
        step: usize,
        /// Bytes given.
        got: usize,
    },
    /// Give at least one step.
    #[error("a chunk has at least one step, got 0")]
    Empty,
    /// Cut chunks shorter.
    #[error(
        "{len} steps of {step} bytes are more than the {MAX_BYTES} bytes that a chunk may have"
    )]
    TooLarge {
        /// How many steps.
        len: u32,
        /// Bytes of a step.
        step: usize,
    },
    /// Use fewer axes.
    #[error("a step has at most {MAX_AXES} axes, got {got}")]
    Axes {
        /// Axes given.
        got: usize,
    },
    /// The bytes were not encoded so, or not from this many steps.
    #[error("{got} bytes of {encoding} do not decode to {expected} bytes: {reason}")]
    Encoded {
        /// How they should be encoded.
        encoding: Encoding,
        /// Bytes that should come of them.
        expected: usize,
        /// Bytes given.
        got: usize,
        /// What the decoder says.
        reason: String,
    },
    /// Give all of it. If there is more, the bytes are no chunk, or were written by a later release.
    #[error("a chunk's {0}")]
    Codec(#[from] CodecError),
    /// The bytes were damaged since they were written.
    #[error("a chunk's checksum is {got:08x}, its bytes have {expected:08x}")]
    Checksum {
        /// Of the bytes that are there.
        expected: u32,
        /// What was written with them.
        got: u32,
    },
}

/// Counts chunks that are alive, and the memory that they take.
#[derive(Debug, Default)]
pub struct ChunkMeter {
    chunks: AtomicU64,
    bytes: AtomicU64,
}

impl ChunkMeter {
    /// How many chunks it counts.
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Their [`Chunk::memory_bytes`].
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// See the [module](self).
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::chunk::{Chunk, ColumnKind};
/// use echoic_replay::encoding::{Encoding, Policy};
/// use echoic_replay::Dtype;
///
/// let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(1), shape: vec![100] });
/// let frames = vec![7; 20 * 100];
/// let chunk = Chunk::encode(kind, 20, frames.into(), Policy::Always(Encoding::Lz4))?;
/// assert!(chunk.encoded_bytes().len() < 50);
///
/// let mut two_frames = [0; 200];
/// chunk.copy_to(3, &mut two_frames);
/// assert_eq!(two_frames, [7; 200]);
/// # Ok::<(), echoic_replay::chunk::ChunkError>(())
/// ```
#[derive(Debug)]
pub struct Chunk {
    id: ChunkKey,
    kind: Arc<ColumnKind>,
    data: Box<[u8]>,
    meter: Option<Arc<ChunkMeter>>,
    episode: Option<Episode>,
    len: u32,
    encoding: Encoding,
}

impl Chunk {
    /// A chunk of these bytes.
    pub fn raw(kind: Arc<ColumnKind>, len: u32, data: Box<[u8]>) -> Result<Self, ChunkError> {
        Self::check_len(&kind, len, data.len())?;
        Ok(Self::of(kind, data, len, Encoding::Raw))
    }

    /// A chunk of these bytes, encoded by a policy. A [`Chooser`] does it for many chunks of a
    /// column.
    pub fn encode(
        kind: Arc<ColumnKind>,
        len: u32,
        raw: Box<[u8]>,
        policy: Policy,
    ) -> Result<Self, ChunkError> {
        Chooser::new(policy).encode(kind, len, raw)
    }

    /// A chunk of bytes that are encoded already, from wherever they come: they are decoded once to
    /// see whether they can be.
    pub fn from_encoded(
        kind: Arc<ColumnKind>,
        len: u32,
        encoding: Encoding,
        bytes: Box<[u8]>,
    ) -> Result<Self, ChunkError> {
        if encoding == Encoding::Raw {
            return Self::raw(kind, len, bytes);
        }
        let expected = kind.chunk_bytes(len)?;
        codec::check(encoding, &bytes, expected).map_err(|error| {
            let (got, reason) = (bytes.len(), error.to_string());
            ChunkError::Encoded { encoding, expected, got, reason }
        })?;
        Ok(Self::of(kind, bytes, len, encoding))
    }

    /// Another chunk of the same values in this form, unless that is larger than `most` bytes or no
    /// smaller, or the chunk is encoded already.
    pub(crate) fn pack(&self, encoding: Encoding, most: usize) -> Option<Self> {
        if encoding == Encoding::Raw || self.encoding != Encoding::Raw || self.data.is_empty() {
            return None;
        }
        let packed = codec::pack(encoding, &self.kind, &self.data)?;
        let smaller = packed.len() <= most && packed.len() < self.data.len();
        smaller.then(|| {
            let packed = Self::of(Arc::clone(&self.kind), packed, self.len, encoding);
            packed.of_episode(self.episode)
        })
    }

    fn of(kind: Arc<ColumnKind>, data: Box<[u8]>, len: u32, encoding: Encoding) -> Self {
        let (meter, episode) = (None, None);
        Self { id: ChunkKey::fresh(), kind, data, meter, episode, len, encoding }
    }

    /// The chunk with steps of this episode.
    #[must_use]
    pub fn of_episode(mut self, episode: Option<Episode>) -> Self {
        self.episode = episode;
        self
    }

    /// The episode that its steps are from, if that is known.
    pub fn episode(&self) -> Option<Episode> {
        self.episode
    }

    /// Which chunk it is, for files that have it once.
    pub(crate) fn key(&self) -> ChunkKey {
        self.id
    }

    /// The same chunk, under the key that it had when it was written to a file.
    pub(crate) fn known_as(mut self, key: ChunkKey) -> Self {
        self.id = key;
        self
    }

    fn check_len(kind: &ColumnKind, len: u32, got: usize) -> Result<(), ChunkError> {
        if kind.chunk_bytes(len)? != got {
            let step = kind.step_bytes().unwrap_or(usize::MAX);
            return Err(ChunkError::Length { len, step, got });
        }
        Ok(())
    }

    /// Has a meter count it, until it is dropped.
    #[must_use]
    pub fn metered(mut self, meter: &Arc<ChunkMeter>) -> Self {
        self.leave();
        meter.chunks.fetch_add(1, Ordering::Relaxed);
        meter.bytes.fetch_add(self.memory_bytes() as u64, Ordering::Relaxed);
        self.meter = Some(Arc::clone(meter));
        self
    }

    /// What its values are.
    pub fn kind(&self) -> &Arc<ColumnKind> {
        &self.kind
    }

    /// How many steps it has: at least one.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The form of its bytes.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Its bytes in that form; the values themselves when that is [`Encoding::Raw`].
    pub fn encoded_bytes(&self) -> &[u8] {
        &self.data
    }

    /// Bytes of its values.
    pub fn raw_len(&self) -> usize {
        self.step_bytes() * self.len as usize
    }

    /// Memory that it takes behind an `Arc`, without the kind, which it shares, and without what
    /// the allocator adds.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + 2 * size_of::<usize>() + self.data.len()
    }

    /// The values of all its steps, if its bytes are just these.
    pub(crate) fn values(&self) -> Option<&[u8]> {
        (self.encoding == Encoding::Raw).then_some(&*self.data)
    }

    /// Copies steps `offset ..` into `to`, whose length says how many.
    ///
    /// An encoded chunk is decoded for it, whole: for many slices of one, decode once. What that
    /// needs is kept by the thread for the next call, up to 4 MiB a buffer.
    ///
    /// # Panics
    ///
    /// When there are no such steps.
    pub fn copy_to(&self, offset: u32, to: &mut [u8]) {
        let start = offset as usize * self.step_bytes();
        if self.encoding == Encoding::Raw {
            to.copy_from_slice(&self.data[start..start + to.len()]);
            return;
        }
        let len = self.raw_len();
        assert!(start + to.len() <= len, "{} bytes from {start} of {len}", to.len());
        if to.is_empty() {
            return;
        }
        let unpacked = codec::unpack(self.encoding, &self.kind, &self.data, len, start, to);
        // By invariant 2.
        unpacked.expect("what was decoded once decodes again");
    }

    fn step_bytes(&self) -> usize {
        self.kind.step_bytes().unwrap_or(0)
    }

    /// Has its meter forget it.
    fn leave(&mut self) {
        if let Some(meter) = self.meter.take() {
            meter.chunks.fetch_sub(1, Ordering::Relaxed);
            meter.bytes.fetch_sub(self.memory_bytes() as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.leave();
    }
}

//! Which form a column's chunks get.

use std::str::FromStr;
use std::sync::Arc;

use super::delta::Elements;
use super::{Encoding, codec};
use crate::chunk::{Chunk, ChunkError, ColumnKind};

/// How chunks of a column are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Policy {
    /// As they are.
    #[default]
    Never,
    /// In this form. A chunk that it would not make smaller is kept as it is.
    Always(Encoding),
    /// As measured: see [`Chooser`].
    Auto,
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no encoding {0:?}; there are none, auto, lz4, zstd, delta+lz4 and delta+zstd")]
pub struct UnknownEncoding(pub String);

impl FromStr for Policy {
    type Err = UnknownEncoding;

    /// `none`, `auto`, or the name of a form as [`Encoding`]'s `Display` gives it.
    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        match name {
            "none" => Ok(Self::Never),
            "auto" => Ok(Self::Auto),
            name => {
                let mut forms = Encoding::ALL.into_iter().filter(|form| *form != Encoding::Raw);
                let form = forms.find(|form| form.to_string() == name);
                form.map(Self::Always).ok_or_else(|| UnknownEncoding(name.to_owned()))
            }
        }
    }
}

/// A smaller chunk than this is not worth the time: its own fields take about as much.
const LEAST: usize = 256;

/// What an encoding must save of the bytes to be used, and what a slower one must save of those
/// that a faster one leaves.
const LEAST_GAIN: f64 = 0.2;

/// What a slower encoding must save of all bytes besides: halving next to nothing is worth no time.
const LEAST_PART: f64 = 0.01;

/// Bytes that are tried.
const SAMPLE: usize = 32 << 10;

/// Bytes of each step that are tried at most, so that a sample has several steps to compare.
const SAMPLE_STEP: usize = 4 << 10;

/// How many chunks use a choice before it is measured again.
const RENEWED: u32 = 32;

/// Encodes the chunks of one column.
///
/// Under [`Policy::Auto`] some 32 KiB of a chunk, a piece of each of its first steps, are tried in
/// every form, fastest first. A form is used when it saves a fifth, and a slower one instead when
/// it leaves a fifth less and that is a hundredth of all bytes. A choice serves the next 31 chunks
/// too, unless one of them does not become a fifth smaller: that one is kept as it is, and the next
/// is tried again.
///
/// ```
/// use std::sync::Arc;
/// use echoic_replay::chunk::ColumnKind;
/// use echoic_replay::encoding::{Chooser, Encoding, Policy};
/// use echoic_replay::Dtype;
///
/// let kind = Arc::new(ColumnKind { dtype: Dtype::Int(8), shape: vec![] });
/// let ramp: Vec<u8> = (0..1000i64).flat_map(|step| (step * step).to_le_bytes()).collect();
/// let chunk = Chooser::new(Policy::Auto).encode(kind, 1000, ramp.into())?;
/// assert_ne!(chunk.encoding(), Encoding::Raw);
/// assert!(chunk.encoded_bytes().len() < 2500, "of 8000");
/// # Ok::<(), echoic_replay::chunk::ChunkError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Chooser {
    policy: Policy,
    choice: Encoding,
    /// How many more chunks the choice is for.
    left: u32,
}

impl Chooser {
    /// Follows a policy.
    pub fn new(policy: Policy) -> Self {
        Self { policy, choice: Encoding::Raw, left: 0 }
    }

    /// What it follows.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// A chunk of these bytes in the form of the policy.
    ///
    /// # Errors
    ///
    /// Those of [`Chunk::raw`].
    pub fn encode(
        &mut self,
        kind: Arc<ColumnKind>,
        len: u32,
        raw: Box<[u8]>,
    ) -> Result<Chunk, ChunkError> {
        let chunk = Chunk::raw(kind, len, raw)?;
        Ok(self.pack(&chunk).unwrap_or(chunk))
    }

    /// Another chunk of the same values in the form of the policy; `None` when they are to be kept as they
    /// are.
    pub fn pack(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let raw = chunk.values()?;
        let (encoding, least) = match self.policy {
            Policy::Never => return None,
            Policy::Always(encoding) => (encoding, 0.0),
            Policy::Auto if raw.len() < LEAST => return None,
            Policy::Auto => {
                if self.left == 0 {
                    (self.choice, self.left) = (choose(chunk.kind(), raw), RENEWED);
                }
                self.left -= 1;
                (self.choice, LEAST_GAIN)
            }
        };
        if encoding == Encoding::Raw {
            return None;
        }
        let most = raw.len() as f64 * (1.0 - least);
        let packed = chunk.pack(encoding, most as usize);
        if packed.is_none() {
            self.left = 0;
        }
        packed
    }
}

/// The form that measures best.
fn choose(kind: &ColumnKind, raw: &[u8]) -> Encoding {
    let Some(step @ 1..) = kind.step_bytes() else { return Encoding::Raw };
    let elements = Elements::of(kind.dtype);
    // The middle of a step says more than its start: the border of a frame never changes.
    let width = if step <= SAMPLE_STEP { step } else { SAMPLE_STEP };
    let start = (step - width) / 2 / elements.width() * elements.width();
    let steps = raw.chunks_exact(step).take((SAMPLE / width).max(1));
    let sample: Vec<u8> =
        steps.flat_map(|step| step.iter().skip(start).take(width)).copied().collect();
    let all = sample.len() as f64;
    let mut best = (Encoding::Raw, all);
    for encoding in [Encoding::Lz4, Encoding::DeltaLz4, Encoding::Zstd, Encoding::DeltaZstd] {
        let size = codec::size(encoding, elements, width, &sample) as f64;
        if size <= best.1 * (1.0 - LEAST_GAIN) && size <= best.1 - all * LEAST_PART {
            best = (encoding, size);
        }
    }
    best.0
}

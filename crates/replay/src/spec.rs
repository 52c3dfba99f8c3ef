//! The contract of a sample: which leaves it has, and what each looks like.

use std::fmt;
use std::str::FromStr;

use crate::codec::{CodecError, Decode, Encode, Reader};
use crate::fields;

/// Type of the elements of a leaf. Two dtypes of equal size are still two dtypes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Signed integer of 1, 2, 4 or 8 bytes.
    Int(u8),
    /// Unsigned integer of 1, 2, 4 or 8 bytes.
    UInt(u8),
    /// IEEE 754 number of 2, 4 or 8 bytes.
    Float(u8),
    /// The upper half of a 4-byte float.
    BFloat16,
    /// Two floats: 8 or 16 bytes in total.
    Complex(u8),
    /// Zero-padded bytes of this length.
    Bytes(u32),
}

impl Dtype {
    /// Size of one element.
    pub fn itemsize(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::BFloat16 => 2,
            Self::Int(bytes) | Self::UInt(bytes) | Self::Float(bytes) | Self::Complex(bytes) => {
                usize::from(bytes)
            }
            Self::Bytes(bytes) => bytes as usize,
        }
    }

    /// The letter of its kind: numpy's where numpy has one.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Self::Bool => b'b',
            Self::Int(_) => b'i',
            Self::UInt(_) => b'u',
            Self::Float(_) => b'f',
            Self::BFloat16 => b'B',
            Self::Complex(_) => b'c',
            Self::Bytes(_) => b'S',
        }
    }

    /// The dtype of a letter whose elements have this many bytes.
    pub(crate) fn of(letter: u8, size: u32) -> Result<Self, CodecError> {
        let short = u8::try_from(size).unwrap_or(0);
        Ok(match (letter, size) {
            (b'b', 1) => Self::Bool,
            (b'i', 1 | 2 | 4 | 8) => Self::Int(short),
            (b'u', 1 | 2 | 4 | 8) => Self::UInt(short),
            (b'f', 2 | 4 | 8) => Self::Float(short),
            (b'B', 2) => Self::BFloat16,
            (b'c', 8 | 16) => Self::Complex(short),
            (b'S', 1..) => Self::Bytes(size),
            (b'b' | b'i' | b'u' | b'f' | b'B' | b'c' | b'S', _) => {
                let (field, got) = ("size of an element", size.into());
                return Err(CodecError::Meaningless { field, got });
            }
            _ => return Err(CodecError::Meaningless { field: "dtype", got: letter.into() }),
        })
    }
}

impl Encode for Dtype {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.letter());
        // What has a size of its own has at most 16 bytes, and others have one in four bytes.
        (self.itemsize() as u32).encode(out);
    }
}

impl Decode for Dtype {
    const LEAST: usize = 5;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let letter = from.u8(field)?;
        Self::of(letter, from.u32("size of an element")?)
    }
}

impl fmt::Display for Dtype {
    /// numpy's name of the dtype.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bytes) = match *self {
            Self::Bool => return f.write_str("bool"),
            Self::BFloat16 => return f.write_str("bfloat16"),
            Self::Bytes(bytes) => return write!(f, "S{bytes}"),
            Self::Int(bytes) => ("int", bytes),
            Self::UInt(bytes) => ("uint", bytes),
            Self::Float(bytes) => ("float", bytes),
            Self::Complex(bytes) => ("complex", bytes),
        };
        write!(f, "{kind}{}", u32::from(bytes) * 8)
    }
}

/// A name that no dtype has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no dtype {0:?}")]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    /// The dtype of a name that `Display` gives.
    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        let small = [1, 2, 4, 8, 16].into_iter().flat_map(|bytes| {
            [Self::Int(bytes), Self::UInt(bytes), Self::Float(bytes), Self::Complex(bytes)]
        });
        let real = small.filter(|dtype| match dtype {
            Self::Int(bytes) | Self::UInt(bytes) => *bytes <= 8,
            Self::Float(bytes) => (2..=8).contains(bytes),
            Self::Complex(bytes) => *bytes >= 8,
            _ => false,
        });
        let width = name.strip_prefix('S').and_then(|width| width.parse().ok());
        [Self::Bool, Self::BFloat16]
            .into_iter()
            .chain(real)
            .chain(width.filter(|width| *width > 0).map(Self::Bytes))
            .find(|dtype| dtype.to_string() == name)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

/// The length of an axis that may have any: the first of a leaf, which then is the axis of time; see
/// [`Spec::of_trajectories`].
pub const ANY_LENGTH: usize = usize::MAX;

/// One leaf of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leaf {
    /// Where the leaf stands in the tree: keys joined by `/`, empty for a sample that is one leaf.
    pub path: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape without a batch axis.
    pub shape: Vec<usize>,
}

fields! { Leaf { path: String, dtype: Dtype, shape: Vec<usize> } }

impl Leaf {
    /// Bytes of this leaf in one sample; `None` when that is past what an address can hold.
    pub fn nbytes(&self) -> Option<usize> {
        self.bytes_of(&self.shape)
    }

    fn bytes_of(&self, axes: &[usize]) -> Option<usize> {
        // A zero anywhere makes the product zero, but not before the others have been multiplied.
        axes.iter().try_fold(self.dtype.itemsize(), |bytes, axis| bytes.checked_mul(*axis))
    }

    /// Whether its first axis may have any length.
    pub fn has_any_length(&self) -> bool {
        self.shape.first() == Some(&ANY_LENGTH)
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "(root)" } else { &self.path };
        write!(f, "{path}: {}[", self.dtype)?;
        for (axis, length) in self.shape.iter().enumerate() {
            let comma = if axis == 0 { "" } else { ", " };
            match *length {
                ANY_LENGTH => write!(f, "{comma}?")?,
                length => write!(f, "{comma}{length}")?,
            }
        }
        f.write_str("]")
    }
}

/// A contract that no sample could meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Give the example at least one array.
    #[error("the example has no leaves: there is nothing to store")]
    Empty,
    /// Rename one of them: paths distinguish leaves in errors and on the wire.
    #[error("two leaves of the example have the path `{0}`")]
    Duplicate(String),
    /// Make the leaf smaller.
    #[error("leaf `{0}` has more bytes than an address can hold")]
    TooLarge(String),
    /// Give the axis a length.
    #[error(
        "leaf `{0}` has an axis of any length, which only the first axis of a trajectory's leaf can be"
    )]
    AnyLength(String),
}

/// The leaves of a sample, in the order of their columns.
///
/// ```
/// use echoic_replay::{Dtype, Leaf, Spec};
///
/// let obs = Leaf { path: "obs".into(), dtype: Dtype::Float(4), shape: vec![4] };
/// let spec = Spec::new(vec![obs])?;
/// assert_eq!(spec.nbytes(), 16);
/// assert_eq!(spec.leaves()[0].to_string(), "obs: float32[4]");
/// # Ok::<(), echoic_replay::SpecError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    leaves: Vec<Leaf>,
    leaf_bytes: Vec<usize>,
    nbytes: usize,
}

impl Spec {
    /// Checks the leaves and fixes their order.
    ///
    /// # Errors
    ///
    /// [`SpecError`] when there are none, two have one path, their bytes can't be counted, or an axis has
    /// no length.
    pub fn new(leaves: Vec<Leaf>) -> Result<Self, SpecError> {
        match leaves.iter().find(|leaf| leaf.has_any_length()) {
            Some(leaf) => Err(SpecError::AnyLength(leaf.path.clone())),
            None => Self::of_trajectories(leaves),
        }
    }

    /// As [`Spec::new`], where the first axis of a leaf may be [`ANY_LENGTH`]. Of such leaves one step
    /// counts as their bytes.
    pub fn of_trajectories(leaves: Vec<Leaf>) -> Result<Self, SpecError> {
        if leaves.is_empty() {
            return Err(SpecError::Empty);
        }
        let mut paths = std::collections::HashSet::new();
        let mut leaf_bytes = Vec::with_capacity(leaves.len());
        let mut total = 0usize;
        for leaf in &leaves {
            if !paths.insert(&leaf.path) {
                return Err(SpecError::Duplicate(leaf.path.clone()));
            }
            if leaf.shape.iter().skip(1).any(|axis| *axis == ANY_LENGTH) {
                return Err(SpecError::AnyLength(leaf.path.clone()));
            }
            let too_large = || SpecError::TooLarge(leaf.path.clone());
            let axes = &leaf.shape[usize::from(leaf.has_any_length())..];
            let bytes = leaf.bytes_of(axes).ok_or_else(too_large)?;
            total = total.checked_add(bytes).ok_or_else(too_large)?;
            leaf_bytes.push(bytes);
        }
        Ok(Self { leaves, leaf_bytes, nbytes: total })
    }

    /// The leaves in the order of their columns.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Bytes of each leaf in one sample.
    pub fn leaf_bytes(&self) -> &[usize] {
        &self.leaf_bytes
    }

    /// Bytes of one sample.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }
}

/// For people.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, leaf) in self.leaves.iter().enumerate() {
            write!(f, "{}{leaf}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Encode for Spec {
    fn encode(&self, out: &mut Vec<u8>) {
        self.leaves.encode(out);
    }
}

impl Decode for Spec {
    const LEAST: usize = Vec::<Leaf>::LEAST;

    /// As [`Spec::new`]: no axis may have any length.
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        Ok(Self::new(from.get(field)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(path: &str, shape: &[usize]) -> Leaf {
        Leaf { path: path.into(), dtype: Dtype::Int(8), shape: shape.into() }
    }

    #[test]
    fn counts_scalars_and_empty_leaves() {
        let spec = Spec::new(vec![leaf("scalar", &[]), leaf("empty", &[3, 0])]).unwrap();
        assert_eq!((spec.leaf_bytes(), spec.nbytes()), (&[8, 0][..], 8));
    }

    #[test]
    fn refuses_what_no_sample_could_meet() {
        let huge = leaf("huge", &[usize::MAX - 1, 2]);
        let pair = vec![leaf("a", &[usize::MAX / 16]), leaf("b", &[usize::MAX / 16])];
        assert_eq!(Spec::new(vec![]), Err(SpecError::Empty));
        assert_eq!(Spec::new(vec![huge]), Err(SpecError::TooLarge("huge".into())));
        assert!(Spec::new(pair).is_ok());
        let twice = vec![leaf("a", &[]), leaf("a", &[1])];
        assert_eq!(Spec::new(twice), Err(SpecError::Duplicate("a".into())));
    }

    #[test]
    fn only_the_first_axis_of_a_trajectory_has_any_length() {
        let steps = vec![leaf("steps", &[ANY_LENGTH, 3]), leaf("end", &[])];
        assert_eq!(Spec::new(steps.clone()), Err(SpecError::AnyLength("steps".into())));
        let spec = Spec::of_trajectories(steps).unwrap();
        assert_eq!((spec.leaf_bytes(), spec.nbytes()), (&[24, 8][..], 32));
        assert_eq!(spec.leaves()[0].to_string(), "steps: int64[?, 3]");
        for shape in [&[3, ANY_LENGTH][..], &[ANY_LENGTH, ANY_LENGTH]] {
            let refused = Spec::of_trajectories(vec![leaf("x", shape)]);
            assert_eq!(refused, Err(SpecError::AnyLength("x".into())), "{shape:?}");
        }
    }

    #[test]
    fn dtypes_have_numpy_names_and_sizes() {
        let cases = [
            (Dtype::Bool, "bool", 1),
            (Dtype::UInt(1), "uint8", 1),
            (Dtype::Int(4), "int32", 4),
            (Dtype::Float(2), "float16", 2),
            (Dtype::BFloat16, "bfloat16", 2),
            (Dtype::Complex(16), "complex128", 16),
            (Dtype::Bytes(5), "S5", 5),
        ];
        for (dtype, name, bytes) in cases {
            assert_eq!((dtype.to_string().as_str(), dtype.itemsize()), (name, bytes));
            assert_eq!(name.parse(), Ok(dtype));
        }
        for name in ["", "int3", "float128", "S0", "S05", "complex8", "float8"] {
            assert_eq!(name.parse::<Dtype>(), Err(UnknownDtype(name.into())));
        }
    }
}

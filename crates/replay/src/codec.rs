//! Bytes as values: files, journals and connections are read and written with this.
//!
//! Numbers are little-endian. A [`Reader`] takes bytes field by field, and each field has a name for the error.
//!
//! # Invariants
//!
//! 1. Nothing here panics, whatever the bytes.
//! 2. Memory is taken for bytes that are there: a count is compared with what is left first.
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![deny(clippy::arithmetic_side_effects)]

/// The longest text that has its length in four bytes.
const MAX_TEXT: u32 = 1 << 10;

/// Bytes that mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes ended in the middle of a field.
    #[error("{field}: expected {wanted} more bytes, got {got}")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// How many bytes it needs.
        wanted: u64,
        /// How many there were.
        got: usize,
    },
    /// There are bytes behind the last field.
    #[error("{what}: {extra} bytes too many")]
    Trailing {
        /// Behind the end of what.
        what: &'static str,
        /// How many.
        extra: usize,
    },
    /// A number is past its limit.
    #[error("{field}: expected at most {limit}, got {got}")]
    TooLarge {
        /// Which number.
        field: &'static str,
        /// The largest allowed.
        limit: u64,
        /// What came.
        got: u64,
    },
    /// A field has a value without a meaning.
    #[error("{field}: {got} has no meaning")]
    Meaningless {
        /// Which field.
        field: &'static str,
        /// What came.
        got: u64,
    },
    /// A text is not UTF-8.
    #[error("{field}: not UTF-8")]
    NotText {
        /// Which field.
        field: &'static str,
    },
    /// Read it with the release that wrote it.
    #[error("it has format {got}; this release reads format {expected}")]
    Format {
        /// The format that this release reads.
        expected: u32,
        /// Its own.
        got: u32,
    },
}

/// What is left of some bytes. Every method names the field that it reads, for the error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] when fewer are left.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], CodecError> {
        let Some((taken, left)) = self.left.split_at_checked(len) else {
            let (wanted, got) = (len as u64, self.left.len());
            return Err(CodecError::Truncated { field, wanted, got });
        };
        self.left = left;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] when fewer are left.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], CodecError> {
        let Some((taken, left)) = self.left.split_first_chunk() else {
            let (wanted, got) = (N as u64, self.left.len());
            return Err(CodecError::Truncated { field, wanted, got });
        };
        self.left = left;
        Ok(*taken)
    }

    /// A number of one byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, CodecError> {
        self.array(field).map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, CodecError> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, CodecError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, CodecError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A signed number of eight bytes.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, CodecError> {
        self.array(field).map(i64::from_le_bytes)
    }

    /// A double of eight bytes.
    pub fn f64(&mut self, field: &'static str) -> Result<f64, CodecError> {
        self.array(field).map(f64::from_le_bytes)
    }

    /// Yes or no: a byte that is 1 or 0.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, CodecError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(CodecError::Meaningless { field, got: got.into() }),
        }
    }

    /// `count` values of `N` bytes each, as `of` makes them. Memory is taken for bytes that are there.
    pub fn values<const N: usize, T>(
        &mut self,
        field: &'static str,
        count: u32,
        of: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CodecError> {
        let bytes = self.bytes(field, (count as usize).saturating_mul(N))?;
        let (values, _) = bytes.as_chunks::<N>();
        Ok(values.iter().map(|value| of(*value)).collect())
    }

    /// `count` values that have at least `least` bytes each and are read by `read`. Memory is taken for bytes that are
    /// there.
    pub fn many<T, V: FromIterator<T>>(
        &mut self,
        field: &'static str,
        count: u32,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, CodecError>,
    ) -> Result<V, CodecError> {
        let wanted = u64::from(count).saturating_mul(least as u64);
        if wanted > self.left.len() as u64 {
            return Err(CodecError::Truncated { field, wanted, got: self.left.len() });
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// All that is left, and stays to be read.
    pub fn unread(&self) -> &'a [u8] {
        self.left
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// A number of four bytes that is at most `limit`.
    pub fn u32_at_most(&mut self, field: &'static str, limit: u32) -> Result<u32, CodecError> {
        match self.u32(field)? {
            got if got > limit => {
                Err(CodecError::TooLarge { field, limit: limit.into(), got: got.into() })
            }
            value => Ok(value),
        }
    }

    /// Text: its length in two bytes, then UTF-8 of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`], [`CodecError::TooLarge`] or [`CodecError::NotText`].
    pub fn text(&mut self, field: &'static str, limit: u16) -> Result<&'a str, CodecError> {
        let len = self.u16(field)?;
        if len > limit {
            return Err(CodecError::TooLarge { field, limit: limit.into(), got: len.into() });
        }
        let bytes = self.bytes(field, len.into())?;
        std::str::from_utf8(bytes).map_err(|_| CodecError::NotText { field })
    }

    /// A number of eight bytes that may be none, which is the largest number.
    pub fn maybe(&mut self, field: &'static str) -> Result<Option<u64>, CodecError> {
        self.u64(field).map(|value| (value != u64::MAX).then_some(value))
    }

    /// A count of at most `most`, of things that have at least `least` bytes each: so memory is taken for what is
    /// there.
    pub fn count(
        &mut self,
        field: &'static str,
        most: u32,
        least: usize,
    ) -> Result<usize, CodecError> {
        let count = self.u32_at_most(field, most)? as usize;
        let wanted = (count as u64).saturating_mul(least as u64);
        match self.left.len() {
            got if wanted > got as u64 => Err(CodecError::Truncated { field, wanted, got }),
            _ => Ok(count),
        }
    }

    /// Text: its length in four bytes, then UTF-8 of at most [`MAX_TEXT`] bytes.
    pub fn string(&mut self, field: &'static str) -> Result<String, CodecError> {
        let len = self.u32_at_most(field, MAX_TEXT)?;
        let bytes = self.bytes(field, len as usize)?;
        let text = std::str::from_utf8(bytes).map_err(|_| CodecError::NotText { field })?;
        Ok(text.to_owned())
    }

    /// Says that nothing more may come.
    ///
    /// # Errors
    ///
    /// [`CodecError::Trailing`] when bytes are left.
    pub fn end(self, what: &'static str) -> Result<(), CodecError> {
        match self.left.len() {
            0 => Ok(()),
            extra => Err(CodecError::Trailing { what, extra }),
        }
    }
}

/// Writes text as [`Reader::text`] reads it, cut to `limit` bytes at a character.
pub fn write_text(out: &mut Vec<u8>, text: &str, limit: u16) {
    let text = cut(text, limit.into());
    let len = u16::try_from(text.len()).unwrap_or(limit);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The longest start of a text that has at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}

/// Appends values, each as the bytes that `bytes` makes of it.
pub fn write_values<const N: usize, T: Copy>(
    out: &mut Vec<u8>,
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) {
    let start = out.len();
    out.resize(start.saturating_add(values.len().saturating_mul(N)), 0);
    let (places, _) = out.get_mut(start..).unwrap_or_default().as_chunks_mut::<N>();
    for (place, value) in places.iter_mut().zip(values) {
        *place = bytes(*value);
    }
}

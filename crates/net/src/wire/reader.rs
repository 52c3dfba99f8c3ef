//! Bytes from outside, read field by field.

use super::WireError;

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
    /// [`WireError::Truncated`] when fewer are left.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        let Some((taken, left)) = self.left.split_at_checked(len) else {
            return Err(WireError::Truncated { field, wanted: len, got: self.left.len() });
        };
        self.left = left;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`] when fewer are left.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let Some((taken, left)) = self.left.split_first_chunk() else {
            return Err(WireError::Truncated { field, wanted: N, got: self.left.len() });
        };
        self.left = left;
        Ok(*taken)
    }

    /// A number of one byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A signed number of eight bytes.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, WireError> {
        self.array(field).map(i64::from_le_bytes)
    }

    /// A double of eight bytes.
    pub fn f64(&mut self, field: &'static str) -> Result<f64, WireError> {
        self.array(field).map(f64::from_le_bytes)
    }

    /// Yes or no: a byte that is 1 or 0.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(WireError::Meaningless { field, got: got.into() }),
        }
    }

    /// `count` values of `N` bytes each, as `of` makes them. Memory is taken for bytes that are there.
    pub fn values<const N: usize, T>(
        &mut self,
        field: &'static str,
        count: u32,
        of: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, WireError> {
        let bytes = self.bytes(field, (count as usize).saturating_mul(N))?;
        let (values, _) = bytes.as_chunks::<N>();
        Ok(values.iter().map(|value| of(*value)).collect())
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// A number of four bytes that is at most `limit`.
    pub fn u32_at_most(&mut self, field: &'static str, limit: u32) -> Result<u32, WireError> {
        match self.u32(field)? {
            got if got > limit => {
                Err(WireError::TooLarge { field, limit: limit.into(), got: got.into() })
            }
            value => Ok(value),
        }
    }

    /// Text: its length in two bytes, then UTF-8 of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`], [`WireError::TooLarge`] or [`WireError::NotText`].
    pub fn text(&mut self, field: &'static str, limit: u16) -> Result<&'a str, WireError> {
        let len = self.u16(field)?;
        if len > limit {
            return Err(WireError::TooLarge { field, limit: limit.into(), got: len.into() });
        }
        let bytes = self.bytes(field, len.into())?;
        std::str::from_utf8(bytes).map_err(|_| WireError::NotText { field })
    }

    /// Ends a frame.
    ///
    /// # Errors
    ///
    /// [`WireError::Trailing`] when bytes are left.
    pub fn end(self, frame: &'static str) -> Result<(), WireError> {
        match self.left.len() {
            0 => Ok(()),
            extra => Err(WireError::Trailing { frame, extra }),
        }
    }
}

/// Writes text as [`Reader::text`] reads it, cut to `limit` bytes at a character.
pub fn write_text(out: &mut Vec<u8>, text: &str, limit: u16) {
    let mut end = text.len().min(limit.into());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let text = text.get(..end).unwrap_or_default();
    let len = u16::try_from(text.len()).unwrap_or(limit);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
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

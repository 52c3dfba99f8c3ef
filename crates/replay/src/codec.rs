//! Values as bytes, in files, journals and on connections.
//!
//! A [`Reader`] takes bytes field by field, and each field has a name for the error. A value that has bytes says so with
//! [`Encode`] and [`Decode`]; a struct or an enum lists its fields once, with [`fields!`](crate::fields) or
//! [`variants!`](crate::variants), and has both.
//!
//! Numbers are little-endian. A list is its length in four bytes, then its values; a text likewise, in UTF-8. What may be missing is a byte, 0 or 1, and then the value if it is there. A variant is its number in a byte, and
//! its fields.
//!
//! Bytes that are many and are only copied, as tokens, may be apart from the rest, in a [`Bulk`]: then the rest, the
//! *head*, only has their length.
//!
//! # Invariants
//!
//! 1. Nothing here panics, whatever the bytes.
//! 2. Memory is taken for bytes that are there: a count is compared with what is left first.
//! 3. A value has one form: what is read would be written again byte for byte.
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![deny(clippy::arithmetic_side_effects)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::{Array, SmallVec};

use crate::spec::SpecError;

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
    /// Leaves of which no sample could be.
    #[error("the spec: {0}")]
    Spec(#[from] SpecError),
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

/// A value that has bytes.
pub trait Encode {
    /// Appends them.
    fn encode(&self, out: &mut Vec<u8>);

    /// Appends those of several values. For numbers this is a copy of memory.
    fn encode_all(all: &[Self], out: &mut Vec<u8>)
    where
        Self: Sized,
    {
        all.iter().for_each(|one| one.encode(out));
    }
}

/// A value that is read from the bytes that it has as [`Encode`].
pub trait Decode: Sized {
    /// The fewest bytes that a value has.
    const LEAST: usize;

    /// Reads a value. Errors name it `field`, unless it has fields with names of their own.
    ///
    /// # Errors
    ///
    /// [`CodecError`] for bytes that no value has.
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError>;

    /// Reads `count` values, which [may be there](Reader::count). For numbers this is a copy of memory.
    ///
    /// # Errors
    ///
    /// As [`Decode::decode`].
    fn decode_all(
        from: &mut Reader<'_>,
        field: &'static str,
        count: usize,
    ) -> Result<Vec<Self>, CodecError> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(Self::decode(from, field)?);
        }
        Ok(all)
    }
}

/// Where the bytes are that are apart from a head, one piece after the other.
///
/// A piece may be there again, where the bulk [keeps](Bulk::again) those before.
pub trait Bulk {
    /// The next `len` bytes.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] when fewer are left.
    fn piece(&mut self, field: &'static str, len: u32) -> Result<Vec<u8>, CodecError>;

    /// Takes note of a piece that may be there again.
    fn keep(&mut self, _piece: &Arc<Vec<u8>>) {}

    /// A piece that was kept, by its number.
    fn again(&mut self, _number: u32) -> Option<Arc<Vec<u8>>> {
        None
    }
}

/// Stands for a length: the number of a piece that is there again follows.
pub const AGAIN: u32 = u32::MAX;

impl Bulk for Reader<'_> {
    fn piece(&mut self, field: &'static str, len: u32) -> Result<Vec<u8>, CodecError> {
        Ok(self.bytes(field, len as usize)?.to_vec())
    }
}

/// What is left of some bytes. Every method names the field that it reads, for the error.
pub struct Reader<'a> {
    left: &'a [u8],
    bulk: Option<&'a mut dyn Bulk>,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes, bulk: None }
    }

    /// Reads from the start of a head, whose large bytes are apart.
    pub fn with_bulk(head: &'a [u8], bulk: &'a mut dyn Bulk) -> Self {
        Self { left: head, bulk: Some(bulk) }
    }

    /// A value.
    ///
    /// # Errors
    ///
    /// See [`Decode::decode`].
    pub fn get<T: Decode>(&mut self, field: &'static str) -> Result<T, CodecError> {
        T::decode(self, field)
    }

    /// How many values a list has, for which there are bytes enough.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] when there are fewer bytes.
    pub fn count<T: Decode>(&mut self, field: &'static str) -> Result<usize, CodecError> {
        let count = self.u32(field)?;
        let wanted = u64::from(count).saturating_mul(T::LEAST as u64);
        match self.left.len() {
            got if wanted > got as u64 => Err(CodecError::Truncated { field, wanted, got }),
            _ => Ok(count as usize),
        }
    }

    /// Bytes that are apart, and whose length is the next number.
    ///
    /// # Errors
    ///
    /// [`CodecError::Truncated`] when there are fewer.
    pub fn piece(&mut self, field: &'static str) -> Result<Vec<u8>, CodecError> {
        let len = self.u32(field)?;
        match &mut self.bulk {
            Some(bulk) => bulk.piece(field, len),
            None => Reader::new(&[]).bytes(field, len as usize).map(<[u8]>::to_vec),
        }
    }

    /// As [`Reader::piece`], of bytes that may be there again.
    ///
    /// # Errors
    ///
    /// As there, and [`CodecError::Meaningless`] for one that was not there before.
    pub fn shared_piece(&mut self, field: &'static str) -> Result<Arc<Vec<u8>>, CodecError> {
        if self.left.first_chunk() == Some(&AGAIN.to_le_bytes()) {
            let (_, number) = (self.u32(field)?, self.u32(field)?);
            let piece = self.bulk.as_mut().and_then(|bulk| bulk.again(number));
            return piece.ok_or(CodecError::Meaningless { field, got: number.into() });
        }
        let piece = Arc::new(self.piece(field)?);
        if let Some(bulk) = &mut self.bulk {
            bulk.keep(&piece);
        }
        Ok(piece)
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
        self.get(field)
    }

    /// A number of two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, CodecError> {
        self.get(field)
    }

    /// A number of four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, CodecError> {
        self.get(field)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, CodecError> {
        self.get(field)
    }

    /// A signed number of eight bytes.
    pub fn i64(&mut self, field: &'static str) -> Result<i64, CodecError> {
        self.get(field)
    }

    /// A double of eight bytes.
    pub fn f64(&mut self, field: &'static str) -> Result<f64, CodecError> {
        self.get(field)
    }

    /// Yes or no: a byte that is 1 or 0.
    pub fn flag(&mut self, field: &'static str) -> Result<bool, CodecError> {
        self.get(field)
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

/// A value behind the number of its format: what a file has that has nothing else.
pub(crate) fn write_formatted(format: u32, value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    format.encode(&mut out);
    value.encode(&mut out);
    out
}

/// Reads what [`write_formatted`] gave.
pub(crate) fn read_formatted<T: Decode>(bytes: &[u8], format: u32) -> Result<T, CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.u32("format")? {
        got if got != format => Err(CodecError::Format { expected: format, got }),
        _ => {
            let value = reader.get("head")?;
            reader.end("head").map(|()| value)
        }
    }
}

/// Appends how many there are, for [`Reader::count`] or [`Reader::piece`].
pub fn write_count(out: &mut Vec<u8>, count: usize) {
    // Nothing of ours has as many.
    u32::try_from(count).unwrap_or(u32::MAX).encode(out);
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Encode for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn encode_all(all: &[Self], out: &mut Vec<u8>) {
                let start = out.len();
                out.resize(start.saturating_add(size_of_val(all)), 0);
                let (places, _) = out.get_mut(start..).unwrap_or_default().as_chunks_mut();
                for (place, number) in places.iter_mut().zip(all) {
                    *place = number.to_le_bytes();
                }
            }
        }

        impl Decode for $number {
            const LEAST: usize = size_of::<Self>();

            fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
                from.array(field).map(Self::from_le_bytes)
            }

            fn decode_all(
                from: &mut Reader<'_>,
                field: &'static str,
                count: usize,
            ) -> Result<Vec<Self>, CodecError> {
                let bytes = from.bytes(field, count.saturating_mul(Self::LEAST))?;
                Ok(bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect())
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 i64 f64 }

/// As a number of eight bytes.
impl Encode for usize {
    fn encode(&self, out: &mut Vec<u8>) {
        (*self as u64).encode(out);
    }
}

impl Decode for usize {
    const LEAST: usize = u64::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let got = from.u64(field)?;
        Self::try_from(got).map_err(|_| CodecError::Meaningless { field, got })
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u8::from(*self).encode(out);
    }
}

impl Decode for bool {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        match from.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(CodecError::Meaningless { field, got: got.into() }),
        }
    }
}

impl Encode for str {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl Decode for String {
    const LEAST: usize = 4;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let len = from.u32(field)?;
        let bytes = from.bytes(field, len as usize)?;
        let text = std::str::from_utf8(bytes).map_err(|_| CodecError::NotText { field })?;
        Ok(text.to_owned())
    }
}

impl Encode for Cow<'_, str> {
    fn encode(&self, out: &mut Vec<u8>) {
        str::encode(self, out);
    }
}

impl Decode for Cow<'_, str> {
    const LEAST: usize = String::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        String::decode(from, field).map(Cow::Owned)
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl<T: Encode> Encode for Arc<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl<T: Decode> Decode for Arc<T> {
    const LEAST: usize = T::LEAST;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        T::decode(from, field).map(Self::new)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        self.iter().for_each(|value| value.encode(out));
    }
}

impl<T: Decode> Decode for Option<T> {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        if from.flag(field)? { T::decode(from, field).map(Some) } else { Ok(None) }
    }
}

impl<T: Encode, E: Encode> Encode for Result<T, E> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_err().encode(out);
        match self {
            Ok(value) => value.encode(out),
            Err(error) => error.encode(out),
        }
    }
}

impl<T: Decode, E: Decode> Decode for Result<T, E> {
    const LEAST: usize = 1;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        Ok(if from.flag(field)? { Err(from.get(field)?) } else { Ok(from.get(field)?) })
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    const LEAST: usize = A::LEAST.saturating_add(B::LEAST);

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        Ok((from.get(field)?, from.get(field)?))
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) {
        write_count(out, self.len());
        T::encode_all(self, out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Decode> Decode for Vec<T> {
    const LEAST: usize = 4;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let count = from.count::<T>(field)?;
        T::decode_all(from, field, count)
    }
}

/// As a list of numbers and values, the lowest number first.
impl<T: Encode> Encode for BTreeMap<u64, T> {
    fn encode(&self, out: &mut Vec<u8>) {
        write_count(out, self.len());
        for (number, value) in self {
            (number, value).encode(out);
        }
    }
}

impl<T: Decode> Decode for BTreeMap<u64, T> {
    const LEAST: usize = 4;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let mut map = Self::new();
        for _ in 0..from.count::<(u64, T)>(field)? {
            let (number, value) = from.get(field)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= number) {
                return Err(CodecError::Meaningless { field, got: number });
            }
            map.insert(number, value);
        }
        Ok(map)
    }
}

impl<A: Array<Item: Encode>> Encode for SmallVec<A> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<A: Array<Item: Decode>> Decode for SmallVec<A> {
    const LEAST: usize = 4;

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let count = from.count::<A::Item>(field)?;
        let mut all = Self::with_capacity(count);
        for _ in 0..count {
            all.push(from.get(field)?);
        }
        Ok(all)
    }
}

/// Without their number.
impl<T: Encode, const N: usize> Encode for [T; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode_all(self, out);
    }
}

impl<T: Decode + Copy + Default, const N: usize> Decode for [T; N] {
    const LEAST: usize = T::LEAST.saturating_mul(N);

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, CodecError> {
        let mut all = [T::default(); N];
        for one in &mut all {
            *one = from.get(field)?;
        }
        Ok(all)
    }
}

/// Has structs written and read field by field, in this order. What is behind a semicolon has no bytes, and is always read as
/// the same.
///
/// ```
/// use echoic_replay::codec::{Encode, Reader};
///
/// #[derive(Debug, PartialEq)]
/// struct Place { row: u32, name: String, is_new: bool }
/// echoic_replay::fields! { Place { row: u32, name: String; is_new: false } }
///
/// let (place, mut bytes) = (Place { row: 3, name: "a".into(), is_new: true }, Vec::new());
/// place.encode(&mut bytes);
/// assert_eq!(bytes, [3, 0, 0, 0, 1, 0, 0, 0, b'a']);
/// let read = Reader::new(&bytes).get::<Place>("place");
/// assert_eq!(read, Ok(Place { is_new: false, ..place }));
/// let cut = Reader::new(&bytes[..6]).get::<Place>("place").unwrap_err();
/// assert_eq!(cut.to_string(), "name: expected 4 more bytes, got 2");
/// ```
#[macro_export]
macro_rules! fields {
    ($($type:ident {
        $($field:ident: $kind:ty),* $(,)? $(; $($absent:ident: $value:expr),* $(,)?)?
    })*) => {$(
        impl $crate::codec::Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                let Self { $($field,)* $($($absent: _,)*)? } = self;
                $($crate::codec::Encode::encode($field, out);)*
            }
        }

        impl $crate::codec::Decode for $type {
            const LEAST: usize = 0 $(+ <$kind as $crate::codec::Decode>::LEAST)*;

            fn decode(
                from: &mut $crate::codec::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::codec::CodecError> {
                Ok(Self {
                    $($field: from.get::<$kind>(stringify!($field))?,)*
                    $($($absent: $value,)*)?
                })
            }
        }
    )*};
}

/// Has enums written and read: the number of the variant in a byte, then its fields. Those of a tuple get names here, for
/// errors.
///
/// ```
/// use echoic_replay::codec::{Encode, Reader};
///
/// #[derive(Debug, PartialEq)]
/// enum Answer { Nothing, Number(u32), Text { text: String } }
/// echoic_replay::variants! {
///     Answer { 0 => Nothing, 1 => Number(number: u32), 2 => Text { text: String } }
/// }
///
/// let mut bytes = Vec::new();
/// Answer::Number(7).encode(&mut bytes);
/// assert_eq!(bytes, [1, 7, 0, 0, 0]);
/// assert_eq!(Reader::new(&bytes).get("answer"), Ok(Answer::Number(7)));
/// let wrong = Reader::new(&[9]).get::<Answer>("answer").unwrap_err();
/// assert_eq!(wrong.to_string(), "answer: 9 has no meaning");
/// ```
#[macro_export]
macro_rules! variants {
    ($($type:ident { $(
        $number:literal => $variant:ident
            $(($($element:ident: $element_kind:ty),*))?
            $({ $($field:ident: $field_kind:ty),* $(,)? })?
    ),* $(,)? })*) => {$(
        impl $crate::codec::Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {$(
                    Self::$variant $(($($element),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::codec::Encode::encode($element, out);)*)?
                        $($($crate::codec::Encode::encode($field, out);)*)?
                    }
                )*}
            }
        }

        impl $crate::codec::Decode for $type {
            const LEAST: usize = 1;

            fn decode(
                from: &mut $crate::codec::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::codec::CodecError> {
                Ok(match from.u8(field)? {
                    $($number => Self::$variant
                        $(($(from.get::<$element_kind>(stringify!($element))?),*))?
                        $({ $($field: from.get::<$field_kind>(stringify!($field))?),* })?,)*
                    got => {
                        let got = got.into();
                        return Err($crate::codec::CodecError::Meaningless { field, got });
                    }
                })
            }
        }
    )*};
}

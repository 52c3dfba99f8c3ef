//! Rows of one width in one stretch of bytes, and copies of many of them into columns.
//!
//! The bytes are our own, packed and aligned, or borrowed from their owner: an array, or a file that is
//! mapped. Our own are asked for ahead of the copy, since small rows from all over the memory would wait for
//! it one after the other. Those of a file are announced to the system and read in the order of the file.

use std::fmt;

use echoic_memory::slab::Field;
use echoic_memory::{AllocError, advice, prefetch, roomy};

/// Bytes that their owner keeps for as long as this lives, and does not change.
pub type Borrowed = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Stands for a row that is not there: it is copied as zeros.
pub const NOWHERE: usize = usize::MAX;

/// How many rows ahead of the copy the memory is asked for.
const AHEAD: usize = 32;

/// A longer row is followed by the processor without being asked.
const ASKED_FOR: usize = 512;

/// A cache line.
const LINE: usize = 64;

/// From this many bytes on it pays to tell the system which parts of a file come.
const ANNOUNCED: usize = 64 << 10;

/// See the [module](self).
pub struct Part {
    bytes: Bytes,
    stride: usize,
    rows: usize,
}

enum Bytes {
    /// Aligned to lines from `start` on.
    Own {
        memory: Vec<u8>,
        start: usize,
    },
    Borrowed {
        bytes: Borrowed,
        on_disk: bool,
    },
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.bytes {
            Bytes::Own { .. } => "own",
            Bytes::Borrowed { .. } => "borrowed",
        };
        write!(f, "Part({kind}, {} rows of {} bytes)", self.rows, self.stride)
    }
}

impl Part {
    /// Rows of `stride` bytes that lie in borrowed bytes; `on_disk` when these are a mapped file. `None` when
    /// there are fewer bytes.
    pub fn borrowed(bytes: Borrowed, stride: usize, rows: usize, on_disk: bool) -> Option<Self> {
        let enough = rows.checked_mul(stride)? <= (*bytes).as_ref().len();
        enough.then_some(Self { bytes: Bytes::Borrowed { bytes, on_disk }, stride, rows })
    }

    /// Rows of our own, each of `row_bytes` bytes, which `fill` is to write: a few rows at a time, of which
    /// it is told the first and how far apart they are.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the machine could not hold them.
    pub fn own(
        rows: usize,
        row_bytes: usize,
        mut fill: impl FnMut(usize, usize, &mut [u8]),
    ) -> Result<Self, AllocError> {
        let what = || format!("{rows} rows of {row_bytes} bytes");
        let stride = stride_of(row_bytes);
        let room = rows.checked_mul(stride).and_then(|bytes| bytes.checked_add(LINE));
        let room = room.ok_or_else(|| AllocError::Overflow { what: what() })?;
        let mut memory: Vec<u8> = roomy(room);
        if memory.capacity() < room {
            return Err(AllocError::Refused { bytes: room });
        }
        let start = memory.as_ptr().align_offset(LINE).min(LINE);
        memory.resize(start, 0);
        // Some rows at a time, so that they are still near when they are filled after they were zeroed.
        let some = (BLOCK_BYTES / stride.max(1)).max(1);
        let mut first = 0;
        while first < rows {
            let count = some.min(rows - first);
            let at = memory.len();
            memory.resize(at + count * stride, 0);
            fill(first, stride, &mut memory[at..]);
            first += count;
        }
        Ok(Self { bytes: Bytes::Own { memory, start }, stride, rows })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many bytes of our own it has.
    pub fn own_bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Own { memory, .. } => memory.capacity(),
            Bytes::Borrowed { .. } => 0,
        }
    }

    /// All rows, one after the other.
    pub fn all(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own { memory, start } => &memory[*start..],
            Bytes::Borrowed { bytes, .. } => &(**bytes).as_ref()[..self.rows * self.stride],
        }
    }

    /// A field of a row.
    ///
    /// # Panics
    ///
    /// When there is no such row or field.
    pub fn field(&self, row: usize, field: Field) -> &[u8] {
        &self.all()[row * self.stride + field.offset..][..field.bytes]
    }

    /// Copies each field of these rows, one after the other, into its column.
    ///
    /// # Panics
    ///
    /// When there is no such row or field, or a column is not as long as all its values.
    pub fn gather(&self, rows: &[usize], fields: &[Field], columns: &mut [&mut [u8]]) {
        assert_eq!(fields.len(), columns.len(), "a column for each field");
        for (field, column) in fields.iter().zip(columns.iter()) {
            assert!(field.offset + field.bytes <= self.stride, "{field:?} of {self:?}");
            assert_eq!(field.bytes * rows.len(), column.len(), "{field:?} of {} rows", rows.len());
        }
        match &self.bytes {
            Bytes::Borrowed { on_disk: true, .. } => self.gather_in_order(rows, fields, columns),
            _ => self.gather_ahead(rows, fields, columns),
        }
    }

    /// A block of rows at a time and in it field by field, so that what is the same for all values of a
    /// field is decided once for many, while the rows are still near.
    fn gather_ahead(&self, rows: &[usize], fields: &[Field], columns: &mut [&mut [u8]]) {
        let all = self.all();
        let ask_for = |rows: &[usize]| {
            for row in rows.iter().filter(|row| **row != NOWHERE) {
                let start = row * self.stride;
                for at in (start..start + self.stride.min(ASKED_FOR)).step_by(LINE) {
                    prefetch(&all[at]);
                }
            }
        };
        let blocks = || rows.chunks(AHEAD);
        blocks().next().into_iter().for_each(ask_for);
        let mut first = 0;
        for (rows, next) in blocks().zip(blocks().skip(1).map(Some).chain([None])) {
            next.into_iter().for_each(ask_for);
            for (field, column) in fields.iter().zip(columns.iter_mut()) {
                let range = first * field.bytes..(first + rows.len()) * field.bytes;
                copy(all, self.stride, rows, *field, &mut column[range]);
            }
            first += rows.len();
        }
    }

    /// In the order of the file, whatever order the rows are wanted in.
    fn gather_in_order(&self, rows: &[usize], fields: &[Field], columns: &mut [&mut [u8]]) {
        let all = self.all();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|place| rows[*place]);
        let there = |place: &&usize| rows[**place] != NOWHERE;
        if rows.len() * self.stride >= ANNOUNCED {
            for place in order.iter().filter(there) {
                advice::will_need(&all[rows[*place] * self.stride..][..self.stride]);
            }
        }
        for (field, column) in fields.iter().zip(columns.iter_mut()) {
            for place in &order {
                let to = &mut column[place * field.bytes..][..field.bytes];
                match rows[*place] {
                    NOWHERE => to.fill(0),
                    row => {
                        to.copy_from_slice(&all[row * self.stride + field.offset..][..field.bytes])
                    }
                }
            }
        }
    }
}

/// How many bytes of rows are packed at a time.
const BLOCK_BYTES: usize = 256 << 10;

/// How far apart rows of this many bytes are: so that a row has as few lines as it can, where that costs at
/// most three fifths more memory.
fn stride_of(row_bytes: usize) -> usize {
    let lines = if row_bytes <= LINE {
        row_bytes.next_power_of_two()
    } else {
        row_bytes.next_multiple_of(LINE)
    };
    if lines <= row_bytes * 8 / 5 { lines } else { row_bytes.next_multiple_of(8) }
}

/// Copies a field of these rows.
fn copy(all: &[u8], stride: usize, rows: &[usize], field: Field, column: &mut [u8]) {
    match field.bytes {
        0 => {}
        1 => copy_few::<1>(all, stride, rows, field.offset, column),
        2 => copy_few::<2>(all, stride, rows, field.offset, column),
        4 => copy_few::<4>(all, stride, rows, field.offset, column),
        8 => copy_few::<8>(all, stride, rows, field.offset, column),
        12 => copy_few::<12>(all, stride, rows, field.offset, column),
        16 => copy_few::<16>(all, stride, rows, field.offset, column),
        24 => copy_few::<24>(all, stride, rows, field.offset, column),
        32 => copy_few::<32>(all, stride, rows, field.offset, column),
        bytes => {
            for (row, to) in rows.iter().zip(column.chunks_exact_mut(bytes)) {
                match *row {
                    NOWHERE => to.fill(0),
                    row => copy_bytes(&all[row * stride + field.offset..][..bytes], to),
                }
            }
        }
    }
}

/// As [`copy`] for a size that the compiler knows: a few instructions for each value, not a call.
fn copy_few<const BYTES: usize>(
    all: &[u8],
    stride: usize,
    rows: &[usize],
    offset: usize,
    column: &mut [u8],
) {
    let (values, _) = column.as_chunks_mut::<BYTES>();
    for (row, to) in rows.iter().zip(values) {
        // By value: a slice is copied by a call where the compiler does not look closely.
        *to = match *row {
            NOWHERE => [0; BYTES],
            row => match all[row * stride + offset..].first_chunk() {
                Some(value) => *value,
                None => panic!("row {row} is not there"),
            },
        };
    }
}

/// Copies a value of any size; one of a few lines without a call, the last step going over bytes that are
/// copied already.
#[inline]
fn copy_bytes(from: &[u8], to: &mut [u8]) {
    const STEP: usize = 16;
    if from.len() < STEP || from.len() > 256 || from.len() != to.len() {
        return to.copy_from_slice(from);
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<STEP>(), to.last_chunk_mut()) {
        *to = *from;
    }
    let (from, _) = from.as_chunks::<STEP>();
    let (to, _) = to.as_chunks_mut::<STEP>();
    for (from, to) in from.iter().zip(to) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 14] = [0, 1, 2, 3, 4, 8, 12, 16, 17, 24, 32, 68, 255, 300];

    fn byte(row: usize, at: usize) -> u8 {
        (row * 7 + at) as u8
    }

    fn own(rows: usize, row_bytes: usize) -> Part {
        Part::own(rows, row_bytes, |first, stride, bytes| {
            for (number, row) in bytes.chunks_exact_mut(stride).enumerate() {
                for (at, value) in row[..row_bytes].iter_mut().enumerate() {
                    *value = byte(first + number, at);
                }
            }
        })
        .unwrap()
    }

    fn borrowed(rows: usize, row_bytes: usize, on_disk: bool) -> Part {
        let bytes: Vec<u8> =
            (0..rows).flat_map(|row| (0..row_bytes).map(move |at| byte(row, at))).collect();
        Part::borrowed(Box::new(bytes), row_bytes, rows, on_disk).unwrap()
    }

    #[test]
    fn gathers_fields_of_every_size_from_own_lent_and_mapped_rows() {
        let row_bytes = SIZES.iter().sum();
        let mut offset = 0;
        let fields = SIZES.map(|bytes| {
            offset += bytes;
            Field { offset: offset - bytes, bytes }
        });
        let mut rows: Vec<usize> = (0..200).map(|draw| draw * 37 % 100).collect();
        rows[3] = NOWHERE;
        rows[150] = NOWHERE;
        for part in
            [own(100, row_bytes), borrowed(100, row_bytes, false), borrowed(100, row_bytes, true)]
        {
            let mut columns = SIZES.map(|bytes| vec![255; bytes * rows.len()]);
            let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
            part.gather(&rows, &fields, &mut targets);
            for (field, column) in fields.iter().zip(&columns) {
                let expected = rows.iter().flat_map(|row| {
                    let row = *row;
                    (field.offset..field.offset + field.bytes)
                        .map(move |at| if row == NOWHERE { 0 } else { byte(row, at) })
                });
                assert!(column.iter().copied().eq(expected), "{field:?} of {part:?}");
            }
        }
    }

    #[test]
    fn rows_of_our_own_lie_in_as_few_lines_as_they_can() {
        assert_eq!([1, 3, 42, 64].map(stride_of), [1, 4, 64, 64]);
        assert_eq!([72, 166, 200].map(stride_of), [72, 192, 256]);
        let part = own(9, 42);
        assert_eq!(part.all().as_ptr() as usize % LINE, 0);
    }

    #[test]
    fn lent_bytes_that_are_too_few_are_refused() {
        assert!(Part::borrowed(Box::new(vec![0; 9]), 5, 2, false).is_none());
        assert!(Part::borrowed(Box::new(vec![0; 9]), usize::MAX, 2, false).is_none());
    }

    #[test]
    fn more_rows_than_the_machine_holds_are_an_error() {
        assert!(matches!(Part::own(usize::MAX, 2, |_, _, _| ()), Err(AllocError::Overflow { .. })));
        assert!(matches!(Part::own(1 << 44, 64, |_, _, _| ()), Err(AllocError::Refused { .. })));
    }
}

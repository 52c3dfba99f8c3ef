//! Copying fields of scattered rows into columns.
//!
//! What is copied is read once. What is large is written past the caches: a batch that does not fit in them has to
//! leave them anyway, and a plain store first reads the line that it replaces. That is a third of the traffic.

use crate::advice::prefetch_at;
use crate::slab::Field;

/// How many rows are copied together.
const BLOCK: usize = 8;

/// How many blocks ahead of the copy memory is asked for.
const AHEAD: usize = 2;

/// From how many bytes of a batch on, and of each value in it, values are written past the caches.
const PAST_CACHES: (usize, usize) = (2 << 20, 1024);

/// Copies each field of `count` rows, one after the other, into its column. `row` gives the row at a place, and
/// `start` the address where it begins.
///
/// # Panics
///
/// When a field is not inside a row, or its column is not as long as all its values.
#[inline]
pub(crate) fn gather<'a>(
    count: usize,
    row_bytes: usize,
    start: impl Fn(usize) -> *const u8,
    row: impl Fn(usize) -> &'a [u8],
    fields: &[Field],
    columns: &mut [&mut [u8]],
) {
    assert_eq!(fields.len(), columns.len(), "a column for each field");
    for (field, column) in fields.iter().zip(columns.iter()) {
        let inside = field.offset.checked_add(field.bytes);
        assert!(inside.is_some_and(|end| end <= row_bytes), "{field:?}");
        assert_eq!(field.bytes.checked_mul(count), Some(column.len()), "{field:?}");
    }
    let past_caches = columns.iter().map(|column| column.len()).sum::<usize>() >= PAST_CACHES.0;
    // A block of rows at a time and in it field by field, so that what is the same for all values of a
    // field is decided once for many, while the rows are still near. Blocks are small, and memory is
    // asked for some blocks ahead, so that the processor waits for lines while it copies others: it can
    // wait for about a dozen at once, and stands still when it is asked for more.
    let mut ahead = 0..count;
    let ask = |at| prefetch_row(start(at), row_bytes);
    ahead.by_ref().take(AHEAD * BLOCK).for_each(ask);
    let mut near: [&[u8]; BLOCK] = [&[]; BLOCK];
    for first in (0..count).step_by(BLOCK) {
        ahead.by_ref().take(BLOCK).for_each(ask);
        let block = BLOCK.min(count - first);
        for (at, near) in near[..block].iter_mut().enumerate() {
            *near = row(first + at);
        }
        for (field, column) in fields.iter().zip(columns.iter_mut()) {
            let column = &mut column[first * field.bytes..(first + block) * field.bytes];
            if past_caches && field.bytes >= PAST_CACHES.1 {
                for (row, to) in near[..block].iter().zip(column.chunks_exact_mut(field.bytes)) {
                    copy_past_caches(&row[field.offset..field.offset + field.bytes], to);
                }
            } else {
                copy(&near[..block], *field, column);
            }
        }
    }
}

/// Has the processor fetch a row that will be read soon: its start, and its end; the rest of a long one it
/// follows by itself.
#[inline]
pub(crate) fn prefetch_row(start: *const u8, row_bytes: usize) {
    prefetch_at(start);
    let last = row_bytes.clamp(1, 256) - 1;
    for line in (64..=last).step_by(64) {
        prefetch_at(start.wrapping_add(line));
    }
    prefetch_at(start.wrapping_add(last));
}

/// Copies a field of these rows.
#[inline]
fn copy(rows: &[&[u8]], field: Field, column: &mut [u8]) {
    match field.bytes {
        0 => {}
        1 => copy_few::<1>(rows, field, column),
        2 => copy_few::<2>(rows, field, column),
        4 => copy_few::<4>(rows, field, column),
        8 => copy_few::<8>(rows, field, column),
        12 => copy_few::<12>(rows, field, column),
        16 => copy_few::<16>(rows, field, column),
        24 => copy_few::<24>(rows, field, column),
        32 => copy_few::<32>(rows, field, column),
        bytes => {
            for (row, to) in rows.iter().zip(column.chunks_exact_mut(bytes)) {
                to.copy_from_slice(&row[field.offset..field.offset + bytes]);
            }
        }
    }
}

/// As [`copy`] for a size that the compiler knows: a few instructions for each, not a call.
#[inline]
fn copy_few<const BYTES: usize>(rows: &[&[u8]], field: Field, column: &mut [u8]) {
    let (values, _) = column.as_chunks_mut::<BYTES>();
    for (row, to) in rows.iter().zip(values) {
        to.copy_from_slice(&row[field.offset..field.offset + BYTES]);
    }
}

/// Copies bytes to where they are not read soon: as `copy_from_slice`, but they don't go through the caches.
///
/// # Panics
///
/// When the lengths differ.
pub fn copy_past_caches(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};

        /// How far ahead of the copy lines are asked for.
        const FAR: usize = 1024;
        const LINE: usize = 64;

        let head = to.as_ptr().align_offset(LINE).min(to.len());
        let (first, rest) = to.split_at_mut(head);
        first.copy_from_slice(&from[..head]);
        let (lines, tail) = rest.as_chunks_mut::<LINE>();
        let (sources, end) = from[head..].as_chunks::<LINE>();
        for (line, source) in lines.iter_mut().zip(sources) {
            prefetch_at(source.as_ptr().wrapping_add(FAR));
            for at in (0..LINE).step_by(16) {
                // SAFETY: 16 bytes of the 64 of a live array, at any address.
                let value = unsafe { _mm_loadu_si128(source[at..].as_ptr().cast()) };
                // SAFETY: 16 of the 64 bytes of an array that is borrowed for writing and begins at a multiple of 64.
                // What is written so may be seen late by other threads; the fence below orders it.
                unsafe { _mm_stream_si128(line[at..].as_mut_ptr().cast(), value) };
            }
        }
        tail.copy_from_slice(end);
        // SAFETY: no memory is touched; stores before it are seen before those after it.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    to.copy_from_slice(from);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_size_are_gathered_in_small_batches_and_past_the_caches() {
        let sizes = [0usize, 1, 2, 3, 4, 8, 12, 16, 24, 32, 40, 300, 1500, 1024, 4097];
        let mut row_bytes = 0;
        let fields = sizes.map(|bytes| {
            row_bytes += bytes;
            Field { offset: row_bytes - bytes, bytes }
        });
        let rows: Vec<Vec<u8>> = (0..50usize)
            .map(|row| (0..row_bytes).map(|at| (row * 31 + at * 7) as u8).collect())
            .collect();
        for count in [0, 1, 7, 8, 77, if cfg!(miri) { 30 } else { 500 }] {
            let place = |at: usize| &rows[at * 17 % 50][..];
            let mut columns = sizes.map(|bytes| vec![0xAA; bytes * count]);
            let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
            let start = |at| place(at).as_ptr();
            gather(count, row_bytes, start, place, &fields, &mut targets);
            for (field, column) in fields.iter().zip(&columns) {
                let part = field.offset..field.offset + field.bytes;
                let expected = (0..count).flat_map(|at| &place(at)[part.clone()]);
                assert!(column.iter().eq(expected), "{field:?} of {count} rows");
            }
        }
    }

    #[test]
    fn bytes_are_copied_past_the_caches_from_and_to_any_address() {
        let from: Vec<u8> = (0..700usize).map(|at| (at * 13) as u8).collect();
        for (skip, offset, len) in
            [(0, 0, 0), (1, 2, 5), (3, 63, 64), (7, 1, 63), (2, 0, 500), (5, 33, 601)]
        {
            let mut to = vec![0xAA; 700];
            copy_past_caches(&from[skip..skip + len], &mut to[offset..offset + len]);
            assert_eq!(to[offset..offset + len], from[skip..skip + len]);
            assert!(to[..offset].iter().chain(&to[offset + len..]).all(|byte| *byte == 0xAA));
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_column_of_another_length_is_refused() {
        let field = Field { offset: 0, bytes: 4 };
        let mut column = [0; 7];
        gather(2, 4, |_| [0].as_ptr(), |_| &[0; 4], &[field], &mut [&mut column]);
    }
}

//! Random rows of an array, copied side by side: what a batch of a replay buffer costs at least.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::memory::{Memory, prefetch};
use crate::{Arguments, Numbers, Outcome};

/// Batches of indices that are drawn ahead: a prime number, of more rows than a cache has.
const DRAWS: usize = 997;
/// Rows that are fetched ahead of the one that is copied.
const AHEAD: usize = 16;
/// Bytes of a cache line, and how many of them of a row of any length are fetched ahead.
const LINE: usize = 64;
const LINES: usize = 8;

pub fn run(arguments: &mut Arguments) -> Outcome<Numbers> {
    let row: usize = arguments.number("bytes of a row")?;
    let rows: usize = arguments.number("rows")?;
    let batch: usize = arguments.number("rows of a batch")?;
    let time = Duration::from_secs_f64(arguments.number("seconds")?);
    if row < 8 {
        return Err("a row has its number in it, of 8 bytes".into());
    }
    let mut source = Memory::own(row * rows)?;
    for (number, bytes) in source.bytes_mut().chunks_exact_mut(row).enumerate() {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].fill(number as u8);
    }
    let mut target = Memory::own(row * batch)?;
    let draws = draw(rows, batch);
    // A copy of a length that the compiler knows needs no call.
    let gather = match row {
        16 => fixed::<16>,
        42 => fixed::<42>,
        48 => fixed::<48>,
        _ => any_length,
    };

    let (mut batches, start) = (0, Instant::now());
    while start.elapsed() < time {
        gather(source.bytes(), black_box(&draws[batches % DRAWS]), row, target.bytes_mut());
        batches += 1;
    }
    let elapsed = start.elapsed();

    let last = &draws[(batches - 1) % DRAWS];
    for (bytes, &number) in target.bytes().chunks_exact(row).zip(last) {
        if bytes[..8] != number.to_le_bytes() || bytes[8..].iter().any(|&b| b != number as u8) {
            return Err(format!("not row {number}").into());
        }
    }
    Ok(vec![("value", elapsed.as_nanos() as f64 / 1e3 / batches as f64)])
}

fn fixed<const ROW: usize>(source: &[u8], indices: &[usize], _row: usize, target: &mut [u8]) {
    let (source, _) = source.as_chunks::<ROW>();
    let (target, _) = target.as_chunks_mut::<ROW>();
    for (at, (place, &index)) in target.iter_mut().zip(indices).enumerate() {
        if let Some(&later) = indices.get(at + AHEAD) {
            // A row may begin in one cache line and end in the next.
            prefetch(&source[later][0]);
            prefetch(&source[later][ROW - 1]);
        }
        *place = source[index];
    }
}

fn any_length(source: &[u8], indices: &[usize], row: usize, target: &mut [u8]) {
    for (at, (place, &index)) in target.chunks_exact_mut(row).zip(indices).enumerate() {
        if let Some(&later) = indices.get(at + 1) {
            // Its beginning: the rest of a long row is fetched by the processor itself.
            source[later * row..][..row].iter().step_by(LINE).take(LINES).for_each(prefetch);
        }
        place.copy_from_slice(&source[index * row..][..row]);
    }
}

/// Draws indices with xorshift, which is good enough for places in memory.
fn draw(rows: usize, batch: usize) -> Vec<Vec<usize>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % rows
    };
    (0..DRAWS).map(|_| (0..batch).map(|_| next()).collect()).collect()
}

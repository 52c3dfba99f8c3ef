//! Memory copies of blocks, from so many places to so many in turn.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::{Arguments, Numbers, Outcome};

pub fn run(arguments: &mut Arguments) -> Outcome<Numbers> {
    let bytes: usize = arguments.number("bytes of a block")?;
    let sources: usize = arguments.number("blocks of the source")?;
    let targets: usize = arguments.number("blocks of the target")?;
    let time = Duration::from_secs_f64(arguments.number("seconds")?);
    // Whole cache lines apart: where a target lies a few bytes further into its page than its source does,
    // the C library's `memcpy` is many times slower on some processors.
    let stride = bytes.next_multiple_of(64);
    let mut source = Memory::own(stride * sources)?;
    for (number, block) in source.bytes_mut().chunks_exact_mut(stride).enumerate() {
        block.fill(number as u8);
    }
    let mut target = Memory::own(stride * targets)?;
    let (source, target) = (source.bytes(), target.bytes_mut());

    // A clock that is read as often as some megabytes are copied costs nothing.
    let often = (4 << 20) / bytes + 1;
    let (mut copies, start) = (0, Instant::now());
    while start.elapsed() < time {
        for copy in copies..copies + often {
            let (from, to) = (copy % sources * stride, copy % targets * stride);
            target[to..][..bytes].copy_from_slice(black_box(&source[from..][..bytes]));
        }
        black_box(&mut *target);
        copies += often;
    }
    let elapsed = start.elapsed();

    for copy in copies.saturating_sub(targets)..copies {
        if target[copy % targets * stride..][..bytes] != source[copy % sources * stride..][..bytes]
        {
            return Err("a copy that is not its source".into());
        }
    }
    Ok(vec![("value", (copies * bytes) as f64 / elapsed.as_nanos() as f64)])
}

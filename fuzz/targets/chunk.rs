//! The reader of chunks. The first byte says whether the checksum is made right, so that what it
//! guards is reached.
#![no_main]

use crc32c::{crc32c, crc32c_append};
use echoic_replay::chunk::Chunk;
use libfuzzer_sys::fuzz_target;

/// Where the checksum is.
const SUM: std::ops::Range<usize> = 12..16;

/// Larger chunks would only take time.
const MOST: usize = 1 << 22;

fuzz_target!(|bytes: &[u8]| {
    let Some((is_forged, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
    // Other chunks may follow: the checksum is of the one that is said to be here.
    if is_forged & 1 == 1
        && let Some(length) = bytes.get(16..24)
    {
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let episode = if bytes[0] == 2 { 8 } else { 0 };
        let end = (24 + episode + 8 * u64::from(bytes[3])).saturating_add(length);
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len());
        let rest = bytes.get(SUM.end..end).unwrap_or_default();
        let sum = crc32c_append(crc32c(&bytes[..SUM.start]), rest);
        bytes[SUM].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok((chunk, used)) = Chunk::read(&bytes) else { return };
    let mut written = Vec::new();
    chunk.write(&mut written);
    assert_eq!(written, bytes[..used], "one chunk has one form");
    if chunk.raw_len() > MOST {
        return;
    }
    let mut all = vec![0; chunk.raw_len()];
    chunk.copy_to(0, &mut all);
    let step = all.len() / chunk.len() as usize;
    let middle = chunk.len() / 2;
    let mut some = vec![0; step * (chunk.len() - middle).min(2) as usize];
    chunk.copy_to(middle, &mut some);
    assert_eq!(some, all[middle as usize * step..][..some.len()], "a part is a part of the whole");
});

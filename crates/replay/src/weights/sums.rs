//! How chunks are distinguished: XXH64 with the seed 0, of 256 KiB each.
//!
//! Equal sums are taken for equal bytes, so 32 bits would be too few: of a run that publishes a hundred
//! megabytes a million times, one chunk would go stale by chance. It is no protection against malice, which is
//! the business of the token and of TLS.

/// Bytes of a chunk of most publications; see [`Plan::chunk_bytes`](super::Plan::chunk_bytes).
pub const CHUNK_BYTES: usize = 256 << 10;
/// The most bytes of a chunk.
pub const MAX_CHUNK_BYTES: usize = 4 << 20;

/// Bytes that are taken in at once.
const STRIPE: usize = 32;

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// The sum of a chunk.
///
/// ```
/// use echoic_replay::weights::sum;
///
/// assert_eq!(sum(b""), 0xef46db3751d8e999);
/// assert_ne!(sum(&[0; 64]), sum(&[0; 65]));
/// ```
pub fn sum(bytes: &[u8]) -> u64 {
    let (stripes, mut rest) = bytes.as_chunks::<STRIPE>();
    let mut hash = if stripes.is_empty() {
        P5
    } else {
        let mut lanes = [P1.wrapping_add(P2), P2, 0, P1.wrapping_neg()];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        let [a, b, c, d] = lanes;
        let joined = a
            .rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18));
        lanes
            .iter()
            .fold(joined, |hash, lane| (hash ^ round(0, *lane)).wrapping_mul(P1).wrapping_add(P4))
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    while let Some((word, left)) = rest.split_first_chunk::<8>() {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        rest = left;
    }
    if let Some((word, left)) = rest.split_first_chunk::<4>() {
        hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        rest = left;
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
    hash ^ (hash >> 32)
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_xxh64() {
        // From the reference implementation.
        let cases: [(&[u8], u64); 4] = [
            (b"", 0xef46_db37_51d8_e999),
            (b"a", 0xd24e_c4f1_a98c_6e5b),
            (b"abc", 0x44bc_2cf5_ad77_0999),
            (b"abcdefghijklmnopqrstuvwxyz0123456789", 0x64f2_3ecf_1609_b766),
        ];
        for (bytes, expected) in cases {
            assert_eq!(sum(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn one_bit_makes_another_sum() {
        let mut bytes = vec![0u8; 100];
        let before = sum(&bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_ne!(sum(&bytes), before, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}

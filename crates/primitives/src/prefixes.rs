//! Beginnings of sequences by their hashes, and the longest that is still cached.
//!
//! A sequence of `n` steps has `n` beginnings; hash `i` is that of the first `i + 1` steps. An index knows
//! under which hash which entry lies. Hashes can collide, with a probability of about `m² / 2^65` among `m`
//! of them: whoever copies states by a match must compare what was hashed, too.

use std::collections::HashMap;

use crate::exp::Real;

/// FNV-1a over the bytes of the numbers, in 64 bits (Fowler, Noll and Vo, 1991).
///
/// Numbers are hashed as `f64`, least byte first: those that are equal have one hash, in whatever
/// precision they are stored. So have both zeros, and so have all NaN.
///
/// ```
/// use echoic_primitives::prefixes::state_hash;
///
/// assert_eq!(state_hash(&[0.5f32, -0.0]), state_hash(&[0.5f64, 0.0]));
/// assert_ne!(state_hash(&[0.5, 0.0]), state_hash(&[0.0, 0.5]));
/// ```
pub fn state_hash<R: Real>(numbers: &[R]) -> u64 {
    numbers.iter().fold(EMPTY, |hash, number| {
        let number = number.to_f64();
        let number = if number.is_nan() { f64::NAN } else { number + 0.0 };
        hashed(hash, &number.to_bits().to_le_bytes())
    })
}

/// The hash of no bytes.
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

#[inline]
fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The longest beginning that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The entry that has it.
    pub entry: i64,
    /// How many steps it has.
    pub length: usize,
}

/// Entries by the hashes of the sequences that they are of.
#[derive(Debug, Clone, Default)]
pub struct Index(HashMap<u64, i64>);

impl Index {
    /// That of these pairs of a hash and an entry. Of several entries with one hash, the first is found.
    pub fn new(entries: impl IntoIterator<Item = (u64, i64)>) -> Self {
        let mut index = HashMap::new();
        for (hash, entry) in entries {
            index.entry(hash).or_insert(entry);
        }
        Self(index)
    }

    /// The longest beginning of at least `shortest` steps that an entry has. It leaves the last step out,
    /// which somebody has to run to know what follows; an entry that has the whole sequence has that
    /// beginning, too.
    ///
    /// ```
    /// use echoic_primitives::prefixes::{Index, Match};
    ///
    /// let index = Index::new([(20, 0), (10, 1)]);
    /// assert_eq!(index.longest(&[10, 20, 30], 1), Some(Match { entry: 0, length: 2 }));
    /// assert_eq!(index.longest(&[10, 20], 1), Some(Match { entry: 0, length: 1 }));
    /// assert_eq!(index.longest(&[10, 20, 30], 3), None);
    /// ```
    pub fn longest(&self, hashes: &[u64], shortest: usize) -> Option<Match> {
        let most = hashes.len().checked_sub(1)?;
        if most < shortest.max(1) {
            return None;
        }
        hashes.iter().enumerate().rev().take_while(|(at, _)| at + 1 >= shortest).find_map(
            |(at, hash)| {
                self.0.get(hash).map(|entry| Match { entry: *entry, length: (at + 1).min(most) })
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_hashes() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(hashed(EMPTY, text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn equal_numbers_have_one_hash() {
        assert_eq!(state_hash::<f64>(&[]), EMPTY);
        assert_eq!(state_hash(&[-f64::NAN]), state_hash(&[f64::NAN]));
        assert_eq!(state_hash(&[-0.0]), state_hash(&[0.0]));
        // They are one number in f32, and two here.
        assert_ne!(state_hash(&[1.0]), state_hash(&[1.0 + 1e-12]));
    }

    #[test]
    fn a_sequence_of_one_step_has_no_beginning_to_reuse() {
        let index = Index::new([(10, 3), (10, 4)]);
        assert_eq!(index.longest(&[], 1), None);
        assert_eq!(index.longest(&[10], 1), None);
        assert_eq!(index.longest(&[10, 20], 1), Some(Match { entry: 3, length: 1 }));
    }
}

//! Maps by the names of chunks, which come and are asked for about in the order in which they were given.
//!
//! A name is the number of a process and a number that it counts up. Sixteen that follow each other lie next
//! to each other in a map, so that one of millions of them waits for memory once for all sixteen; where
//! the sixteen lie is as good as random. A crafted file may have any names, so where they lie
//! depends on a number that each map draws: an attacker can't choose names that are slow.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Values by the names of chunks.
pub(crate) type ByName<V> = HashMap<u128, V, Places>;

/// 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many of the lower bits a map has for places; the others it compares first.
const PLACE_BITS: u32 = 57;

/// Both halves of a product, so that each bit of a number reaches the lower bits.
fn fold(number: u64) -> u64 {
    let wide = u128::from(number) * u128::from(GOLDEN);
    (wide ^ wide >> 64) as u64
}

/// Where names lie in one map: see the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Places {
    drawn: u64,
}

impl Default for Places {
    fn default() -> Self {
        Self { drawn: RandomState::new().build_hasher().finish() }
    }
}

impl BuildHasher for Places {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher { drawn: self.drawn, hash: 0 }
    }
}

/// The place of one name.
#[derive(Debug)]
pub(crate) struct NameHasher {
    drawn: u64,
    hash: u64,
}

impl Hasher for NameHasher {
    fn write_u128(&mut self, name: u128) {
        let (process, number) = ((name >> 64) as u64, name as u64);
        // Once is too little for names that are far apart by the same step; and an attacker that knows a sum of the two
        // halves must not know the place.
        let block = fold(fold(number >> 4 ^ self.drawn).wrapping_add(process));
        let place = (block << 4 | number & 15) & ((1 << PLACE_BITS) - 1);
        let mark = number.wrapping_mul(GOLDEN) >> PLACE_BITS;
        self.hash = place | mark << PLACE_BITS;
    }

    /// Names are written whole; anything else has to be right and need not be quick.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(GOLDEN);
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn place(places: &Places, name: u128) -> u64 {
        places.hash_one(name) & ((1 << PLACE_BITS) - 1)
    }

    #[test]
    fn sixteen_that_follow_each_other_are_neighbours() {
        let (places, first) = (Places::default(), (7 << 64) + 16 * 1000);
        for next in 1..16 {
            assert_eq!(place(&places, first + next), place(&places, first) + next as u64);
        }
    }

    #[test]
    fn names_of_any_stride_and_of_many_processes_are_spread() {
        // Of 4096 blocks of places, as many are hit as by this many throws of a die: 63 of 100, or all of
        // those that there are names for.
        let places = Places::default();
        let blocks = |names: &mut dyn Iterator<Item = u128>| {
            names.map(|name| place(&places, name) >> 4 & 4095).collect::<HashSet<_>>().len()
        };
        for shift in 4..40 {
            let hit = blocks(&mut (0..4096).map(|number: u128| 5 << 64 | number << shift));
            assert!(hit > 2000, "{hit} of 4096 blocks at steps of 2^{shift}");
        }
        let hit = blocks(&mut (0..4096).map(|process: u128| process << 64 | 3));
        assert!(hit > 2000, "{hit} of 4096 blocks of so many processes");
        // Two halves that have one sum.
        let hit = blocks(
            &mut (0..4096).map(|step: u128| ((1 << 40 | step) << 64) | ((1 << 30) - 16 * step)),
        );
        assert!(hit > 2000, "{hit} of 4096 blocks of names with one sum");
    }
}

//! Keys that say whose item they name.
//!
//! A server leaves the eight bits at the top of a key to its clients. A client of several servers writes
//! there the number of the shard and, in the bits that are left, which life of it: a server that was
//! restarted gives its first keys again, and an update that was meant for an item of its last life
//! must not change another item.
//!
//! The number of the shard is written from the top down, its lowest bit first, and the life from the bottom up. So
//! when shards join, and a number may be longer by a bit, the labels of those that were there stay what they are,
//! unless one had so many lives already that they reached to that bit.

/// Bits of a key that servers leave to clients.
const FREE: u32 = 8;
/// Where they begin.
const SHIFT: u32 = u64::BITS - FREE;

/// The most shards: each has a number in the free bits.
pub const MAX_SHARDS: usize = 1 << FREE;

/// Writes and reads labels. See the [module](self).
///
/// From the top, a key has the number of the shard with its bits in reverse, the life, and the key of the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Labels {
    /// How many of the free bits hold the life.
    incarnation_bits: u32,
}

/// What a label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) shard: usize,
    /// The lower bits of the life.
    pub(super) incarnation: u64,
    /// As the server knows it.
    pub(super) key: u64,
}

impl Labels {
    /// For at least one and at most [`MAX_SHARDS`] shards.
    pub(super) fn new(shards: usize) -> Self {
        let bits = usize::BITS - shards.saturating_sub(1).leading_zeros();
        Self { incarnation_bits: FREE.saturating_sub(bits) }
    }

    /// A life as labels hold it: a few lives later they repeat.
    pub(super) fn incarnation(&self, incarnation: u64) -> u64 {
        incarnation & ((1 << self.incarnation_bits) - 1)
    }

    /// What the keys of a shard begin with.
    pub(super) fn prefix(&self, shard: usize, incarnation: u64) -> u64 {
        (reversed(shard as u64) | self.incarnation(incarnation)) << SHIFT
    }

    pub(super) fn read(&self, key: u64) -> Label {
        let label = key >> SHIFT;
        let number = label >> self.incarnation_bits << self.incarnation_bits;
        let shard = reversed(number) as usize;
        Label { shard, incarnation: self.incarnation(label), key: key & ((1 << SHIFT) - 1) }
    }
}

/// The free bits in reverse.
fn reversed(bits: u64) -> u64 {
    bits.reverse_bits() >> SHIFT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_label_says_what_was_written(
            shards in 1..=MAX_SHARDS, at: prop::sample::Index, incarnation: u64, key in 0..1u64 << SHIFT,
        ) {
            let (labels, shard) = (Labels::new(shards), at.index(shards));
            let label = Label { shard, incarnation: labels.incarnation(incarnation), key };
            prop_assert_eq!(labels.read(labels.prefix(shard, incarnation) | key), label);
        }
    }

    proptest! {
        #[test]
        fn a_label_means_the_same_when_shards_have_joined(
            shards in 1..=MAX_SHARDS, more in 1..=MAX_SHARDS, at: prop::sample::Index, incarnation: u64,
        ) {
            let (few, many) = (Labels::new(shards.min(more)), Labels::new(shards.max(more)));
            // A life that there is still room for.
            let (shard, incarnation) = (at.index(shards.min(more)), many.incarnation(incarnation));
            let label = Label { shard, incarnation, key: 7 };
            prop_assert_eq!(many.read(few.prefix(shard, incarnation) | 7), label);
        }
    }

    #[test]
    fn all_bits_that_shards_do_not_need_tell_lives_apart() {
        let incarnations = |shards: usize| {
            let labels = Labels::new(shards);
            (0..1000).map(|incarnation| labels.incarnation(incarnation)).max()
        };
        assert_eq!([1, 2, 3, 4, 5, 128, 129, 256].map(incarnations), {
            [255, 127, 63, 63, 31, 1, 0, 0].map(Some)
        });
    }
}

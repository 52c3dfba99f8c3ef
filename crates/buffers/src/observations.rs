//! The observations of a transition, frame by frame: which of them are new is found by comparing bytes, and only
//! those are copied.

use echoic_memory::slab::Pinned;

use crate::layout::RowLayout;

/// A frame of a transition: 0 for the observation before the step and 1 for the one after, and its place there.
type Frame = (usize, usize);

/// The bytes of the two observations of one transition of many.
pub(crate) struct Observations<'a> {
    /// Where leaves lie in a frame.
    pub layout: &'a RowLayout,
    /// Frames of one observation.
    pub stack: usize,
    /// The bytes of each leaf, of all transitions: of the observation before, and of the one after.
    pub sides: [&'a [&'a [u8]]; 2],
    /// Which transition it is.
    pub number: usize,
}

/// Which frame it is.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    Known(u32),
    /// The one at this place among those that are new.
    Fresh(usize),
}

impl Number {
    /// Its number in the slab, given those of the new ones.
    pub(crate) fn settled(self, published: &[u32]) -> u32 {
        match self {
            Self::Known(number) => number,
            Self::Fresh(at) => published[at],
        }
    }
}

impl Observations<'_> {
    /// The leaves of a frame.
    fn frame(&self, (side, at): Frame) -> impl Iterator<Item = &[u8]> {
        let first = self.number * self.stack + at;
        let leaves = self.sides[side].iter().zip(self.layout.fields());
        leaves.map(move |(bytes, place)| &bytes[first * place.bytes..(first + 1) * place.bytes])
    }

    fn same(&self, one: Frame, other: Frame) -> bool {
        self.frame(one).eq(self.frame(other))
    }

    fn same_as(&self, one: Frame, row: &[u8]) -> bool {
        let places = self.layout.fields().iter();
        self.frame(one).zip(places).all(|(leaf, at)| leaf == &row[at.offset..at.offset + at.bytes])
    }

    /// Writes a frame as it lies in the slab.
    pub(crate) fn write(&self, frame: Frame, to: &mut [u8]) {
        for (leaf, place) in self.frame(frame).zip(self.layout.fields()) {
            to[place.offset..place.offset + place.bytes].copy_from_slice(leaf);
        }
    }

    /// All frames, given those of the environment's latest observation, and which of them are new.
    pub(crate) fn find(&self, latest: Option<&(Vec<u32>, Pinned)>) -> (Vec<Number>, Vec<Frame>) {
        let stack = self.stack;
        let mut numbers: Vec<Number> = Vec::with_capacity(2 * stack);
        let mut fresh = Vec::new();
        for side in 0..2 {
            for at in 0..stack {
                let own = (side, at);
                let seen = latest.filter(|(_, rows)| side == 0 && self.same_as(own, rows.row(at)));
                let before = |other: Frame| {
                    self.same(own, other).then(|| numbers[other.0 * stack + other.1])
                };
                let known = match seen {
                    Some((known, _)) => Some(Number::Known(known[at])),
                    // A stack moves on by one frame in a step, and begins with one frame repeated.
                    None if side == 1 && at + 1 < stack => before((0, at + 1)),
                    None if side == 1 => before((0, at)),
                    None => None,
                };
                let known = match known {
                    None if at > 0 => before((side, at - 1)),
                    known => known,
                };
                numbers.push(known.unwrap_or_else(|| {
                    fresh.push(own);
                    Number::Fresh(fresh.len() - 1)
                }));
            }
        }
        (numbers, fresh)
    }
}

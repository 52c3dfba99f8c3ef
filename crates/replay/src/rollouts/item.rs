//! Items: what producers bring, and how it is kept.

use std::sync::Arc;

use smallvec::SmallVec;

/// Tokens that one producer made without a break, in every column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segment {
    /// The policy versions that made them, in order: a version, and how many tokens.
    pub runs: SmallVec<[Run; 1]>,
    /// How many tokens.
    pub tokens: u32,
    /// The columns, one after the other.
    pub bytes: Vec<u8>,
}

/// Tokens of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Of the policy.
    pub version: i64,
    /// How many tokens.
    pub tokens: u32,
}

impl Segment {
    /// The oldest version of its tokens.
    pub fn oldest(&self) -> Option<i64> {
        self.runs.iter().map(|run| run.version).min()
    }
}

/// What a producer adds to an item when it is finished.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finish {
    /// The fields, one after the other.
    pub fields: Vec<u8>,
    /// Bytes under names: text, images, arrays as the layers above write them.
    pub blobs: Vec<(String, Vec<u8>)>,
}

/// An item: whole, or as far as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// Its place in its group.
    pub index: u32,
    /// Its tokens.
    pub segments: SmallVec<[Arc<Segment>; 1]>,
    /// The rest of it, once it is finished.
    pub finish: Option<Arc<Finish>>,
}

impl Item {
    /// How many tokens it has.
    pub fn tokens(&self) -> u32 {
        self.segments.iter().map(|segment| segment.tokens).sum()
    }

    /// The versions of its tokens, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.segments.iter().flat_map(|segment| segment.runs.iter().copied())
    }

    /// The oldest version of its tokens.
    pub fn oldest(&self) -> Option<i64> {
        self.runs().map(|run| run.version).min()
    }

    /// The youngest version of its tokens.
    pub fn newest(&self) -> Option<i64> {
        self.runs().map(|run| run.version).max()
    }
}

/// A group that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its number; lower ones were reserved before.
    pub id: u64,
    /// What its producer calls it; empty, if nothing.
    pub key: String,
    /// The producer that reserved it.
    pub source: String,
    /// The learner's version when it was reserved.
    pub reserved: i64,
    /// The version that its producer had then.
    pub dispatched: i64,
    /// The oldest version of its tokens, and the youngest.
    pub oldest: i64,
    /// See `oldest`.
    pub newest: i64,
    /// The learner's version when it was complete.
    pub completed: i64,
    /// The items, in the order of their places.
    pub items: Vec<Item>,
    /// How many tokens they have together.
    pub tokens: u64,
}

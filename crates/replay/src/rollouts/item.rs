//! Items: what producers bring, and how it is kept.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::schema::Late;

/// Tokens that one producer made without a break, in every column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segment {
    /// The policy versions that made them, in order: a version, and how many tokens.
    pub runs: SmallVec<[Run; 1]>,
    /// How many tokens.
    pub tokens: u32,
    /// The columns, one after the other, without those that are left out.
    pub bytes: Vec<u8>,
    /// The columns that are left out: a bit for each place.
    pub absent: u64,
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

/// Bytes that may be several items'.
pub type Blob = Arc<Vec<u8>>;

/// What a producer adds to an item when it is finished.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finish {
    /// The fields, one after the other; zeros for those that are left out.
    pub fields: Vec<u8>,
    /// The fields that are left out: a bit for each place.
    pub absent: u64,
    /// Bytes under names: text, images, arrays as the layers above write them. Items of a group share those that are
    /// alike.
    pub blobs: Vec<(String, Blob)>,
}

impl Finish {
    /// The end with blobs of other items where they have the same bytes; `None` if there is nothing to share. To find
    /// out takes no longer than to read its blobs twice.
    pub fn sharing(&self, others: &[Item]) -> Option<Self> {
        if self.blobs.is_empty() {
            return None;
        }
        let mut shared = None;
        let ends = || others.iter().filter_map(|item| item.finish.as_ref());
        for (at, (name, blob)) in self.blobs.iter().enumerate() {
            let mut budget = 2 * blob.len();
            let alike = |other: &&Blob| {
                other.len() == blob.len()
                    && !Arc::ptr_eq(other, blob)
                    && is_same(other, blob, &mut budget)
            };
            let named = ends().flat_map(|end| &end.blobs).filter(|(other, _)| other == name);
            if let Some(found) = named.map(|(_, blob)| blob).find(alike) {
                let end = shared.get_or_insert_with(|| self.clone());
                end.blobs[at].1 = Arc::clone(found);
            }
        }
        shared
    }
}

/// Whether bytes are the same, as far as the budget of bytes to look at goes; what was looked at is taken from that.
fn is_same(one: &[u8], other: &[u8], budget: &mut usize) -> bool {
    const PART: usize = 4096;
    one.chunks(PART).zip(other.chunks(PART)).all(|(one, other)| {
        let is_looked_at = *budget >= one.len();
        *budget = budget.saturating_sub(one.len());
        is_looked_at && one == other
    })
}

/// Values of a whole column that came apart from the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnUpdate {
    /// The place of the column.
    pub column: u32,
    /// Of how many tokens: of those that the item had then.
    pub tokens: u32,
    /// The values.
    pub bytes: Arc<Vec<u8>>,
}

/// Values of whole columns and of fields, in the order of their places: no place is there twice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Updates {
    /// Of columns.
    pub columns: Vec<ColumnUpdate>,
    /// Of fields: the place, and the bytes of the value.
    pub fields: Vec<(u32, Vec<u8>)>,
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
    /// Values that count instead of those above.
    pub updates: Option<Arc<Updates>>,
}

impl Item {
    /// How many tokens it has.
    pub fn tokens(&self) -> u32 {
        self.segments.iter().map(|segment| segment.tokens).sum()
    }

    /// Whether anything of it has come.
    pub fn is_there(&self) -> bool {
        !self.segments.is_empty() || self.finish.is_some()
    }

    /// Whether it has its end and all values.
    pub fn is_whole(&self) -> bool {
        self.finish.is_some() && self.missing() == Late::default()
    }

    /// The values of a column that came apart.
    pub fn column_update(&self, column: usize) -> Option<&ColumnUpdate> {
        let updates = self.updates.as_ref()?;
        updates.columns.iter().find(|update| update.column as usize == column)
    }

    /// The bytes of a field, which has this place, and this range of all fields; `None` if it has not come.
    pub fn field(&self, place: usize, range: Range<usize>) -> Option<&[u8]> {
        let updates = self.updates.iter().flat_map(|updates| &updates.fields);
        if let Some((_, bytes)) = updates.into_iter().find(|(field, _)| *field as usize == place) {
            return Some(bytes);
        }
        let finish = self.finish.as_ref().filter(|finish| finish.absent >> place & 1 == 0)?;
        finish.fields.get(range)
    }

    /// The columns and fields of which values have not come: columns of all tokens that there are, and, once it has
    /// its end, fields.
    pub fn missing(&self) -> Late {
        let columns = self.segments.iter().fold(0, |all, segment| all | segment.absent);
        let fields = self.finish.as_ref().map_or(0, |finish| finish.absent);
        let mut missing = Late { columns, fields };
        if missing == Late::default() {
            return missing;
        }
        let Some(updates) = &self.updates else { return missing };
        for update in &updates.columns {
            let (bit, mut end) = (1 << update.column, 0);
            let is_missing = self.segments.iter().any(|segment| {
                end += segment.tokens;
                segment.absent & bit != 0 && end > update.tokens
            });
            if !is_missing {
                missing.columns &= !bit;
            }
        }
        for (field, _) in &updates.fields {
            missing.fields &= !(1 << field);
        }
        missing
    }

    /// Takes values, which are those of all its tokens; those that are let go of.
    pub fn update(&mut self, values: &Updates) -> Vec<Arc<Vec<u8>>> {
        let updates = Arc::make_mut(self.updates.get_or_insert_default());
        let mut dead = Vec::new();
        for update in &values.columns {
            match updates.columns.binary_search_by_key(&update.column, |update| update.column) {
                Ok(at) => {
                    dead.push(std::mem::replace(&mut updates.columns[at], update.clone()).bytes)
                }
                Err(at) => updates.columns.insert(at, update.clone()),
            }
        }
        for (field, bytes) in &values.fields {
            match updates.fields.binary_search_by_key(field, |(field, _)| *field) {
                Ok(at) => updates.fields[at].1.clone_from(bytes),
                Err(at) => updates.fields.insert(at, (*field, bytes.clone())),
            }
        }
        dead
    }

    /// Takes its end, whose fields count from now on.
    pub fn end(&mut self, finish: Arc<Finish>) {
        if let Some(updates) = &mut self.updates
            && updates.fields.iter().any(|(field, _)| finish.absent >> field & 1 == 0)
        {
            Arc::make_mut(updates).fields.retain(|(field, _)| finish.absent >> field & 1 == 1);
        }
        self.finish = Some(finish);
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

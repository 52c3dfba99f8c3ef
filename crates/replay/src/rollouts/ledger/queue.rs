//! Complete groups that are not leased, in the order in which they are to be delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::config::Order;
use crate::rng::Rng;
use crate::selectors::sum_tree::SumTree;

/// Of each age in the weighted order, which group is in each place, and the free places.
pub(super) type Arrangement = Vec<(i64, (Vec<Option<u64>>, Vec<u32>))>;

/// What the queue needs to know of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QueuedGroup {
    pub(super) id: u64,
    /// Which group it was to be complete.
    pub(super) ready: u64,
    pub(super) oldest: i64,
    pub(super) priority: f64,
    /// Whether a consumer was done with it once.
    pub(super) is_used: bool,
}

/// See the [module](self).
#[derive(Debug, PartialEq)]
pub(super) struct Queue {
    order: Order,
    /// The key that the order gives a group, and the group. Empty for the weighted order.
    ordered: BTreeSet<(i64, u64)>,
    /// The same by the version of the oldest token, within which they are in order.
    by_age: BTreeMap<i64, BTreeSet<(i64, u64)>>,
    /// By the version of the oldest token: all in a bucket have the same lag, whatever the next batch is.
    buckets: BTreeMap<i64, Bucket>,
    /// Those that were of use, by the version of the oldest token.
    used: BTreeSet<(i64, u64)>,
    len: usize,
}

/// Groups of one age, and their priorities.
#[derive(Debug, Default)]
struct Bucket {
    tree: SumTree,
    ids: Vec<Option<u64>>,
    places: HashMap<u64, u32>,
    free: Vec<u32>,
}

impl PartialEq for Bucket {
    fn eq(&self, other: &Self) -> bool {
        let weighs = |(id, at): (&u64, &u32)| {
            other.places.get(id) == Some(at) && other.tree.get(*at) == self.tree.get(*at)
        };
        (&self.ids, &self.free) == (&other.ids, &other.free) && self.places.iter().all(weighs)
    }
}

impl Bucket {
    fn insert(&mut self, id: u64, priority: f64) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.ids.push(None);
            u32::try_from(self.ids.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(slot) = self.ids.get_mut(place as usize) {
            *slot = Some(id);
        }
        self.places.insert(id, place);
        self.tree.set(place, priority);
    }

    fn remove(&mut self, id: u64) {
        if let Some(place) = self.places.remove(&id) {
            self.tree.set(place, 0.0);
            self.free.push(place);
            if let Some(slot) = self.ids.get_mut(place as usize) {
                *slot = None;
            }
        }
    }
}

impl Queue {
    pub(super) fn new(order: Order) -> Self {
        let (ordered, by_age, buckets, used) = Default::default();
        Self { order, ordered, by_age, buckets, used, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn key(&self, place: &QueuedGroup) -> i64 {
        match self.order {
            Order::Ready => place.ready as i64,
            Order::Submission | Order::Window(_) => place.id as i64,
            Order::Freshest => -place.oldest,
            Order::Oldest | Order::Weighted => place.oldest,
        }
    }

    pub(super) fn insert(&mut self, place: &QueuedGroup) {
        let entry = (self.key(place), place.id);
        self.by_age.entry(place.oldest).or_default().insert(entry);
        if self.order == Order::Weighted {
            self.buckets.entry(place.oldest).or_default().insert(place.id, place.priority);
        } else {
            self.ordered.insert(entry);
        }
        if place.is_used {
            self.used.insert((place.oldest, place.id));
        }
        self.len += 1;
    }

    pub(super) fn remove(&mut self, place: &QueuedGroup) {
        let entry = (self.key(place), place.id);
        let Some(same) = self.by_age.get_mut(&place.oldest) else { return };
        if !same.remove(&entry) {
            return;
        }
        if same.is_empty() {
            self.by_age.remove(&place.oldest);
        }
        if self.order == Order::Weighted {
            if let Some(bucket) = self.buckets.get_mut(&place.oldest) {
                bucket.remove(place.id);
                if bucket.places.is_empty() {
                    self.buckets.remove(&place.oldest);
                }
            }
        } else {
            self.ordered.remove(&entry);
        }
        self.used.remove(&(place.oldest, place.id));
        self.len -= 1;
    }

    pub(super) fn reprioritize(&mut self, place: &QueuedGroup) {
        if let Some(bucket) = self.buckets.get_mut(&place.oldest)
            && let Some(at) = bucket.places.get(&place.id)
        {
            bucket.tree.set(*at, place.priority);
        }
    }

    /// The groups in their order. Of the weighted order, none: see [`Queue::draw`].
    pub(super) fn in_order(&self) -> impl Iterator<Item = u64> + '_ {
        self.ordered.iter().map(|(_, id)| *id)
    }

    /// Groups whose oldest token is of a version up to this one, the oldest first.
    pub(super) fn up_to(&self, version: i64) -> impl Iterator<Item = u64> + '_ {
        self.by_age.range(..=version).flat_map(|(_, ids)| ids.iter().map(|(_, id)| *id))
    }

    /// The first in order, but for those to `skip`, whose oldest token is of a version up to this one.
    pub(super) fn first_up_to(&self, version: i64, skip: impl Fn(&u64) -> bool) -> Option<u64> {
        let ages = self.by_age.range(..=version);
        let firsts = ages.filter_map(|(_, ids)| ids.iter().find(|(_, id)| !skip(id)));
        firsts.min().map(|(_, id)| *id)
    }

    /// The versions of the oldest tokens of groups, and how many groups have each.
    pub(super) fn ages(&self) -> impl DoubleEndedIterator<Item = (i64, usize)> + '_ {
        self.by_age.iter().map(|(age, ids)| (*age, ids.len()))
    }

    /// All groups, the one whose oldest token is the youngest first.
    pub(super) fn youngest(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_age.values().rev().flat_map(|ids| ids.iter().rev().map(|(_, id)| *id))
    }

    /// How many were of use.
    pub(super) fn used(&self) -> usize {
        self.used.len()
    }

    /// Of those that were of use, the group of the oldest tokens.
    pub(super) fn oldest_used(&self) -> Option<u64> {
        self.used.first().map(|(_, id)| *id)
    }

    /// The group of the oldest tokens.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.by_age.values().next().and_then(|ids| ids.first()).map(|(_, id)| *id)
    }

    /// Draws groups by priority / (lag + 1), each at most once. Fewer, if fewer have a priority above zero.
    pub(super) fn draw(&mut self, count: usize, target: i64, rng: &mut Rng) -> Vec<u64> {
        let mut drawn: Vec<(i64, u32, f64, u64)> = Vec::with_capacity(count);
        while drawn.len() < count {
            let weigh = |(age, bucket): (&i64, &Bucket)| {
                bucket.tree.total() / ((target - age).max(0) as f64 + 1.0)
            };
            let total: f64 = self.buckets.iter().map(weigh).sum();
            if total <= 0.0 {
                break;
            }
            let mut place = rng.unit() * total;
            let mut chosen = None;
            for (age, bucket) in &self.buckets {
                let weight = weigh((age, bucket));
                if weight > 0.0 {
                    // Rounding may lead past the last one.
                    chosen = Some((*age, (place / weight).min(1.0)));
                    if place < weight {
                        break;
                    }
                    place -= weight;
                }
            }
            let Some((age, share)) = chosen else { break };
            let Some(bucket) = self.buckets.get_mut(&age) else { break };
            let Some(found) = bucket.tree.find(share * bucket.tree.total()) else { break };
            let Some(Some(id)) = bucket.ids.get(found.index as usize) else { break };
            drawn.push((age, found.index, found.weight, *id));
            bucket.tree.set(found.index, 0.0);
        }
        for (age, place, weight, _) in &drawn {
            if let Some(bucket) = self.buckets.get_mut(age) {
                bucket.tree.set(*place, *weight);
            }
        }
        drawn.into_iter().map(|(.., id)| id).collect()
    }

    /// Where everything is in the buckets, so that a copy draws the same.
    pub(super) fn layout(&self) -> Arrangement {
        let parts = self.buckets.iter();
        parts.map(|(age, bucket)| (*age, (bucket.ids.clone(), bucket.free.clone()))).collect()
    }

    /// Puts everything where [`Queue::layout`] said. The groups must be those that are here.
    pub(super) fn arrange(&mut self, layout: Arrangement) {
        for (age, (ids, free)) in layout {
            let Some(bucket) = self.buckets.get_mut(&age) else { continue };
            let weights: HashMap<u64, f64> =
                bucket.places.iter().map(|(id, at)| (*id, bucket.tree.get(*at))).collect();
            let mut moved = Bucket { ids, free, ..Bucket::default() };
            for (at, id) in (0..).zip(&moved.ids) {
                if let Some(id) = id {
                    moved.places.insert(*id, at);
                    moved.tree.set(at, weights.get(id).copied().unwrap_or(0.0));
                }
            }
            if moved.places.len() == bucket.places.len() {
                *bucket = moved;
            }
        }
    }
}

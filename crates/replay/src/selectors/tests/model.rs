//! A table's items in a plain list, and how often each may be selected. Tests of tables use it, too.

use super::{DrawnItem, Entry, SelectorKind, Slot};

#[derive(Debug, Clone, Copy)]
struct Item {
    slot: Slot,
    entry: Entry,
    /// When it was inserted or updated.
    touched: usize,
    /// Whether it was drawn in this epoch.
    drawn: bool,
}

/// Items in the order in which they were inserted.
#[derive(Debug)]
pub(super) struct Model {
    kind: SelectorKind,
    items: Vec<Item>,
    now: usize,
    learner: u64,
    shared_draws: usize,
}

impl Model {
    pub(super) fn new(kind: SelectorKind) -> Self {
        Self { kind, items: Vec::new(), now: 0, learner: 0, shared_draws: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        self.items.iter().any(|item| item.slot == slot)
    }

    pub(super) fn entries(&self) -> Vec<(Slot, Entry)> {
        self.items.iter().map(|item| (item.slot, item.entry)).collect()
    }

    pub(super) fn insert(&mut self, slot: Slot, entry: Entry) {
        self.now += 1;
        self.items.push(Item { slot, entry, touched: self.now, drawn: false });
    }

    pub(super) fn update(&mut self, slot: Slot, priority: f64) {
        self.now += 1;
        for item in self.items.iter_mut().filter(|item| item.slot == slot) {
            item.entry.priority = priority;
            item.touched = self.now;
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.items.retain(|item| item.slot != slot);
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
    }

    pub(super) fn advance(&mut self, version: u64) {
        self.learner = self.learner.max(version);
    }

    /// That these are `count` draws that could happen now, each with its true probability.
    pub(super) fn check(&mut self, count: usize, draws: &[DrawnItem]) {
        assert_eq!(draws.len(), if self.items.is_empty() { 0 } else { count });
        let hot = self.hot_of(count);
        for (at, pick) in draws.iter().enumerate() {
            let likely = self.distribution(at < hot, hot, count);
            let (_, probability) = likely
                .iter()
                .find(|(slot, probability)| *slot == pick.slot && *probability > 0.0)
                .unwrap_or_else(|| panic!("{pick:?} is not among {likely:?}"));
            let error = (pick.probability - probability).abs();
            assert!(error <= probability * 1e-12, "{pick:?}, but the truth is {probability}");
            self.note_drawn(pick.slot);
        }
    }

    /// What the next single draw may be, and how likely each is.
    #[allow(dead_code, reason = "for tests of tables")]
    pub(super) fn chances(&mut self) -> Vec<(Slot, f64)> {
        let hot = self.hot_of(1);
        self.distribution(hot > 0, hot, 1)
    }

    fn is_hot(&self, item: &Item) -> bool {
        let SelectorKind::HotCold { age_threshold, .. } = self.kind else { return false };
        self.learner <= item.entry.version || self.learner - item.entry.version <= age_threshold
    }

    /// How many of the next draws are hot.
    fn hot_of(&mut self, count: usize) -> usize {
        let SelectorKind::HotCold { hot_fraction, .. } = self.kind else { return 0 };
        let hot = self.items.iter().filter(|item| self.is_hot(item)).count();
        if hot == 0 || hot == self.items.len() {
            return if hot == 0 { 0 } else { count };
        }
        let before = (self.shared_draws as f64 * hot_fraction).floor();
        self.shared_draws += count;
        ((self.shared_draws as f64 * hot_fraction).floor() - before) as usize
    }

    fn distribution(&self, from_hot: bool, hot: usize, count: usize) -> Vec<(Slot, f64)> {
        let items = self.items.iter();
        let certain = |item: Option<&Item>| item.map(|item| (item.slot, 1.0)).into_iter().collect();
        let order = |left: &&Item, right: &&Item| {
            left.entry.priority.partial_cmp(&right.entry.priority).expect("priorities are numbers")
        };
        match self.kind {
            SelectorKind::Uniform => proportional(items.map(|item| (item.slot, 1.0))),
            SelectorKind::Prioritized { exponent } => powers(items, exponent),
            SelectorKind::Fifo => certain(items.clone().next()),
            SelectorKind::Lifo => certain(items.clone().next_back()),
            SelectorKind::MinHeap => {
                certain(items.min_by(|left, right| {
                    order(left, right).then(left.touched.cmp(&right.touched))
                }))
            }
            SelectorKind::MaxHeap => {
                certain(items.max_by(|left, right| {
                    order(left, right).then(right.touched.cmp(&left.touched))
                }))
            }
            SelectorKind::Epoch => {
                let all = self.items.iter().all(|item| item.drawn);
                let left = items.filter(|item| all || !item.drawn);
                proportional(left.map(|item| (item.slot, 1.0)))
            }
            SelectorKind::HotCold { exponent, .. } => {
                let share = if from_hot { hot } else { count - hot } as f64 / count as f64;
                let mut likely =
                    powers(items.filter(|item| self.is_hot(item) == from_hot), exponent);
                likely.iter_mut().for_each(|(_, probability)| *probability *= share);
                likely
            }
            #[allow(unreachable_patterns, reason = "to tests of tables the enum may have more")]
            other => unreachable!("{other}"),
        }
    }

    fn note_drawn(&mut self, slot: Slot) {
        if self.items.iter().all(|item| item.drawn) {
            self.items.iter_mut().for_each(|item| item.drawn = false);
        }
        self.items.iter_mut().filter(|item| item.slot == slot).for_each(|item| item.drawn = true);
    }
}

/// As the definition says, with the documented bounds of a power.
fn powers<'a>(items: impl Iterator<Item = &'a Item>, exponent: f64) -> Vec<(Slot, f64)> {
    let weights: Vec<(Slot, f64)> = items
        .map(|item| (item.slot, item.entry.priority))
        .map(|(slot, priority)| match priority {
            0.0 => (slot, 0.0),
            _ => (slot, priority.powf(exponent).max(f64::MIN_POSITIVE).min(2f64.powi(990))),
        })
        .collect();
    if weights.iter().all(|(_, weight)| *weight == 0.0) {
        return proportional(weights.into_iter().map(|(slot, _)| (slot, 1.0)));
    }
    proportional(weights.into_iter())
}

fn proportional(weights: impl Iterator<Item = (Slot, f64)>) -> Vec<(Slot, f64)> {
    let weights: Vec<(Slot, f64)> = weights.collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.into_iter().map(|(slot, weight)| (slot, weight / total)).collect()
}

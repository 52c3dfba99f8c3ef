//! Who goes first when there are too many: the lowest score, and of equal ones the oldest.

/// Children of a node. Four of them lie close together, and the way up is half as long as with two.
const WIDTH: usize = 4;

/// Stands for a slot that is not there.
const ABSENT: u32 = u32::MAX;

/// A slot and what decides about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// The score.
    pub score: f64,
    /// When it was added: no two have the same.
    pub moment: u64,
    /// Where it is.
    pub slot: u32,
}

impl Ranked {
    /// Whether it goes before another one.
    pub fn is_before(&self, other: &Self) -> bool {
        self.score.total_cmp(&other.score).then(self.moment.cmp(&other.moment)).is_lt()
    }
}

/// A heap that knows where each slot is in it.
///
/// `positions[nodes[i].slot] == i` for every `i`, other positions are absent, and no node is before its
/// parent, the one at `(i - 1) / WIDTH`.
#[derive(Debug, Default)]
pub struct Lowest {
    nodes: Vec<Ranked>,
    positions: Vec<u32>,
}

impl Lowest {
    /// Of all these, in one pass.
    pub fn of(all: impl IntoIterator<Item = Ranked>) -> Self {
        let nodes: Vec<Ranked> = all.into_iter().collect();
        let slots = nodes.iter().map(|node| node.slot as usize + 1).max().unwrap_or(0);
        let mut heap = Self { nodes, positions: vec![ABSENT; slots] };
        for at in 0..heap.nodes.len() {
            heap.positions[heap.nodes[at].slot as usize] = at as u32;
        }
        for at in (0..heap.nodes.len().div_ceil(WIDTH)).rev() {
            heap.sink(at);
        }
        heap
    }

    /// Who goes first.
    pub fn first(&self) -> Option<Ranked> {
        self.nodes.first().copied()
    }

    /// Adds a slot that is not there.
    pub fn insert(&mut self, node: Ranked) {
        let index = node.slot as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, ABSENT);
        }
        self.nodes.push(node);
        self.rise(self.nodes.len() - 1);
    }

    /// Takes a slot out, if it is there.
    pub fn remove(&mut self, slot: u32) {
        let Some(at) = self.position(slot) else { return };
        self.nodes.swap_remove(at);
        self.positions[slot as usize] = ABSENT;
        if at < self.nodes.len() {
            self.settle(at);
        }
    }

    /// Changes the score of a slot, if it is there.
    pub fn update(&mut self, slot: u32, score: f64) {
        let Some(at) = self.position(slot) else { return };
        self.nodes[at].score = score;
        self.settle(at);
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Ranked>() + self.positions.capacity() * 4
    }

    fn position(&self, slot: u32) -> Option<usize> {
        let at = *self.positions.get(slot as usize)?;
        (at != ABSENT).then_some(at as usize)
    }

    fn put(&mut self, at: usize, node: Ranked) {
        self.nodes[at] = node;
        self.positions[node.slot as usize] = at as u32;
    }

    fn settle(&mut self, at: usize) {
        if self.rise(at) == at {
            self.sink(at);
        }
    }

    /// Moves a node up to where it belongs, and says where that is.
    fn rise(&mut self, mut at: usize) -> usize {
        let node = self.nodes[at];
        while at > 0 && node.is_before(&self.nodes[(at - 1) / WIDTH]) {
            self.put(at, self.nodes[(at - 1) / WIDTH]);
            at = (at - 1) / WIDTH;
        }
        self.put(at, node);
        at
    }

    /// Moves a node down to where it belongs.
    fn sink(&mut self, mut at: usize) {
        let node = self.nodes[at];
        loop {
            let children = at * WIDTH + 1..(at * WIDTH + 1 + WIDTH).min(self.nodes.len());
            let first = children.reduce(|best, child| {
                if self.nodes[child].is_before(&self.nodes[best]) { child } else { best }
            });
            let Some(child) = first.filter(|child| self.nodes[*child].is_before(&node)) else {
                break;
            };
            self.put(at, self.nodes[child]);
            at = child;
        }
        self.put(at, node);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_like_a_sorted_list(steps in prop::collection::vec((0u32..40, 0u8..5), 0..300)) {
            let mut heap = Lowest::default();
            let mut model: Vec<Ranked> = Vec::new();
            for (moment, (slot, score)) in (0u64..).zip(steps) {
                let score = f64::from(score);
                match model.iter().position(|node| node.slot == slot) {
                    Some(at) if score == 0.0 => {
                        heap.remove(slot);
                        model.remove(at);
                    }
                    Some(at) => {
                        heap.update(slot, score);
                        model[at].score = score;
                    }
                    None => {
                        heap.insert(Ranked { score, moment, slot });
                        model.push(Ranked { score, moment, slot });
                    }
                }
                model.sort_by(|a, b| a.score.total_cmp(&b.score).then(a.moment.cmp(&b.moment)));
                prop_assert_eq!(heap.first(), model.first().copied());
                prop_assert_eq!(Lowest::of(model.iter().rev().copied()).first(), heap.first());
            }
        }
    }
}

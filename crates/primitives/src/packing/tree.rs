//! The room of rows, with the first row that has enough of it found in logarithmic time.

/// A binary tree over rows that are all empty at first; a node has the most room of the rows below
/// it.
///
/// # Invariants
///
/// 1. The children of node `i` are `2 i` and `2 i + 1`, the root is node 1, and the leaves begin at
///    the half of `most`.
/// 2. `most[i]` is the larger of its children's.
#[derive(Debug)]
pub struct Room {
    most: Vec<usize>,
}

impl Room {
    /// So many empty rows.
    pub fn new(rows: usize, room: usize) -> Self {
        Self { most: vec![room; 2 * rows.max(1).next_power_of_two()] }
    }

    /// Takes room from the first row that has so much; which row, and how much room it had.
    ///
    /// There must be such a row: as long as there are as many rows as things put into them, an
    /// empty one is left.
    pub fn take_first(&mut self, amount: usize) -> (usize, usize) {
        let leaves = self.most.len() / 2;
        let mut node = 1;
        while node < leaves {
            // By invariant 2 one of the two has enough if the node has.
            node *= 2;
            node += usize::from(self.most[node] < amount);
        }
        let (row, had) = (node - leaves, self.most[node]);
        self.most[node] = had - amount;
        while node > 1 {
            node /= 2;
            let most = self.most[2 * node].max(self.most[2 * node + 1]);
            if self.most[node] == most {
                break;
            }
            self.most[node] = most;
        }
        (row, had)
    }
}

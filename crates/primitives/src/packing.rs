//! Sequences of different lengths in rows of one length, on machines with equal loads, or in
//! micro-batches of which all machines have the same number.
//!
//! Unlike the other functions of this crate, these allocate what they return.

mod balance;
mod micro;

pub use balance::balance;
pub use micro::{Cost, MicroBatchError, MicroBatches, Shares};

/// Which row a sequence goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The longest first, each into the first row that has room: at most 11/9 of the fewest rows
    /// possible, plus 6/9 of a row (Dósa, 2007).
    FirstFitDecreasing,
    /// In the order given, each into the first row that has room.
    FirstFit,
    /// In the order given, each into the last row, or a new one: rows keep the order.
    NextFit,
}

/// Where each sequence is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing {
    /// The row of each sequence.
    pub rows: Vec<usize>,
    /// Where in that row it starts.
    pub starts: Vec<usize>,
    /// How many rows there are.
    pub row_count: usize,
}

impl Packing {
    /// Fills `row_count * max_len` cells: those of each sequence by `fill`, which is told which,
    /// and the others with `pad`.
    ///
    /// # Panics
    ///
    /// When the packing is of other lengths.
    pub fn write<T: Copy>(
        &self,
        lengths: &[usize],
        max_len: usize,
        pad: T,
        out: &mut [T],
        mut fill: impl FnMut(usize, &mut [T]),
    ) {
        assert!(lengths.len() == self.rows.len() && out.len() == self.row_count * max_len);
        let mut used = vec![0; self.row_count];
        for (index, length) in lengths.iter().enumerate() {
            let (row, start) = (self.rows[index], self.starts[index]);
            used[row] = used[row].max(start + length);
            fill(index, &mut out[row * max_len + start..][..*length]);
        }
        for (row, used) in used.into_iter().enumerate() {
            out[row * max_len + used..(row + 1) * max_len].fill(pad);
        }
    }

    /// The number of each sequence in its row, from 1 on, in the order in which they lie there.
    pub fn segments(&self, lengths: &[usize]) -> Vec<i32> {
        let mut order: Vec<usize> = (0..lengths.len()).filter(|at| lengths[*at] > 0).collect();
        order.sort_unstable_by_key(|at| (self.rows[*at], self.starts[*at]));
        let mut segments = vec![0; lengths.len()];
        let (mut row, mut segment) = (None, 0);
        for at in order {
            segment = if row == Some(self.rows[at]) { segment + 1 } else { 1 };
            row = Some(self.rows[at]);
            segments[at] = segment;
        }
        segments
    }
}

/// A sequence that fits into no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sequence {index} has {length} tokens, which is more than a row's {max_len}")]
pub struct TooLong {
    /// Which sequence.
    pub index: usize,
    /// How long it is.
    pub length: usize,
    /// How long a row is.
    pub max_len: usize,
}

/// Puts sequences into rows. Takes `O(n log n)` time. A sequence of length zero goes where there is
/// a row, and takes no room.
///
/// ```
/// use echoic_primitives::packing::{Method, pack};
///
/// let packing = pack(&[3, 2, 1, 2], 4, Method::FirstFitDecreasing)?;
/// assert_eq!(packing.rows, [0, 1, 0, 1]);
/// assert_eq!(packing.starts, [0, 0, 3, 2]);
/// # Ok::<(), echoic_primitives::packing::TooLong>(())
/// ```
///
/// # Errors
///
/// When a sequence is longer than a row.
pub fn pack(lengths: &[usize], max_len: usize, method: Method) -> Result<Packing, TooLong> {
    if let Some(index) = lengths.iter().position(|length| *length > max_len) {
        return Err(TooLong { index, length: lengths[index], max_len });
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if method == Method::FirstFitDecreasing {
        // Stable: among equals, the first comes first.
        order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));
    }
    let mut packing =
        Packing { rows: vec![0; lengths.len()], starts: vec![0; lengths.len()], row_count: 0 };
    let mut place = |index: usize, row: usize, start: usize| {
        packing.rows[index] = row;
        packing.starts[index] = start;
        packing.row_count = packing.row_count.max(row + 1);
    };
    if method == Method::NextFit {
        let (mut row, mut used) = (0, 0);
        for index in order {
            if lengths[index] > max_len - used {
                (row, used) = (row + 1, 0);
            }
            place(index, row, used);
            used += lengths[index];
        }
    } else {
        let mut room = Room::new(lengths.len(), max_len);
        for index in order {
            let (row, left) = room.take_first(lengths[index]);
            place(index, row, max_len - left);
        }
    }
    Ok(packing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// First fit as its name says.
    fn naive(lengths: &[usize], max_len: usize, order: &[usize]) -> Packing {
        let mut used: Vec<usize> = Vec::new();
        let mut packing =
            Packing { rows: vec![0; lengths.len()], starts: vec![0; lengths.len()], row_count: 0 };
        for index in order {
            let fits = used.iter().position(|used| used + lengths[*index] <= max_len);
            let row = fits.unwrap_or_else(|| {
                used.push(0);
                used.len() - 1
            });
            packing.rows[*index] = row;
            packing.starts[*index] = used[row];
            used[row] += lengths[*index];
        }
        packing.row_count = used.len();
        packing
    }

    #[test]
    fn the_sequence_that_is_too_long_is_named() {
        let error = pack(&[2, 9, 10], 8, Method::FirstFit).unwrap_err();
        assert_eq!(error.to_string(), "sequence 1 has 9 tokens, which is more than a row's 8");
    }

    #[test]
    fn nothing_needs_no_row() {
        assert_eq!(pack(&[], 8, Method::FirstFit).unwrap().row_count, 0);
        assert_eq!(pack(&[0, 0], 0, Method::FirstFitDecreasing).unwrap().row_count, 1);
    }

    #[test]
    fn next_fit_keeps_the_order() {
        let packing = pack(&[3, 3, 1, 2], 4, Method::NextFit).unwrap();
        assert_eq!((packing.rows, packing.starts), (vec![0, 1, 1, 2], vec![0, 0, 3, 0]));
    }

    #[test]
    fn cells_without_a_token_are_padding() {
        let lengths = [3, 2, 0, 1, 2];
        let packing = pack(&lengths, 4, Method::FirstFitDecreasing).unwrap();
        let mut cells = [0; 8];
        packing.write(&lengths, 4, -1, &mut cells, |index, cells| cells.fill(index as i32));
        assert_eq!(cells, [0, 0, 0, 3, 1, 1, 4, 4]);
        assert_eq!(packing.segments(&lengths), [1, 1, 0, 2, 2]);
        let packing = pack(&lengths, 5, Method::NextFit).unwrap();
        let mut cells = [0; 10];
        packing.write(&lengths, 5, -1, &mut cells, |index, cells| cells.fill(index as i32));
        assert_eq!(cells, [0, 0, 0, 1, 1, 3, 4, 4, -1, -1]);
    }

    proptest! {
        #[test]
        fn the_tree_finds_the_same_rows_as_a_search_from_the_start(
            lengths in prop::collection::vec(0usize..30, 0..200),
            slack in 0usize..20,
        ) {
            let max_len = 30 + slack;
            let mut order: Vec<usize> = (0..lengths.len()).collect();
            let got = pack(&lengths, max_len, Method::FirstFit).unwrap();
            prop_assert_eq!(got, naive(&lengths, max_len, &order));
            order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));
            let got = pack(&lengths, max_len, Method::FirstFitDecreasing).unwrap();
            prop_assert_eq!(got, naive(&lengths, max_len, &order));
        }
    }
}

/// The room of rows, with the first row that has enough of it found in logarithmic time.
///
/// A binary tree over rows that are all empty at first; a node has the most room of the rows below
/// it.
///
/// # Invariants
///
/// 1. The children of node `i` are `2 i` and `2 i + 1`, the root is node 1, and the leaves begin at
///    the half of `most`.
/// 2. `most[i]` is the larger of its children's.
#[derive(Debug)]
struct Room {
    most: Vec<usize>,
}

impl Room {
    /// So many empty rows.
    fn new(rows: usize, room: usize) -> Self {
        Self { most: vec![room; 2 * rows.max(1).next_power_of_two()] }
    }

    /// Takes room from the first row that has so much; which row, and how much room it had.
    ///
    /// There must be such a row: as long as there are as many rows as things put into them, an
    /// empty one is left.
    fn take_first(&mut self, amount: usize) -> (usize, usize) {
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

//! Rows in memory that grows: nothing is taken from the system for experiences that do not come.
//!
//! Rows lie in slabs, each as large as all before it together. The number of a row says which slab has it.

use std::sync::Arc;

use echoic_memory::AllocError;
use echoic_memory::slab::{Field, Pinned, RowWriter, Slab};
use echoic_memory::sync::RwLock;

/// Rows of the first slab, unless fewer are wanted.
const FIRST: u32 = 1 << 16;

/// How many rows ahead of the copy the memory is asked for.
const AHEAD: usize = 8;

/// See the [module](self).
#[derive(Debug)]
pub struct Rows {
    row_bytes: usize,
    most: u32,
    slabs: RwLock<Vec<Arc<Slab>>>,
}

/// Rows that nobody else knows yet. Dropped, they are free again.
#[derive(Debug, Default)]
pub struct UnpublishedRows {
    parts: Vec<(u32, RowWriter)>,
}

/// Rows that may be read, in the order in which they were asked for.
#[derive(Debug)]
pub struct Held {
    pins: Vec<Option<Pinned>>,
    /// In which pin each is, and where.
    places: Vec<(u32, u32)>,
}

fn slab_of(row: u32) -> usize {
    if row < FIRST { 0 } else { (row / FIRST).ilog2() as usize + 1 }
}

fn start_of(slab: usize) -> u32 {
    if slab == 0 { 0 } else { FIRST << (slab - 1) }
}

impl Rows {
    /// Up to this many rows.
    pub fn new(most: u32, row_bytes: usize) -> Self {
        Self { row_bytes, most, slabs: RwLock::default() }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of the rows that were ever used.
    pub fn used_bytes(&self) -> usize {
        self.slabs().iter().map(|slab| slab.used_bytes()).sum()
    }

    fn slabs(&self) -> Vec<Arc<Slab>> {
        self.slabs.read().clone()
    }

    /// Lends up to `count` rows; at least one, unless all are in use or being read.
    ///
    /// # Errors
    ///
    /// When the system has no memory for more.
    pub fn try_reserve(&self, count: usize) -> Result<UnpublishedRows, AllocError> {
        let mut reserved = UnpublishedRows::default();
        let mut left = count;
        for at in 0.. {
            let slab = match self.slab(at)? {
                Some(slab) => slab,
                None => break,
            };
            let writer = slab.try_reserve(left);
            left -= writer.len();
            if !writer.is_empty() {
                reserved.parts.push((start_of(at), writer));
            }
            if left == 0 {
                break;
            }
        }
        Ok(reserved)
    }

    /// The slab of this number, made now if need be; `None` behind the last one.
    fn slab(&self, at: usize) -> Result<Option<Arc<Slab>>, AllocError> {
        if let Some(slab) = self.slabs.read().get(at) {
            return Ok(Some(Arc::clone(slab)));
        }
        let mut slabs = self.slabs.write();
        while slabs.len() <= at {
            let start = start_of(slabs.len());
            if start >= self.most || slabs.len() > 16 {
                return Ok(None);
            }
            let rows = if slabs.is_empty() { FIRST } else { start };
            let slab = Slab::new(rows.min(self.most - start), self.row_bytes)?;
            slabs.push(Arc::new(slab));
        }
        Ok(slabs.get(at).cloned())
    }

    /// Frees rows. Whoever holds them may read on.
    pub fn free(&self, rows: &[u32]) {
        if rows.is_empty() {
            return;
        }
        let slabs = self.slabs.read();
        for (at, slab) in slabs.iter().enumerate() {
            let own = rows.iter().filter(|row| slab_of(**row) == at);
            slab.free_many(own.map(|row| row - start_of(at)));
        }
    }

    /// Keeps rows readable, in this order.
    pub fn hold(&self, rows: &[u32]) -> Held {
        let slabs = self.slabs.read();
        let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); slabs.len()];
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            let at = slab_of(*row);
            places.push((at as u32, numbers[at].len() as u32));
            numbers[at].push(*row - start_of(at));
        }
        let pin = |(slab, rows): (&Arc<Slab>, Vec<u32>)| (!rows.is_empty()).then(|| slab.pin(rows));
        let pins = slabs.iter().zip(numbers).map(pin).collect();
        Held { pins, places }
    }
}

impl UnpublishedRows {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|(_, writer)| writer.len()).sum()
    }

    /// Whether there was no room.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Calls `each` with every row, and its place among them.
    pub fn fill(&mut self, mut each: impl FnMut(usize, &mut [u8])) {
        let mut at = 0;
        for (_, writer) in &mut self.parts {
            for row in 0..writer.len() {
                // Rows that were used before lie anywhere.
                writer.prefetch(row + AHEAD);
                each(at, writer.row_mut(row));
                at += 1;
            }
        }
    }

    /// Lets everybody read the rows, and says which they are.
    pub fn publish(self) -> Vec<u32> {
        let mut rows = Vec::with_capacity(self.len());
        for (start, writer) in self.parts {
            rows.extend(writer.publish().iter().map(|row| start + row));
        }
        rows
    }
}

impl Held {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The bytes of a row.
    ///
    /// # Panics
    ///
    /// When there are fewer rows.
    pub fn row(&self, index: usize) -> &[u8] {
        let (pin, at) = self.places[index];
        match &self.pins[pin as usize] {
            Some(pinned) => pinned.row(at as usize),
            None => &[],
        }
    }

    /// Has the processor fetch a row that is read soon.
    fn prefetch(&self, index: usize) {
        if index < self.len() {
            // A long row the processor follows by itself.
            let lines = self.row(index).chunks(64).take(4);
            lines.filter_map(<[u8]>::first).for_each(echoic_memory::prefetch);
        }
    }

    /// Copies each field of row `index` to place `to` of its column, for each pair of them.
    ///
    /// # Panics
    ///
    /// When a field is not inside a row, or a place is not inside its column.
    pub fn gather(&self, to: &[u32], fields: &[Field], columns: &mut [&mut [u8]]) {
        (0..AHEAD).for_each(|index| self.prefetch(index));
        for (index, to) in to.iter().enumerate() {
            self.prefetch(index + AHEAD);
            scatter(self.row(index), *to as usize, fields, columns);
        }
    }
}

/// Copies each field of a row to its place in its column.
pub(super) fn scatter(row: &[u8], to: usize, fields: &[Field], columns: &mut [&mut [u8]]) {
    for (field, column) in fields.iter().zip(columns) {
        let from = &row[field.offset..field.offset + field.bytes];
        column[to * field.bytes..(to + 1) * field.bytes].copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_the_slab_that_has_its_number() {
        let rows = Rows::new(5 * FIRST / 2, 4);
        let mut reserved = rows.try_reserve(3 * FIRST as usize).unwrap();
        assert_eq!(reserved.len(), 5 * FIRST as usize / 2);
        reserved.fill(|at, row| row.copy_from_slice(&(at as u32).to_ne_bytes()));
        let numbers = reserved.publish();
        assert_eq!(numbers, (0..5 * FIRST / 2).collect::<Vec<u32>>());
        let asked = [2 * FIRST + 1, 0, FIRST, FIRST - 1, 2 * FIRST];
        let held = rows.hold(&asked);
        for (at, row) in asked.iter().enumerate() {
            assert_eq!(held.row(at), row.to_ne_bytes());
        }
        rows.free(&asked);
        assert!(rows.try_reserve(1).unwrap().is_empty(), "they are held");
        drop(held);
        assert_eq!(rows.try_reserve(9).unwrap().len(), 5);
    }
}

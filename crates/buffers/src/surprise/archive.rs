//! The bytes of cold experiences in a file, which is written from front to end and again.
//!
//! Experiences go in any order, the file overwrites the oldest record. So whatever is still wanted is written
//! again before its turn comes. The file has room for twice as many records as there are cold experiences, so
//! that at worst each is written twice as often as it would have to be.
//!
//! # Invariants
//!
//! 1. The next [`BLOCK`] records to be overwritten belong to nobody, and twice as many before new ones are
//!    appended: so a block of those that are in the way can be appended too, and no record that somebody
//!    wants is ever overwritten before it was written again.
//! 2. Only one thread at a time appends: the one that moves experiences.

use std::path::Path;

use echoic_memory::slab::Field;
use echoic_memory::sync::Mutex;

use super::rows::scatter;
use crate::cold::{ColdFile, Geometry, Reading, Wanted};
use crate::error::Error;

/// Rows that are appended at once.
pub(super) const BLOCK: u64 = 256;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Archive {
    file: ColdFile,
    row_bytes: usize,
    state: Mutex<RecordOwners>,
}

#[derive(Debug, Default)]
struct RecordOwners {
    /// The slot that each record was written for, by its place in the file.
    owners: Vec<u32>,
    /// Records before this position belong to nobody.
    clean: u64,
}

impl Archive {
    /// For this many experiences.
    pub(super) fn new(
        path: &Path,
        overwrite: bool,
        cold: usize,
        row_bytes: usize,
        text: &str,
    ) -> Result<Self, Error> {
        let slots = 2 * cold as u64 + 4 * BLOCK;
        let geometry = Geometry { row_bytes, slots, text: text.to_owned() };
        let file = if overwrite {
            ColdFile::overwrite(path, &geometry)?
        } else {
            ColdFile::create(path, &geometry)?
        };
        Ok(Self { file, row_bytes, state: Mutex::default() })
    }

    /// Appends at most a [`BLOCK`] of rows, of these slots, and says where the first is.
    pub(super) fn append<'a>(
        &self,
        slots: &[u32],
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> Result<u64, Error> {
        debug_assert!(slots.len() as u64 <= BLOCK);
        let first = self.file.end();
        let appended = self.file.append(rows);
        let mut state = self.state.lock();
        let end = self.file.end();
        for (position, slot) in (first..end).zip(slots) {
            let at = (position % self.file.slots()) as usize;
            if state.owners.len() <= at {
                state.owners.resize(at + 1, u32::MAX);
            }
            state.owners[at] = *slot;
        }
        appended.map(|()| first)
    }

    /// Up to a block of records that must be written again before more is appended: their positions and the
    /// slots that they were written for, of which `is_there` says whether they still mean anything.
    pub(super) fn in_the_way(&self, is_there: impl Fn(u32, u64) -> bool) -> Vec<(u32, u64)> {
        let mut state = self.state.lock();
        let end = (self.file.end() + 2 * BLOCK).saturating_sub(self.file.slots());
        let mut found = Vec::new();
        while state.clean < end && (found.len() as u64) < BLOCK {
            let at = (state.clean % self.file.slots()) as usize;
            if let Some(slot) = state.owners.get(at).copied()
                && is_there(slot, state.clean)
            {
                found.push((slot, state.clean));
            }
            state.clean += 1;
        }
        found
    }

    /// Records from this one on were in the way, and still are.
    pub(super) fn take_back(&self, position: u64) {
        let mut state = self.state.lock();
        state.clean = state.clean.min(position);
    }

    /// Keeps all records that are there now from being overwritten. To be dropped soon.
    pub(super) fn reading(&self) -> Reading<'_> {
        self.file.reading()
    }

    /// The bytes of records, one after the other.
    pub(super) fn read(&self, reading: &Reading<'_>, positions: &[u64]) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; positions.len() * self.row_bytes];
        let rows = bytes.chunks_exact_mut(self.row_bytes);
        let mut wanted: Vec<Wanted<'_>> = positions
            .iter()
            .zip(rows)
            .map(|(position, row)| Wanted {
                position: *position,
                into: [row].into_iter().collect(),
            })
            .collect();
        self.file.read(reading, &mut wanted)?;
        drop(wanted);
        Ok(bytes)
    }

    /// Copies each field of these records to its place in its column.
    pub(super) fn gather(
        &self,
        reading: &Reading<'_>,
        records: &[(u32, u64)],
        fields: &[Field],
        columns: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        let positions: Vec<u64> = records.iter().map(|(_, position)| *position).collect();
        let bytes = self.read(reading, &positions)?;
        for ((to, _), row) in records.iter().zip(bytes.chunks_exact(self.row_bytes)) {
            scatter(row, *to as usize, fields, columns);
        }
        Ok(())
    }

    /// Bytes that the records take at most.
    pub(super) fn bytes(&self) -> u64 {
        self.file.slots().min(self.file.end()) * self.row_bytes as u64
    }

    /// Ends the use of the file, and removes it.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.file.close(false)
    }
}

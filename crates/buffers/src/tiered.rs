//! Rows of transitions of which the newest are in memory and all others in a file.
//!
//! Rows are added to a [`RowRing`]. The call that adds the last row of a block writes the block to a [`ColdFile`]. There is
//! no thread: a slow disk slows down calls that add rows, and a full one is their error. Drawn rows are read from the
//! ring while they are there, and else from the file.
//!
//! A row has one position, on the row ring and in the file: the row ring of a file that is opened again starts where
//! the file ends.
//!
//! # Invariants
//!
//! 1. `promised <= written + kept`: a row that is in no file is in the row ring's window.
//! 2. `written` is the file's end, and changes only under the lock `spilling`.
//! 3. The row ring is cleared, and the window looked at, under the lock `first`: what was cleared is in no
//!    window.
//! 4. No lock but `spilling` is held while the disk is waited for; the threads that put on rows ask for it only when
//!    there is no room.

use std::ops::Range;

use echoic_memory::row_ring::{Reader, RowReservation, RowRing};
use echoic_memory::sync::{Mutex, MutexGuard};
use echoic_replay::rng::Rng;

use crate::cold::{ColdFile, Geometry, Pieces, Reading, Wanted};
use crate::error::Error;
use crate::layout::RowLayout;

/// How many bytes are written at once, if they are more than one row and less than half of what is kept
/// in memory: enough that a call costs little beside its copy.
const BLOCK_BYTES: usize = 1 << 20;

/// See the [module](self).
#[derive(Debug)]
pub struct Tiered {
    ring: RowRing,
    cold: ColdFile,
    layout: RowLayout,
    /// The fields of a row as they lie in it, and how many bytes there are behind the last.
    order: Vec<usize>,
    padding: usize,
    block: u64,
    gate: Mutex<Gate>,
    /// Rows before this one were cleared.
    first: Mutex<u64>,
    /// Who has this writes rows to the file.
    spilling: Mutex<()>,
    rng: Mutex<Rng>,
}

/// Who may put on rows.
#[derive(Debug)]
struct Gate {
    /// The position after the last row that a thread was given room for.
    promised: u64,
    /// The position after the last row that is in the file.
    written: u64,
    /// Before this many are promised, no thread writes that need not: the disk has just refused.
    quiet: u64,
}

/// Room for rows.
#[derive(Debug)]
pub struct SpillableRows<'a> {
    /// The rows, to be filled.
    pub reservation: RowReservation<'a>,
    due: bool,
}

impl SpillableRows<'_> {
    /// Lets all threads read the rows. Says whether [`Tiered::spill_some`] is to be called then.
    pub fn publish(self) -> bool {
        self.reservation.publish();
        self.due
    }
}

/// What can be drawn, and stays while this is there.
#[derive(Debug)]
pub struct Held<'a> {
    rows: &'a Tiered,
    reading: Reading<'a>,
    reader: Reader<'a>,
    window: Range<u64>,
}

impl Tiered {
    /// At most `total` rows in the file that `open` gives, of which the newest `hot` are in memory, too. The
    /// file may have some already. It is not opened when anything else is wrong.
    ///
    /// # Errors
    ///
    /// [`Error`] when there is to be none in memory, or more than in the file, or the machine could
    /// never hold them; [`Error::Differs`] when the file has other rows, or another number of them;
    /// what `open` says.
    pub fn new(
        hot: u64,
        total: u64,
        layout: RowLayout,
        seed: u64,
        open: impl FnOnce() -> Result<ColdFile, Error>,
    ) -> Result<Self, Error> {
        if hot == 0 || total == 0 {
            return Err(Error::no_capacity());
        }
        if hot > total {
            let (range, got) = ("at most the capacity", hot as f64);
            return Err(Error::setting("hot_capacity", range, got));
        }
        let ring = RowRing::new(hot, layout.row_bytes())?;
        let cold = open()?;
        let text = cold.text().to_owned();
        cold.check(&Geometry { row_bytes: layout.row_bytes(), slots: total, text })?;
        let fields = layout.fields();
        let mut order: Vec<usize> = (0..fields.len()).collect();
        order.sort_by_key(|field| (fields[*field].offset, fields[*field].bytes));
        let used: usize = fields.iter().map(|field| field.bytes).sum();
        let padding = layout.row_bytes() - used;
        let block = (BLOCK_BYTES / layout.row_bytes().max(1)) as u64;
        let block = block.clamp(1, (ring.kept() / 2).max(1));
        let (first, end) = (cold.first(), cold.end());
        assert!(ring.restart(end), "nobody reads or writes a new ring");
        let gate = Gate { promised: end, written: end, quiet: 0 };
        Ok(Self {
            ring,
            cold,
            layout,
            order,
            padding,
            block,
            gate: Mutex::new(gate),
            first: Mutex::new(first),
            spilling: Mutex::new(()),
            rng: Mutex::new(Rng::new(seed)),
        })
    }

    /// The file.
    pub fn cold(&self) -> &ColdFile {
        &self.cold
    }

    /// How many rows are kept in memory.
    pub fn hot_capacity(&self) -> u64 {
        self.ring.kept()
    }

    /// How many rows are kept.
    pub fn capacity(&self) -> u64 {
        self.cold.slots()
    }

    /// How many rows can be put on at once.
    pub fn most_at_once(&self) -> u64 {
        self.ring.slack().min(self.ring.kept())
    }

    /// How many rows can be drawn.
    pub fn len(&self) -> u64 {
        let first = self.first.lock();
        let window = self.window(*first, self.ring.window().end);
        window.end - window.start
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of the rows are in the file.
    pub fn written(&self) -> u64 {
        let first = self.first.lock();
        let window = self.window(*first, self.ring.window().end);
        drop(first);
        self.gate.lock().written.min(window.end).saturating_sub(window.start)
    }

    /// What can be drawn, given the end of the row ring's window.
    fn window(&self, first: u64, end: u64) -> Range<u64> {
        first.max(end.saturating_sub(self.capacity())).min(end)..end
    }

    /// Room for this many rows, if there is some at once.
    ///
    /// # Panics
    ///
    /// When it is more than [`Tiered::most_at_once`].
    #[inline]
    pub fn try_place(&self, rows: u64) -> Option<SpillableRows<'_>> {
        assert!(rows <= self.most_at_once());
        let mut gate = self.gate.lock();
        if gate.promised + rows > gate.written + self.ring.kept() {
            return None;
        }
        let reservation = self.ring.try_reserve(rows)?;
        gate.promised += rows;
        let due = gate.promised - gate.written >= self.block && gate.promised >= gate.quiet;
        Some(SpillableRows { reservation, due })
    }

    /// Waits until there may be room for this many rows, and writes some to the file, if it takes that.
    ///
    /// # Errors
    ///
    /// When the file can't be written, and there is no room: nothing was lost, and the next try may do.
    pub fn make_room(&self, rows: u64) -> Result<(), Error> {
        let spilling = self.spilling.lock();
        let gate = self.gate.lock();
        let full = gate.promised + rows > gate.written + self.ring.kept();
        drop(gate);
        if full {
            self.spill(&spilling)?;
            drop(spilling);
            // What is there now may be wanted by another thread, or still be filled by one.
            std::thread::yield_now();
            return Ok(());
        }
        drop(spilling);
        // Readers or writers of rows are in the way, who take as long as a copy.
        self.ring.wait_for_room(rows);
        Ok(())
    }

    /// Writes what is in memory only, unless another thread does so already. A disk that refuses is no error yet:
    /// there is room left.
    pub fn spill_some(&self) {
        let Some(spilling) = self.spilling.try_lock() else { return };
        if self.spill(&spilling).is_err() {
            let mut gate = self.gate.lock();
            gate.quiet = gate.promised + self.block;
        }
    }

    fn spill(&self, _spilling: &MutexGuard<'_, ()>) -> Result<(), Error> {
        loop {
            // A new reader for each block: the threads that put on rows wait for the oldest.
            let reader = self.ring.read();
            let begin = self.gate.lock().written;
            let end = reader.window().end.min(begin + self.block);
            if begin >= end {
                return Ok(());
            }
            let done = self.cold.append((begin..end).map(|position| reader.row(position)));
            drop(reader);
            self.gate.lock().written = self.cold.end();
            done?;
        }
    }

    /// Writes all rows to the file, and waits until they would survive a loss of power.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn flush(&self) -> Result<(), Error> {
        self.spill(&self.spilling.lock())?;
        self.cold.flush()
    }

    /// Forgets all rows. Those that are being put on now will be there.
    ///
    /// # Errors
    ///
    /// When that can't be noted in the file, from which they could come back when it is opened again.
    pub fn clear(&self) -> Result<(), Error> {
        let _spilling = self.spilling.lock();
        let mut first = self.first.lock();
        self.ring.clear();
        // By invariant 1, and as no thread writes, no more has been put on since than is kept: the window
        // begins where it was cleared.
        *first = self.ring.window().start;
        let cleared = *first;
        drop(first);
        let noted = self.cold.clear(cleared);
        let mut gate = self.gate.lock();
        gate.written = gate.written.max(cleared);
        noted
    }

    /// Ends the use of the file, which is removed, or kept with all rows.
    ///
    /// # Errors
    ///
    /// When it can't be removed. When it is to be kept and rows can't be written, it stays open.
    pub fn close(&self, keep: bool) -> Result<(), Error> {
        let spilling = self.spilling.lock();
        if keep {
            self.spill(&spilling)?;
        }
        self.cold.close(keep)
    }

    /// Whether the file was closed.
    pub fn is_closed(&self) -> bool {
        self.cold.is_closed()
    }

    /// Draws rows, each as likely as any other, with the numbers that a buffer in memory would draw with.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] and [`Error::Argument`] when there is nothing to draw, or nothing asked
    /// for.
    pub fn draw(
        &self,
        count: usize,
        seed: Option<u64>,
        positions: &mut Vec<u64>,
    ) -> Result<Held<'_>, Error> {
        if count == 0 {
            return Err(Error::no_batch());
        }
        let held = self.hold();
        let len = held.window.end - held.window.start;
        if len == 0 {
            return Err(Error::Empty);
        }
        positions.clear();
        let mut draw = |rng: &mut Rng| {
            positions.extend((0..count).map(|_| held.window.start + rng.below(len)));
        };
        match seed {
            Some(seed) => draw(&mut Rng::new(seed)),
            None => draw(&mut self.rng.lock()),
        }
        Ok(held)
    }

    /// Keeps what can be drawn now.
    fn hold(&self) -> Held<'_> {
        // In this order: what the file has overwritten was out of the window before, so it is out of one
        // that is looked at later.
        let reading = self.cold.reading();
        let first = self.first.lock();
        let reader = self.ring.read();
        let window = self.window(*first, reader.window().end);
        drop(first);
        Held { rows: self, reading, reader, window }
    }
}

impl Held<'_> {
    /// Which positions can be read.
    pub fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Whether all of these rows are in memory.
    pub fn are_hot(&self, positions: &[u64]) -> bool {
        let hot = self.reader.window().start;
        positions.iter().all(|position| *position >= hot)
    }

    /// Copies each field of these rows, one after the other, into its column.
    ///
    /// # Errors
    ///
    /// When a row can't be read from the file.
    ///
    /// # Panics
    ///
    /// When a position can't be read, or a column is not as long as all its values.
    pub fn gather(&self, positions: &[u64], columns: &mut [&mut [u8]]) -> Result<(), Error> {
        let rows = self.rows;
        let fields = rows.layout.fields();
        let hot = self.reader.window().start;
        if self.are_hot(positions) {
            self.reader.gather(positions, fields, columns);
            return Ok(());
        }
        assert_eq!(fields.len(), columns.len(), "a column for each field");
        for (field, column) in fields.iter().zip(columns.iter()) {
            assert_eq!(field.bytes.checked_mul(positions.len()), Some(column.len()), "{field:?}");
        }
        positions.iter().filter(|at| **at >= hot).for_each(|at| self.reader.prefetch(*at));
        let mut padding = vec![0; rows.padding * positions.len()];
        let mut left: Vec<&mut [u8]> = columns.iter_mut().map(|column| &mut **column).collect();
        let mut padding_left = padding.as_mut_slice();
        let mut wanted = Vec::with_capacity(positions.len());
        for position in positions {
            // The row's own parts of the columns, as they lie in the row.
            let mut into: Pieces<'_> = Pieces::new();
            for field in &rows.order {
                into.push(cut(&mut left[*field], fields[*field].bytes));
            }
            if *position >= hot {
                let mut row = self.reader.row(*position);
                for part in into {
                    let (from, rest) = row.split_at(part.len());
                    part.copy_from_slice(from);
                    row = rest;
                }
            } else {
                into.push(cut(&mut padding_left, rows.padding));
                wanted.push(Wanted { position: *position, into });
            }
        }
        rows.cold.read(&self.reading, &mut wanted)
    }
}

/// Takes the first `bytes` of what is left.
fn cut<'a>(left: &mut &'a mut [u8], bytes: usize) -> &'a mut [u8] {
    let (part, rest) = std::mem::take(left).split_at_mut(bytes);
    *left = rest;
    part
}

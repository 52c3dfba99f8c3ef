//! Transitions whose observations are stored once: which of their frames are new is found, and only those
//! are copied.

use std::ops::Range;
use std::time::Duration;

use echoic_buffers::transitions::Notes;
use pyo3::prelude::*;

use super::form::{FrameForm, OBSERVATIONS};
use super::replay::ReplayBuffer;
use crate::leaf::Source;
use crate::sources::DETACH_BYTES;

/// How many transitions go at once when there is no room for a frame.
const DROPPED: u64 = 16;

/// The bytes of one row's two observations, frame by frame.
struct Observations<'a> {
    form: &'a FrameForm,
    /// The bytes of each leaf, of all rows: those of the observation before, and of the one after.
    sides: [Vec<&'a [u8]>; 2],
    row: usize,
}

impl Observations<'_> {
    /// The leaves of a frame.
    fn frame(&self, (side, at): (usize, usize)) -> impl Iterator<Item = &[u8]> {
        let first = self.row * self.form.stack + at;
        let places = self.form.layout.fields().iter();
        let leaves = self.sides[side].iter().zip(places);
        leaves.map(move |(bytes, place)| &bytes[first * place.bytes..(first + 1) * place.bytes])
    }

    fn same(&self, one: (usize, usize), other: (usize, usize)) -> bool {
        self.frame(one).eq(self.frame(other))
    }

    fn same_as(&self, one: (usize, usize), row: &[u8]) -> bool {
        let places = self.form.layout.fields().iter();
        self.frame(one).zip(places).all(|(leaf, at)| leaf == &row[at.offset..at.offset + at.bytes])
    }
}

impl ReplayBuffer {
    /// Writes these of the rows that the sources have.
    pub(super) fn write_framed(
        &self,
        py: Python<'_>,
        form: &FrameForm,
        sources: &[Source],
        rows: Range<usize>,
        notes: &Notes,
    ) -> PyResult<()> {
        let frame_bytes = 2 * form.stack * form.layout.row_bytes();
        // Some at a time, so that memory which was changed is noticed between them.
        let most = ((8 << 20) / frame_bytes.max(1)).max(1);
        let mut done = rows.start;
        while done < rows.end {
            let part = done..rows.end.min(done + most);
            let large = part.len() * frame_bytes >= DETACH_BYTES;
            let write = || self.write_some(form, sources, part.clone(), notes);
            let (written, short) = if large { py.detach(write) } else { write() };
            done += written;
            if let Some(short) = short {
                py.detach(|| {
                    if matches!(short, Short::OfPlaces) {
                        return self.rows.ring().wait_for_room(1);
                    }
                    let readers = match self.rows.frames() {
                        Some((slab, _)) => slab.waits_for_readers(),
                        None => false,
                    };
                    if readers
                        || (self.rows.drop_oldest(DROPPED) == 0
                            && !self.rows.forget_latest_frames())
                    {
                        // A reader stays no longer than a copy takes.
                        std::thread::sleep(Duration::from_micros(50));
                    }
                });
                self.form.recheck(py, sources)?;
            }
        }
        Ok(())
    }

    /// Writes rows until there is no room; how many it wrote, and what there was no room for.
    fn write_some<'a>(
        &self,
        form: &'a FrameForm,
        sources: &'a [Source],
        rows: Range<usize>,
        notes: &Notes,
    ) -> (usize, Option<Short>) {
        let Some((slab, stack)) = self.rows.frames() else { return (rows.len(), None) };
        let all = rows.end;
        let side = |name: &str| -> Vec<&'a [u8]> {
            let leaves = self.form.leaves_of(name);
            let mut own: Vec<&'a Source> =
                sources.iter().filter(|source| leaves.contains(&source.leaf)).collect();
            own.sort_by_key(|source| source.leaf);
            let places = form.layout.fields().iter();
            let bytes = |(source, len): (&'a Source, usize)| {
                // SAFETY: the form has accepted the sources as values of at least so many rows, and they
                // were checked again after Python code could last run in this thread.
                unsafe { source.bytes(len) }
            };
            let lengths = places.map(|place| all * stack * place.bytes);
            own.into_iter().zip(lengths).map(bytes).collect()
        };
        let mut observations =
            Observations { form, sides: [side(OBSERVATIONS[0]), side(OBSERVATIONS[1])], row: 0 };
        for row in rows.clone() {
            observations.row = row;
            let mut own = notes.part(row..row + 1);
            let env = own.envs.first().copied().unwrap_or(0);
            let latest = self.rows.latest_frames(env);
            let (numbers, fresh) = find(&observations, stack, latest.as_ref());
            own.taken = latest.map(|(numbers, _)| numbers);
            let mut writer = slab.try_reserve(fresh.len());
            // The position comes last: frames that were reserved can be given back, a position can't.
            let stretch = if writer.len() == fresh.len() {
                self.rows.ring().try_reserve(1).ok_or(Short::OfPlaces)
            } else {
                Err(Short::OfFrames)
            };
            let mut stretch = match stretch {
                Ok(stretch) => stretch,
                Err(short) => {
                    if let Some(numbers) = &own.taken {
                        self.rows.release_frames(numbers);
                    }
                    return (row - rows.start, Some(short));
                }
            };
            for (at, frame) in fresh.iter().enumerate() {
                let to = writer.row_mut(at);
                for (leaf, place) in observations.frame(*frame).zip(form.layout.fields()) {
                    to[place.offset..place.offset + place.bytes].copy_from_slice(leaf);
                }
            }
            let published = writer.publish();
            own.frames = numbers.iter().map(|number| number.settled(&published)).collect();
            // SAFETY: the form has accepted the sources, as values of at least so many rows, and they were
            // checked again after Python code could last run in this thread.
            unsafe { self.form.copy_rows(sources, row, stretch.row_mut(0)) };
            self.rows.publish(stretch, own);
        }
        (rows.len(), None)
    }
}

/// What there was no room for.
enum Short {
    OfFrames,
    /// Readers keep the places of rows.
    OfPlaces,
}

/// Which frame it is.
#[derive(Clone, Copy)]
enum Number {
    Known(u32),
    /// The one at this place among those that are new.
    Fresh(usize),
}

impl Number {
    fn settled(self, published: &[u32]) -> u32 {
        match self {
            Self::Known(number) => number,
            Self::Fresh(at) => published[at],
        }
    }
}

/// The frames of a row's observations, and which of them are new.
fn find(
    observations: &Observations<'_>,
    stack: usize,
    latest: Option<&(Vec<u32>, echoic_memory::slab::Pinned)>,
) -> (Vec<Number>, Vec<(usize, usize)>) {
    let mut numbers: Vec<Number> = Vec::with_capacity(2 * stack);
    let mut fresh = Vec::new();
    for side in 0..2 {
        for at in 0..stack {
            let own = (side, at);
            let seen =
                latest.filter(|(_, rows)| side == 0 && observations.same_as(own, rows.row(at)));
            let before = |other: (usize, usize)| {
                observations.same(own, other).then(|| numbers[other.0 * stack + other.1])
            };
            let known = match seen {
                Some((known, _)) => Some(Number::Known(known[at])),
                // A stack moves on by one frame in a step, and begins with one frame repeated.
                None if side == 1 && at + 1 < stack => before((0, at + 1)),
                None if side == 1 => before((0, at)),
                None => None,
            };
            let known = match known {
                None if at > 0 => before((side, at - 1)),
                known => known,
            };
            numbers.push(known.unwrap_or_else(|| {
                fresh.push(own);
                Number::Fresh(fresh.len() - 1)
            }));
        }
    }
    (numbers, fresh)
}

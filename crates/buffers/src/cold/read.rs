//! Reading many records at once.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::file::ColdFile;
use super::format::{TRAILER_BYTES, position_of};
use super::readers::Reading;
use crate::error::Error;
use crate::os;

/// How many pieces a call takes.
const MOST_PIECES: usize = 1024;

/// Room for a record, in as many pieces as it has parts.
pub type Pieces<'a> = SmallVec<[&'a mut [u8]; 8]>;

/// Records of up to this many bytes are read in one piece and divided here: the system takes longer for many
/// pieces than a copy of so few bytes takes.
const SHORT_RECORD: usize = 4096;

/// A record, and where it is to go.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Which one.
    pub position: u64,
    /// Room for its bytes.
    pub into: Pieces<'a>,
}

/// What came of an attempt to read a record.
enum Attempt {
    Read,
    /// The disk would have to be waited for.
    Later,
}

impl ColdFile {
    /// Reads records to where they are wanted, sorted by their place in the file.
    ///
    /// What is in memory already is copied at once. The disk is asked for all others together, before
    /// the first of them is waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] before anything is read; [`Error::File`]
    /// when another process changed the file; or what the system says.
    pub fn read(&self, reading: &Reading<'_>, wanted: &mut [Wanted<'_>]) -> Result<(), Error> {
        let (first, end) = (reading.oldest(), self.end());
        for record in &*wanted {
            let position = record.position;
            if position < first || position >= end {
                let has = format!("the file has those from {first} to before {end}");
                return Err(Error::Argument(format!("there is no record {position}: {has}")));
            }
            let (expected, got) =
                (self.header.row_bytes, record.into.iter().map(|part| part.len()).sum());
            if expected != got {
                return Err(Error::row_bytes(expected, got));
            }
        }
        wanted.sort_unstable_by_key(|record| self.header.slot(record.position));
        let mut late = Vec::new();
        let mut room = Vec::new();
        for record in wanted {
            match self.read_record(record, true, &mut room)? {
                Attempt::Read => {}
                Attempt::Later => late.push(record),
            }
        }
        for record in &late {
            self.ask_for(record.position);
        }
        for record in late {
            self.read_record(record, false, &mut room)?;
        }
        Ok(())
    }

    /// Has the system fetch a record from the disk.
    fn ask_for(&self, position: u64) {
        let offset = self.header.offset(self.header.slot(position));
        os::fetch(self.file.file(), offset, self.header.slot_bytes);
    }

    fn read_record(
        &self,
        record: &mut Wanted<'_>,
        at_once: bool,
        room: &mut Vec<u8>,
    ) -> Result<Attempt, Error> {
        let offset = self.header.offset(self.header.slot(record.position));
        let row_bytes = self.header.row_bytes;
        let mut trailer = [0; TRAILER_BYTES];
        let attempt = if row_bytes <= SHORT_RECORD {
            room.resize(row_bytes + TRAILER_BYTES, 0);
            let attempt = self.read_all(&mut [IoSliceMut::new(room)], offset, at_once)?;
            let mut left = room.as_slice();
            for part in &mut record.into {
                if let Some((from, rest)) = left.split_at_checked(part.len()) {
                    part.copy_from_slice(from);
                    left = rest;
                }
            }
            trailer.iter_mut().zip(left).for_each(|(to, from)| *to = *from);
            attempt
        } else {
            let parts = record.into.iter_mut().map(|part| IoSliceMut::new(part));
            let mut pieces: SmallVec<[IoSliceMut<'_>; 12]> =
                parts.chain([IoSliceMut::new(&mut trailer)]).collect();
            self.read_all(&mut pieces, offset, at_once)?
        };
        let found = position_of(trailer);
        if matches!(attempt, Attempt::Later) || found == record.position {
            return Ok(attempt);
        }
        let what = format!("record {} should be there, and {found} is", record.position);
        Err(Error::damaged(self.path(), offset, what))
    }

    /// Reads a row and its trailer.
    fn read_all(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        offset: u64,
        at_once: bool,
    ) -> Result<Attempt, Error> {
        let total = self.header.row_bytes + TRAILER_BYTES;
        let (mut left, mut read) = (pieces, 0);
        while read < total {
            let some = left.len().min(MOST_PIECES);
            let (some, _) = left.split_at_mut(some);
            let (file, offset) = (self.file.file(), offset + read as u64);
            let some = match at_once {
                true => os::read_fetched(file, some, offset),
                false => rustix::io::preadv(file, some, offset).map(Some),
            };
            match some {
                Ok(Some(0)) => {
                    let what = "the file became shorter than it was";
                    return Err(Error::damaged(self.path(), offset, what));
                }
                Ok(Some(got)) => {
                    read += got;
                    IoSliceMut::advance_slices(&mut left, got);
                }
                Ok(None) => return Ok(Attempt::Later),
                Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::io("read", self.path(), source)),
            }
        }
        Ok(Attempt::Read)
    }
}

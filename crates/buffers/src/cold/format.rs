//! The bytes of a cold file as values; see the parent for the format.

use std::path::Path;

use crc32c::{crc32c, crc32c_append};
use echoic_replay::codec::Reader;

use echoic_replay::Error as Stored;

use crate::error::Error;

/// What states and long slots are aligned to.
pub(super) const PAGE: u64 = 4096;
/// The format that this release writes and reads.
pub(super) const VERSION: u32 = 1;
/// Bytes of the header before the text.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes of a state.
pub(super) const STATE_BYTES: usize = 36;
/// Bytes behind a row that tell whether it is whole.
pub(super) const TRAILER_BYTES: usize = 12;
/// No record has a position from here on: who appends one a nanosecond gets there after a century.
pub(super) const END_OF_POSITIONS: u64 = 1 << 62;
/// Bytes of the longest text.
pub(super) const MAX_TEXT: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"EchoCold";
const FIELDS_BYTES: usize = 48;

/// What does not change in the life of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes from one slot to the next.
    pub slot_bytes: u64,
    /// How many slots there are.
    pub slots: u64,
    /// What tells the records of this file from those of others.
    pub identity: u64,
    /// What the rows mean.
    pub text: String,
    /// The checksum of the identity, with which those of records begin.
    seed: u32,
}

impl Header {
    /// The header of a new file.
    pub(super) fn new(
        row_bytes: usize,
        slots: u64,
        text: &str,
        identity: u64,
    ) -> Result<Self, Error> {
        let refused = |why| {
            let what = format!("a file of {slots} records of {row_bytes} bytes can't be made");
            Error::Argument(format!("{what}: {why}"))
        };
        if slots == 0 {
            return Err(refused("it has to have room for at least one"));
        }
        if text.len() > MAX_TEXT {
            return Err(refused("the description of its rows is too long"));
        }
        let too_large = || refused("it would be longer than a file can be");
        let slot_bytes = slot_bytes(row_bytes as u64).ok_or_else(too_large)?;
        let (text, seed) = (text.to_owned(), crc32c(&identity.to_le_bytes()));
        let header = Self { row_bytes, slot_bytes, slots, identity, text, seed };
        // Offsets in a file are signed.
        match header.file_bytes() {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(header),
            _ => Err(too_large()),
        }
    }

    /// Where the two states are.
    pub(super) fn state_offsets(&self) -> [u64; 2] {
        let first = ((HEADER_BYTES + self.text.len()) as u64).next_multiple_of(PAGE);
        [first, first + PAGE]
    }

    /// Where the first slot is.
    pub(super) fn data_offset(&self) -> u64 {
        let [first, _] = self.state_offsets();
        first + 2 * PAGE
    }

    /// Bytes of a file all of whose slots are taken.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        self.slots.checked_mul(self.slot_bytes)?.checked_add(self.data_offset())
    }

    /// The slot of a record.
    pub(super) fn slot(&self, position: u64) -> u64 {
        position % self.slots
    }

    /// Where a slot begins; it is one of the file's.
    pub(super) fn offset(&self, slot: u64) -> u64 {
        self.data_offset() + slot * self.slot_bytes
    }

    /// Bytes from a row's end to the next slot.
    pub(super) fn tail_bytes(&self) -> usize {
        // At most a page and the trailer.
        self.slot_bytes.saturating_sub(self.row_bytes as u64) as usize
    }

    /// The bytes of the header, the text included.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        // At most `MAX_TEXT`.
        bytes.extend((self.text.len() as u32).to_le_bytes());
        bytes.extend((self.row_bytes as u64).to_le_bytes());
        bytes.extend(self.slot_bytes.to_le_bytes());
        bytes.extend(self.slots.to_le_bytes());
        bytes.extend(self.identity.to_le_bytes());
        bytes.extend(crc32c_append(crc32c(&bytes), self.text.as_bytes()).to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(self.text.as_bytes());
        bytes
    }

    /// The header that a file begins with. `text` is asked for this many bytes behind the fixed part.
    pub(super) fn read(
        bytes: &[u8],
        text: impl FnOnce(usize) -> Result<Vec<u8>, Error>,
        path: &Path,
    ) -> Result<Self, Error> {
        let foreign = |found: String| Error::foreign(path, found);
        let cut = |_| {
            let got = bytes.len();
            foreign(format!("it has {got} bytes, too few for a header of {HEADER_BYTES}"))
        };
        let mut reader = Reader::new(bytes);
        let magic: [u8; 8] = reader.array("magic").map_err(cut)?;
        if magic != MAGIC {
            return Err(foreign(format!(
                "it begins with \"{}\", expected \"{}\"",
                magic.escape_ascii(),
                MAGIC.escape_ascii()
            )));
        }
        let version = reader.u32("format").map_err(cut)?;
        if version != VERSION {
            let path = path.to_owned();
            return Err(Stored::Format { path, expected: VERSION, got: version }.into());
        }
        let damaged = |what: String| Error::damaged(path, 0, what);
        let text_bytes = reader.u32("bytes of the text").map_err(cut)? as usize;
        let mut number = |field| reader.u64(field).map_err(cut);
        let (row_bytes, slot_bytes) = (number("bytes of a row")?, number("bytes of a slot")?);
        let (slots, identity) = (number("slots")?, number("identity")?);
        let got = reader.u32("checksum").map_err(cut)?;
        if text_bytes > MAX_TEXT {
            let what =
                format!("the text should have at most {MAX_TEXT} bytes, and has {text_bytes}");
            return Err(damaged(what));
        }
        let text = text(text_bytes)?;
        let fields = bytes.get(..FIELDS_BYTES).unwrap_or_default();
        let expected = crc32c_append(crc32c(fields), &text);
        if expected != got {
            let what = format!("the header's checksum should be {expected:08x}, and is {got:08x}");
            return Err(damaged(what));
        }
        let text =
            String::from_utf8(text).map_err(|_| damaged("the text is not UTF-8".to_owned()))?;
        let row_bytes = usize::try_from(row_bytes)
            .map_err(|_| damaged(format!("a row of {row_bytes} bytes is too long")))?;
        let header = Self::new(row_bytes, slots, &text, identity)?;
        if header.slot_bytes != slot_bytes {
            let expected = header.slot_bytes;
            return Err(damaged(format!(
                "a slot should have {expected} bytes, and has {slot_bytes}"
            )));
        }
        Ok(header)
    }

    /// The bytes behind a row at `position`.
    pub(super) fn trailer(&self, row: &[u8], position: u64) -> [u8; TRAILER_BYTES] {
        let mut trailer = [0; TRAILER_BYTES];
        let (number, checksum) = trailer.split_at_mut(8);
        number.copy_from_slice(&position.to_le_bytes());
        let crc = crc32c_append(crc32c_append(self.seed, row), number);
        checksum.copy_from_slice(&crc.to_le_bytes());
        trailer
    }

    /// Puts a row at `position` behind what is there, with all bytes of its slot.
    pub(super) fn stage(&self, row: &[u8], position: u64, staged: &mut Vec<u8>) {
        let begin = staged.len();
        staged.extend_from_slice(row);
        staged.extend_from_slice(&position.to_le_bytes());
        let crc = crc32c_append(self.seed, staged.get(begin..).unwrap_or_default());
        staged.extend_from_slice(&crc.to_le_bytes());
        staged.resize(begin + self.row_bytes + self.tail_bytes(), 0);
    }

    /// The position of the record whose row and trailer these are; `None` when it is not whole, or not
    /// the one of its slot.
    pub(super) fn read_record(&self, slot: u64, bytes: &[u8]) -> Option<u64> {
        let (row, trailer) = bytes.split_at_checked(self.row_bytes)?;
        let position = position_of(*trailer.first_chunk()?);
        let right = self.slot(position) == slot && position < END_OF_POSITIONS - 1;
        (right && trailer.starts_with(&self.trailer(row, position))).then_some(position)
    }
}

fn slot_bytes(row_bytes: u64) -> Option<u64> {
    let least = row_bytes.checked_add(TRAILER_BYTES as u64)?;
    let pages = least.checked_next_multiple_of(PAGE)?;
    Some(if pages - least <= row_bytes / 16 { pages } else { least })
}

/// The position that a trailer says.
pub(super) fn position_of(trailer: [u8; TRAILER_BYTES]) -> u64 {
    let [p0, p1, p2, p3, p4, p5, p6, p7, ..] = trailer;
    u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7])
}

/// What changes in the life of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    /// How many states there were before.
    pub generation: u64,
    /// Records before this one were cleared.
    pub first: u64,
    /// The position after the newest record, if the file was closed.
    pub end: Option<u64>,
}

impl FileState {
    /// The bytes of the state.
    pub(super) fn write(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let fields =
            [self.generation, self.first, self.end.unwrap_or(0), u64::from(self.end.is_some())];
        let (numbers, checksum) = bytes.split_at_mut(STATE_BYTES - 4);
        for (to, field) in numbers.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        checksum.copy_from_slice(&crc32c(numbers).to_le_bytes());
        bytes
    }

    /// The state of these bytes; `None` when they are of none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut number = || reader.u64("state").ok();
        let (generation, first) = (number()?, number()?);
        let (end, clean) = (number()?, number()?);
        let end = (clean == 1).then_some(end);
        let state = Self { generation, first, end };
        let right =
            first.max(end.unwrap_or(0)) < END_OF_POSITIONS && end.is_none_or(|end| end >= first);
        (right && state.write() == bytes.get(..STATE_BYTES)?).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(100, 7, "rows", 9).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Header, Error> {
        let text = |len| Ok(bytes.get(64..64 + len).unwrap_or_default().to_vec());
        Header::read(bytes, text, Path::new("cold"))
    }

    #[test]
    fn a_header_reads_as_it_was_written() {
        assert_eq!(read(&header().write()).unwrap(), header());
    }

    #[test]
    fn a_header_of_another_format_says_so() {
        for other in [0, 2] {
            let mut bytes = header().write();
            bytes[8] = other;
            let error = read(&bytes).unwrap_err();
            let what = format!("cold has format {other}; this release reads format 1");
            assert!(
                matches!(error, Error::File(Stored::Format { .. })) && error.to_string() == what
            );
        }
    }

    #[test]
    fn every_changed_byte_of_a_header_is_found() {
        let bytes = header().write();
        // Between the checksum and the text there is nothing.
        for at in (0..52).chain(64..bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(read(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn every_changed_byte_of_a_state_is_found() {
        let state = FileState { generation: 3, first: 5, end: Some(9) };
        assert_eq!(FileState::read(&state.write()), Some(state));
        for at in 0..STATE_BYTES {
            let mut changed = state.write();
            changed[at] ^= 1;
            assert_eq!(FileState::read(&changed), None, "byte {at}");
        }
    }

    #[test]
    fn states_that_nobody_wrote_are_none() {
        for (first, end) in [(5, Some(4)), (u64::MAX, None), (0, Some(u64::MAX))] {
            assert_eq!(FileState::read(&FileState { generation: 0, first, end }.write()), None);
        }
    }

    #[test]
    fn a_record_is_one_only_in_its_slot_of_its_file() {
        let (ours, row) = (header(), [7; 100]);
        let mut record = row.to_vec();
        record.extend(ours.trailer(&row, 12));
        let mut staged = vec![1; 3];
        ours.stage(&row, 12, &mut staged);
        assert_eq!(staged[3..], record);
        assert_eq!(ours.read_record(5, &record), Some(12));
        assert_eq!(ours.read_record(4, &record), None);
        let theirs = Header::new(100, 7, "rows", 10).unwrap();
        assert_eq!(theirs.read_record(5, &record), None);
        record[99] ^= 1;
        assert_eq!(ours.read_record(5, &record), None);
    }

    #[test]
    fn long_slots_are_whole_pages_and_short_ones_waste_nothing() {
        assert_eq!(slot_bytes(44), Some(56));
        assert_eq!(slot_bytes(84 * 84 * 4), Some(28672));
        assert_eq!(slot_bytes(4096), Some(4108));
        assert_eq!(slot_bytes(u64::MAX), None);
    }

    #[test]
    fn what_no_file_could_hold_is_refused() {
        for (row_bytes, slots) in [(8, 0), (8, u64::MAX), (usize::MAX, 1), (1 << 40, 1 << 40)] {
            let refused = Header::new(row_bytes, slots, "", 0);
            assert!(matches!(refused, Err(Error::Argument(_))), "{row_bytes} {slots}");
        }
    }
}

//! One file of a journal.
//!
//! ```text
//! header   magic: 8 bytes, version: u32, number of the first record: u64, crc32c of these 20: u32
//! record   length + 1: u32, checksum: u32, that many bytes
//! mark     2^31 + 9: u32, checksum: u32, number: u64; all records before that number were durable
//!          when the mark was written
//! ```
//!
//! Numbers are little-endian. A checksum is the CRC-32C of the bytes, then of the record's number (u64),
//! which for a mark is 2^64 - 1, then of the first field: a record that is not where it belongs is found.
//! The first field is never 0, so that zeros, which file systems leave after a crash, are no record.

use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crc32c::{crc32c, crc32c_append};

use crate::Error;
use crate::files::FileError;

/// The format that this release writes and reads.
pub(super) const VERSION: u32 = 1;
/// Bytes of a segment's header.
pub(super) const HEADER_BYTES: usize = 24;
/// Bytes before a record's own.
pub(super) const HEAD_BYTES: usize = 8;
/// Bytes of the longest record.
pub(super) const MAX_RECORD: usize = 1 << 30;

/// Bytes that are read at once, unless a record has more.
const BUFFER: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"EchoJrnl";
const MARK: u32 = 1 << 31;
const MARK_BYTES: usize = 16;

/// The name of a segment.
pub(super) fn name(first: u64) -> String {
    format!("journal-{first:020}.log")
}

/// The name of a segment that is being begun.
pub(super) fn part_name(first: u64) -> String {
    format!("{}.part", name(first))
}

/// The first record of a segment; `None` for other names.
pub(super) fn read_name(file: &str) -> Option<u64> {
    let first = file.strip_prefix("journal-")?.strip_suffix(".log")?.parse().ok()?;
    (name(first) == file).then_some(first)
}

/// The header of a segment.
pub(super) fn header(first: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (fields, checksum) = bytes.split_at_mut(20);
    let (magic, rest) = fields.split_at_mut(8);
    let (version, number) = rest.split_at_mut(4);
    magic.copy_from_slice(&MAGIC);
    version.copy_from_slice(&VERSION.to_le_bytes());
    number.copy_from_slice(&first.to_le_bytes());
    checksum.copy_from_slice(&crc32c(fields).to_le_bytes());
    bytes
}

/// Compares a header with the one that the segment's name asks for.
fn check_header(found: &[u8; HEADER_BYTES], first: u64, path: &Path) -> Result<(), Error> {
    let expected = header(first);
    if *found == expected {
        return Ok(());
    }
    let version = found.get(8..12).and_then(|bytes| bytes.try_into().ok());
    let version = version.map_or(0, u32::from_le_bytes);
    if found.starts_with(&MAGIC) && version != VERSION {
        return Err(Error::Format { path: path.to_owned(), expected: VERSION, got: version });
    }
    let show = |bytes: &[u8; HEADER_BYTES]| bytes.escape_ascii().to_string();
    Err(Error::damaged(path, 0, "the header", show(&expected), show(found)))
}

/// The head of a record, but for what its number adds to the checksum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unnumbered {
    word: u32,
    crc: u32,
}

impl Unnumbered {
    /// Of a payload that is at most [`MAX_RECORD`] bytes long.
    pub(super) fn of(payload: &[u8]) -> Self {
        Self::with_crc(payload.len(), crc32c(payload))
    }

    /// Of a payload of which this is known.
    pub(super) fn with_crc(len: usize, crc: u32) -> Self {
        let word = u32::try_from(len).map_or(0, |len| len + 1);
        Self { word, crc }
    }

    /// The head of record `sequence`.
    pub(super) fn number(self, sequence: u64) -> [u8; HEAD_BYTES] {
        let crc = finish(self.crc, sequence, self.word);
        let [a, b, c, d] = self.word.to_le_bytes();
        let [e, f, g, h] = crc.to_le_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

fn finish(crc: u32, sequence: u64, word: u32) -> u32 {
    let mut bytes = [0; 12];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&sequence.to_le_bytes());
    second.copy_from_slice(&word.to_le_bytes());
    crc32c_append(crc, &bytes)
}

/// Says that all records before `durable` are.
pub(super) fn mark(durable: u64) -> [u8; MARK_BYTES] {
    let payload = durable.to_le_bytes();
    let word = MARK | 9;
    let head = Unnumbered { word, crc: crc32c(&payload) }.number(u64::MAX);
    let mut bytes = [0; MARK_BYTES];
    let (first, second) = bytes.split_at_mut(HEAD_BYTES);
    first.copy_from_slice(&head);
    second.copy_from_slice(&payload);
    bytes
}

/// The greatest number that any whole mark in `bytes` says, wherever it stands.
fn find_marks(bytes: &[u8]) -> Option<u64> {
    let word = (MARK | 9).to_le_bytes();
    let marks = bytes.windows(MARK_BYTES).filter(|window| window.starts_with(&word));
    marks.filter_map(read_mark).max()
}

fn read_mark(bytes: &[u8]) -> Option<u64> {
    let durable = u64::from_le_bytes(*bytes.last_chunk()?);
    (bytes == mark(durable)).then_some(durable)
}

/// What comes next in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A record, whose checksum is right.
    Record,
    /// The end of the file, behind a record.
    End,
    /// Something else, until the end of the file.
    Torn(String),
}

/// Reads a segment record by record.
#[derive(Debug)]
pub(super) struct Scan<R> {
    file: R,
    path: PathBuf,
    /// Bytes of the file that count.
    len: u64,
    /// Bytes of the file that were read and were right.
    offset: u64,
    /// The number of the next record.
    next: u64,
    /// What was read of the file in one go: many records, if they are small.
    buffer: Vec<u8>,
    /// Where in the buffer `offset` is.
    start: usize,
    /// Where the bytes end that are of the file.
    end: usize,
    payload: Range<usize>,
}

impl<R: Read> Scan<R> {
    /// Begins with the header of the segment whose first record is `first`.
    pub(super) fn begin(mut file: R, path: PathBuf, len: u64, first: u64) -> Result<Self, Error> {
        let mut found = [0; HEADER_BYTES];
        if len < HEADER_BYTES as u64 {
            let what = format!("the header has {HEADER_BYTES} bytes, and the file {len}");
            return Err(Error::Damaged { path, offset: 0, what });
        }
        file.read_exact(&mut found).map_err(|source| FileError::new("read", &path, source))?;
        check_header(&found, first, &path)?;
        let offset = HEADER_BYTES as u64;
        let (buffer, payload) = (Vec::new(), 0..0);
        Ok(Self { file, path, len, offset, next: first, buffer, start: 0, end: 0, payload })
    }

    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Where the next record is.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes of the record that [`Scan::step`] has found.
    pub(super) fn payload(&self) -> &[u8] {
        self.buffer.get(self.payload.clone()).unwrap_or_default()
    }

    /// Goes to the next record.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        loop {
            let left = self.len.saturating_sub(self.offset);
            if left == 0 {
                return Ok(Step::End);
            }
            if left < HEAD_BYTES as u64 {
                return Ok(Step::Torn(format!("{left} bytes are no whole record")));
            }
            let [a, b, c, d, e, f, g, h] = match self.have(HEAD_BYTES)?.first_chunk() {
                Some(head) => *head,
                None => return Err(self.shorter()),
            };
            let word = u32::from_le_bytes([a, b, c, d]);
            let expected = u32::from_le_bytes([e, f, g, h]);
            let left = left.saturating_sub(HEAD_BYTES as u64);
            let is_mark = word & MARK != 0;
            let len = match (word & !MARK).checked_sub(1) {
                None => return Ok(Step::Torn("zeros are no record".into())),
                Some(len) if u64::from(len) > left => {
                    let what = format!("a record of {len} bytes, of which {left} are there");
                    return Ok(Step::Torn(what));
                }
                Some(len) => len as usize,
            };
            if len > MAX_RECORD || (is_mark && len != 8) {
                return Ok(Step::Torn(format!("a record of {len} bytes, which was never written")));
            }
            let number = if is_mark { u64::MAX } else { self.next };
            let record = self.have(HEAD_BYTES.saturating_add(len))?;
            let got = finish(crc32c(record.get(HEAD_BYTES..).unwrap_or_default()), number, word);
            if got != expected {
                let what = format!("the checksum should be {expected:08x}, and is {got:08x}");
                return Ok(Step::Torn(what));
            }
            let begin = self.start.saturating_add(HEAD_BYTES);
            self.start = begin.saturating_add(len);
            self.payload = begin..self.start;
            self.offset = self.offset.saturating_add((HEAD_BYTES + len) as u64);
            if !is_mark {
                self.next = self.next.saturating_add(1);
                return Ok(Step::Record);
            }
        }
    }

    /// The next this many bytes, which the file has: they are of it, and not passed by.
    fn have(&mut self, bytes: usize) -> Result<&[u8], Error> {
        if self.end.saturating_sub(self.start) < bytes {
            self.fetch(bytes)?;
        }
        let end = self.start.saturating_add(bytes);
        Ok(self.buffer.get(self.start..end).unwrap_or_default())
    }

    /// Reads until this many bytes are there, and as many more as there is room for. What was passed by goes.
    #[cold]
    fn fetch(&mut self, bytes: usize) -> Result<(), Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        self.payload = 0..0;
        let left = self.len.saturating_sub(self.offset);
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        if self.buffer.len() < bytes.max(BUFFER.min(most)) {
            self.buffer.resize(bytes.max(BUFFER.min(most)), 0);
        }
        while self.end < bytes {
            // Not behind the bytes that count.
            let room = self.end..self.buffer.len().min(most);
            let room = self.buffer.get_mut(room).unwrap_or_default();
            match self.file.read(room) {
                Ok(0) => return Err(self.shorter()),
                Ok(len) => self.end = self.end.saturating_add(len),
                Err(source) if source.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(FileError::new("read", &self.path, source).into()),
            }
        }
        Ok(())
    }

    /// The next record is not of this journal.
    pub(super) fn damaged(&self, what: impl std::fmt::Display) -> Error {
        let what = format!("record {}: {what}", self.next);
        Error::Damaged { path: self.path.clone(), offset: self.offset, what }
    }

    fn shorter(&self) -> Error {
        self.damaged("the file became shorter while it was read")
    }
}

/// Whether bytes behind a record that is wrong prove that it was durable: then they are no end that a
/// crash left, but damage.
pub(super) fn proves_damage(tail: &[u8], sequence: u64) -> bool {
    find_marks(tail).is_some_and(|durable| durable > sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = header(5).to_vec();
        for (sequence, record) in (5..).zip(records) {
            bytes.extend(Unnumbered::of(record).number(sequence));
            bytes.extend(*record);
        }
        bytes
    }

    fn begin(bytes: &[u8]) -> Scan<&[u8]> {
        Scan::begin(bytes, "segment".into(), bytes.len() as u64, 5).unwrap()
    }

    #[test]
    fn zeros_behind_the_records_are_no_record() {
        let mut bytes = scan(&[b"one", b""]);
        bytes.extend([0; 100]);
        let mut scan = begin(&bytes);
        assert_eq!(scan.step().unwrap(), Step::Record);
        assert_eq!(scan.payload(), b"one");
        assert_eq!(scan.step().unwrap(), Step::Record);
        assert_eq!(scan.payload(), b"");
        assert!(matches!(scan.step().unwrap(), Step::Torn(_)));
        assert_eq!(scan.next(), 7);
    }

    #[test]
    fn a_record_in_the_place_of_another_is_found() {
        let bytes = scan(&[b"abc", b"def"]);
        let mut swapped = bytes.clone();
        let (first, second) = swapped[HEADER_BYTES..].split_at_mut(HEAD_BYTES + 3);
        first.swap_with_slice(second);
        assert!(matches!(begin(&swapped).step().unwrap(), Step::Torn(_)));
    }

    #[test]
    fn records_are_whole_wherever_a_read_ends() {
        let sizes = [0, 1, BUFFER - 40, 3, BUFFER, 3 * BUFFER, 5, BUFFER - 1, 0, 70];
        let records: Vec<Vec<u8>> =
            (0_u8..).zip(sizes).map(|(number, size)| vec![number; size]).collect();
        let records: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
        let bytes = scan(&records);
        let mut scan = begin(&bytes);
        for record in &records {
            assert_eq!(scan.step().unwrap(), Step::Record);
            assert!(scan.payload() == *record, "{} bytes", record.len());
        }
        assert_eq!((scan.step().unwrap(), scan.offset()), (Step::End, bytes.len() as u64));
        let cut = &bytes[..bytes.len() - 1];
        let mut shorter = Scan::begin(cut, "segment".into(), bytes.len() as u64, 5).unwrap();
        let wrong = (0..).find_map(|_| shorter.step().err()).unwrap();
        assert!(wrong.to_string().contains("became shorter"), "{wrong}");
    }

    #[test]
    fn marks_are_no_records_and_are_found_wherever_they_stand() {
        let mut bytes = scan(&[b"abc"]);
        bytes.extend(mark(6));
        let mut scan = begin(&bytes);
        assert_eq!(scan.step().unwrap(), Step::Record);
        assert_eq!(scan.step().unwrap(), Step::End);
        assert!(proves_damage(&bytes[3..], 5));
        assert!(!proves_damage(&bytes[3..], 6), "the mark says nothing of record 6");
        assert!(!proves_damage(&bytes[..bytes.len() - 1], 5));
    }
}

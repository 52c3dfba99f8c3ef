//! A cold file: made, opened, closed.

use std::hash::{BuildHasher as _, Hasher as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use echoic_memory::sync::{Mutex, MutexGuard};

use super::format::{FileState, HEADER_BYTES, Header, STATE_BYTES};
use super::locked::LockedFile;
use super::readers::{Readers, Reading};
use super::recover;
use echoic_replay::Error as Stored;

use crate::error::Error;
use crate::os;

/// What a cold file is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a record.
    pub row_bytes: usize,
    /// How many records there are at most.
    pub slots: u64,
    /// What the bytes of a record mean, and whatever else is to be found with them.
    pub text: String,
}

/// A file with the last records of equal size, by position.
///
/// ```
/// use echoic_buffers::cold::{ColdFile, Geometry, Wanted};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("cold.bin");
/// let geometry = Geometry { row_bytes: 4, slots: 2, text: "four letters".into() };
/// let cold = ColdFile::create(&path, &geometry)?;
/// cold.append([b"zero", b"one ", b"two "].map(|row| &row[..]).into_iter())?;
///
/// let mut row = [0; 4];
/// let reading = cold.reading();
/// assert_eq!((reading.oldest(), cold.end()), (1, 3), "there are two slots");
/// cold.read(&reading, &mut [Wanted { position: 2, into: [&mut row[..]].into_iter().collect() }])?;
/// assert_eq!(&row, b"two ");
/// drop(reading);
///
/// cold.close(true)?;
/// assert_eq!(ColdFile::open(&path)?.end(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ColdFile {
    pub(super) file: LockedFile,
    pub(super) header: Header,
    pub(super) readers: Readers,
    /// Records before this one were cleared.
    first: AtomicU64,
    /// The position after the newest record.
    pub(super) end: AtomicU64,
    /// Its holder may write; readers do not take it. What a panic leaves half written does not count, and is written
    /// again.
    writing: Mutex<Writing>,
}

/// What only the one who writes needs.
#[derive(Debug)]
pub(super) struct Writing {
    /// How many states were written.
    generation: u64,
    closed: bool,
    /// Room for short rows, or for what stands between long ones.
    pub(super) staged: Vec<u8>,
}

impl ColdFile {
    /// Makes a file.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] when there is one, or whatever keeps it from being made.
    pub fn create(path: &Path, geometry: &Geometry) -> Result<Self, Error> {
        let header = new_header(geometry)?;
        let file = LockedFile::create(path)?;
        Self::begin(file, header).map_err(|(file, error)| {
            // It has nothing in it, and was not there before.
            let _ = file.remove();
            error
        })
    }

    /// Makes a file, in the place of one of ours, or an empty one, that may be there.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file there is not ours, which then stays as it is, or is in use; or whatever keeps it
    /// from being made.
    pub fn overwrite(path: &Path, geometry: &Geometry) -> Result<Self, Error> {
        let header = new_header(geometry)?;
        let file = match LockedFile::open(path) {
            Err(Error::File(Stored::File(error))) if error.is_missing() => {
                return Self::create(path, geometry);
            }
            opened => opened?,
        };
        if file.len()? > 0 {
            match read_header(&file) {
                // One of ours, whatever its state.
                Ok(_) | Err(Error::File(Stored::Damaged { .. } | Stored::Format { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let cut = file.file().set_len(0);
        cut.map_err(|source| Error::io("empty", file.path(), source))?;
        Self::begin(file, header).map_err(|(_, error)| error)
    }

    fn begin(file: LockedFile, header: Header) -> Result<Self, (LockedFile, Error)> {
        let path = file.path().to_owned();
        // Both states are there before the header is: what has a header has a state.
        let written =
            header.state_offsets().iter().zip(0..).try_for_each(|(offset, generation)| {
                let state = FileState { generation, first: 0, end: None };
                file.file().write_all_at(&state.write(), *offset)
            });
        match written.and_then(|()| file.file().write_all_at(&header.write(), 0)) {
            Ok(()) => {
                Ok(Self::new(file, header, FileState { generation: 1, first: 0, end: None }, 0, 0))
            }
            Err(source) => Err((file, Error::io("write", &path, source))),
        }
    }

    fn new(file: LockedFile, header: Header, state: FileState, oldest: u64, end: u64) -> Self {
        os::expect_random(file.file());
        let readers = Readers::default();
        readers.raise(oldest);
        Self {
            file,
            header,
            readers,
            first: AtomicU64::new(state.first.max(oldest)),
            end: AtomicU64::new(end),
            writing: Mutex::new(Writing {
                generation: state.generation,
                closed: false,
                staged: Vec::new(),
            }),
        }
    }

    /// Opens a file that is there, to go on with it.
    ///
    /// One that was not closed is read as a whole, and has all records that are whole, up to the first
    /// gap. After the end of a process there is none; after a loss of power the longest part without
    /// one is kept.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it is no file that can be opened, which then stays as it is, or is in use; or what the
    /// system says.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = LockedFile::open(path)?;
        let header = read_header(&file)?;
        let state = read_state(&file, &header)?;
        let len = file.len()?;
        let (oldest, end) = match state.end {
            Some(end) => {
                let oldest = state.first.max(end.saturating_sub(header.slots));
                recover::check_length(&file, &header, oldest, end, len)?;
                (oldest, end)
            }
            None => recover::keep_longest_run(&file, &header, state.first, len)?,
        };
        let cold = Self::new(file, header, state, oldest, end);
        // From now on it is one that was not closed.
        let mut writing = cold.writing.lock();
        cold.write_state(&mut writing, None)?;
        cold.sync()?;
        drop(writing);
        Ok(cold)
    }

    /// Sees to it that the file was made for this.
    ///
    /// # Errors
    ///
    /// [`Error::Differs`], with the first difference.
    pub fn check(&self, geometry: &Geometry) -> Result<(), Error> {
        let ours = &self.header;
        let (path, bytes, slots) = (self.path(), geometry.row_bytes, geometry.slots);
        if geometry.text != ours.text {
            return Err(Error::differs(path, "records of", &geometry.text, &ours.text));
        }
        if bytes != ours.row_bytes {
            return Err(Error::differs(path, "bytes of a record", bytes, ours.row_bytes));
        }
        if slots != ours.slots {
            return Err(Error::differs(path, "number of records", slots, ours.slots));
        }
        Ok(())
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What was said of the records when the file was made.
    pub fn text(&self) -> &str {
        &self.header.text
    }

    /// Bytes of a record.
    pub fn row_bytes(&self) -> usize {
        self.header.row_bytes
    }

    /// How many records there are at most.
    pub fn slots(&self) -> u64 {
        self.header.slots
    }

    /// The oldest record that is there and was not cleared.
    pub fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire).max(self.readers.floor())
    }

    /// The position after the newest record.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Keeps what can be read from being overwritten. Appending waits until it is dropped.
    pub fn reading(&self) -> Reading<'_> {
        self.readers.enter()
    }

    /// Takes the room for all records now, so that the disk can't be full later.
    ///
    /// # Errors
    ///
    /// When there is no room, or the file system can't say so.
    pub fn preallocate(&self) -> Result<(), Error> {
        let failed = |source: std::io::Error| {
            Error::io("take the room for all records of", self.path(), source)
        };
        let bytes = self.header.file_bytes().unwrap_or(u64::MAX);
        let taken =
            rustix::fs::fallocate(self.file.file(), rustix::fs::FallocateFlags::empty(), 0, bytes);
        taken.map_err(|source| failed(source.into()))
    }

    /// Forgets all records before `first`, also after a crash. The next one is appended there, or behind
    /// those that are left.
    ///
    /// # Errors
    ///
    /// When the file is closed or can't be written.
    pub fn clear(&self, first: u64) -> Result<(), Error> {
        let mut writing = self.open_writing()?;
        self.first.fetch_max(first, Ordering::AcqRel);
        self.end.fetch_max(first, Ordering::AcqRel);
        self.write_state(&mut writing, None)
    }

    /// Makes what was appended survive a loss of power.
    ///
    /// # Errors
    ///
    /// When the file is closed or can't be written.
    pub fn flush(&self) -> Result<(), Error> {
        let _writing = self.open_writing()?;
        self.sync()
    }

    /// Ends the use of the file, and removes it, unless it is to be kept. Closing again does nothing.
    ///
    /// # Errors
    ///
    /// When the file can't be written, or removed. It is closed in any case.
    pub fn close(&self, keep: bool) -> Result<(), Error> {
        let mut writing = self.writing.lock();
        if std::mem::replace(&mut writing.closed, true) || !self.file.is_ours() {
            return Ok(());
        }
        let done = if keep {
            // The records are there before a state says so.
            let end = Some(self.end());
            self.sync()
                .and_then(|()| self.write_state(&mut writing, end))
                .and_then(|()| self.sync())
        } else {
            self.file.remove()
        };
        self.file.unlock();
        done
    }

    /// Whether the file was closed.
    pub fn is_closed(&self) -> bool {
        self.writing.lock().closed
    }

    pub(super) fn open_writing(&self) -> Result<MutexGuard<'_, Writing>, Error> {
        let writing = self.writing.lock();
        // A forked child would write over the records of its parent.
        if writing.closed || !self.file.is_ours() { Err(Error::Closed) } else { Ok(writing) }
    }

    fn write_state(&self, writing: &mut Writing, end: Option<u64>) -> Result<(), Error> {
        let generation = writing.generation + 1;
        let state = FileState { generation, first: self.first.load(Ordering::Acquire), end };
        let [even, odd] = self.header.state_offsets();
        let offset = if generation.is_multiple_of(2) { even } else { odd };
        let written = self.file.file().write_all_at(&state.write(), offset);
        written.map_err(|source| Error::io("write", self.path(), source))?;
        writing.generation = generation;
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        let failed = |source| Error::io("sync", self.path(), source);
        self.file.file().sync_data().map_err(failed)?;
        // The file's name, too.
        match self.path().parent() {
            Some(folder) => {
                std::fs::File::open(folder).and_then(|it| it.sync_all()).map_err(failed)
            }
            None => Ok(()),
        }
    }
}

fn new_header(geometry: &Geometry) -> Result<Header, Error> {
    // A hasher of the standard library begins with random keys.
    let identity = std::hash::RandomState::new().build_hasher().finish();
    Header::new(geometry.row_bytes, geometry.slots, &geometry.text, identity)
}

fn read_header(file: &LockedFile) -> Result<Header, Error> {
    let failed = |source| Error::io("read", file.path(), source);
    let mut bytes = [0; HEADER_BYTES];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.file().read_at(rest, filled as u64).map_err(failed)? {
            0 => break,
            read => filled += read,
        }
    }
    let text = |len| {
        let mut text = vec![0; len];
        match file.file().read_exact_at(&mut text, HEADER_BYTES as u64) {
            Ok(()) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let what = format!("the file ends before its text of {len} bytes does");
                Err(Error::damaged(file.path(), HEADER_BYTES as u64, what))
            }
            Err(error) => Err(failed(error)),
        }
    };
    Header::read(bytes.get(..filled).unwrap_or_default(), text, file.path())
}

fn read_state(file: &LockedFile, header: &Header) -> Result<FileState, Error> {
    let offsets = header.state_offsets();
    let mut states = Vec::new();
    for offset in offsets {
        let mut bytes = [0; STATE_BYTES];
        match file.file().read_exact_at(&mut bytes, offset) {
            Ok(()) => states.extend(FileState::read(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(source) => return Err(Error::io("read", file.path(), source)),
        }
    }
    let [offset, _] = offsets;
    let newest = states.into_iter().max_by_key(|state| state.generation);
    newest.ok_or_else(|| Error::damaged(file.path(), offset, "neither state is whole"))
}

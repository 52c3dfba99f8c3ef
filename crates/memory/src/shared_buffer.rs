//! Memory that one process writes and others read.
//!
//! A [`SharedBuffer`] is written through `&mut` and read through `&`. One that was made [shared](SharedBuffer::shared)
//! has a file, which other processes map as a [`SharedBufferView`]: to read, and never to write.
//!
//! Pages are there from their first use on, or before: [`SharedBuffer::populate`] has the system give all of them, and
//! [`Pages`] does so from another thread, while the buffer is used.
//!
//! # Invariants
//!
//! 1. Within a process the bytes of a shared buffer change through `&mut` only.
//! 2. A view gives its address and nothing else: a reader learns from the writer for how long the bytes stay as they are.
//!
//! # Limitations
//!
//! A shared buffer may be written again while other processes have views of it. They are trusted to read only while the
//! writer allows it. A process that does not can harm only itself.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::block::AllocError;
use crate::os::Mapping;
use crate::region::Region;

/// Shared buffers of other processes have whole pages.
const PAGE: usize = 4096;
/// How many bytes of pages are asked for at once: some ten milliseconds.
const PIECE: usize = 16 << 20;

/// What tells the shared buffers of a process apart.
static BUFFERS: AtomicU64 = AtomicU64::new(0);

/// The side that writes.
///
/// ```
/// use echoic_memory::shared_buffer::SharedBuffer;
///
/// let mut buffer = SharedBuffer::new(3)?;
/// buffer[..3].copy_from_slice(&[1, 2, 3]);
/// assert_eq!(&buffer[..3], [1, 2, 3]);
/// # Ok::<(), echoic_memory::AllocError>(())
/// ```
#[derive(Debug)]
pub struct SharedBuffer {
    pages: Pages,
    id: u64,
    is_zeroed: bool,
}

/// The pages of a shared buffer, to be given by the system ahead of their use.
#[derive(Debug, Clone)]
pub struct Pages(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    region: Region,
    /// Where those pages end that are there.
    next: AtomicUsize,
}

impl Pages {
    /// Has the system give the next piece: whether there was one.
    ///
    /// # Errors
    ///
    /// [`AllocError::Refused`] when there are too few pages.
    pub fn populate_next(&self) -> Result<bool, AllocError> {
        let Memory { region, next } = &*self.0;
        let start = next.load(Ordering::Acquire);
        if start >= region.len() {
            return Ok(false);
        }
        let end = region.len().min(start + PIECE);
        // Two threads may ask for the same piece: what counts as there must not depend on whether another one gets it.
        region.populate(start..end)?;
        next.fetch_max(end, Ordering::AcqRel);
        Ok(true)
    }

    /// Whether the buffer is still there.
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl SharedBuffer {
    /// At least `len` bytes for this process, which are zeros.
    pub fn new(len: usize) -> Result<Self, AllocError> {
        Region::untouched(len).map(Self::of)
    }

    /// At least `len` bytes that other processes can map, which are zeros.
    pub fn shared(len: usize) -> Result<Self, AllocError> {
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.ok_or(AllocError::Refused { bytes: usize::MAX })?;
        Mapping::guarded(len).map(Region::Shared).map(Self::of)
    }

    fn of(region: Region) -> Self {
        let pages = Pages(Arc::new(Memory { region, next: AtomicUsize::new(0) }));
        Self { pages, id: BUFFERS.fetch_add(1, Ordering::Relaxed), is_zeroed: true }
    }

    /// Has the system give all pages that are not there yet.
    ///
    /// # Errors
    ///
    /// [`AllocError::Refused`] when there are too few.
    pub fn populate(&self) -> Result<(), AllocError> {
        while self.pages.populate_next()? {}
        Ok(())
    }

    /// Has the system give the pages of these bytes, unless they are there.
    ///
    /// # Errors
    ///
    /// [`AllocError::Refused`] when there are too few.
    pub fn populate_range(&self, range: Range<usize>) -> Result<(), AllocError> {
        let Memory { region, next } = &*self.pages.0;
        if range.end <= next.load(Ordering::Acquire) {
            return Ok(());
        }
        region.populate(range)
    }

    /// Whether all pages are there.
    pub fn is_populated(&self) -> bool {
        self.pages.0.next.load(Ordering::Acquire) >= self.len()
    }

    /// To have the system give its pages from another thread.
    pub fn pages(&self) -> Pages {
        self.pages.clone()
    }

    /// Whether nothing was written since it was made.
    pub fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    fn region(&self) -> &Region {
        &self.pages.0.region
    }

    /// Which buffer of this process it is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What to hand to other processes, if they can map it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.region().file()
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a region has this many initialised bytes, and they change through `&mut` only.
        unsafe { std::slice::from_raw_parts(self.region().pointer().as_ptr(), self.region().len()) }
    }
}

impl DerefMut for SharedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.is_zeroed = false;
        let region = self.region();
        // SAFETY: as in `deref`; nothing else in this process has them, since `Pages` never touches bytes, and no
        // other process can write them.
        unsafe { std::slice::from_raw_parts_mut(region.pointer().as_ptr(), region.len()) }
    }
}

/// The side that reads.
#[derive(Debug)]
pub struct SharedBufferView {
    mapping: Mapping,
}

impl SharedBufferView {
    /// Maps the buffer that another process made.
    ///
    /// # Errors
    ///
    /// An [`io::Error`] when it can't be mapped, could change its size, or has another one.
    pub fn attach(file: OwnedFd, len: usize) -> io::Result<Self> {
        Mapping::open_to_read(file, len).map(|mapping| Self { mapping })
    }

    /// Where the bytes start.
    pub fn pointer(&self) -> NonNull<u8> {
        self.mapping.pointer()
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Never true: the smallest buffer is one page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, miri, echoic_portable))))]
mod tests {
    use super::*;

    #[test]
    fn a_view_shows_what_is_written() {
        let mut buffer = SharedBuffer::shared(5000).unwrap();
        let file = buffer.file().unwrap().try_clone_to_owned().unwrap();
        let view = SharedBufferView::attach(file, buffer.len()).unwrap();
        buffer[4999] = 7;
        // SAFETY: inside the view.
        let last = unsafe { view.pointer().add(4999) };
        // SAFETY: no thread writes now.
        assert_eq!((unsafe { last.read() }, view.len()), (7, 8192));
    }

    #[test]
    fn pages_that_come_before_or_while_bytes_are_written_change_none() {
        for mut buffer in [SharedBuffer::new(2 * PIECE + 5), SharedBuffer::shared(2 * PIECE + 5)]
            .map(Result::unwrap)
        {
            assert!(buffer.is_zeroed());
            let pages = buffer.pages();
            buffer.populate_range(PIECE..PIECE + 1).unwrap();
            buffer[PIECE] = 7;
            let other = std::thread::spawn(move || {
                while pages.populate_next().unwrap() {}
                pages
            });
            buffer[PIECE - 1] = 6;
            buffer.populate().unwrap();
            let pages = other.join().unwrap();
            assert!(!buffer.is_zeroed() && buffer[PIECE - 1..=PIECE] == [6, 7]);
            assert!(buffer[PIECE + 1..].iter().all(|byte| *byte == 0));
            assert!(pages.is_wanted() && !pages.populate_next().unwrap());
            drop(buffer);
            assert!(!pages.is_wanted());
        }
    }

    #[test]
    fn sheets_have_different_names_and_those_of_one_process_no_file() {
        let (one, other) = (SharedBuffer::new(1).unwrap(), SharedBuffer::new(1).unwrap());
        assert!(one.id() != other.id() && one.file().is_none());
        assert!(SharedBuffer::shared(usize::MAX).is_err());
    }
}

//! Memory from the system: of this process alone, or shared with another. All `unsafe` of the probes is here.
//!
//! # Invariant
//!
//! 1. A [`Memory`] is `bytes` bytes at `start`, mapped for reading and writing for as long as it lives.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::Outcome;

/// Pages of the system, all zeros at first.
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    /// Takes memory of this process alone, in huge pages where the system grants them, and touches all of it.
    pub fn own(bytes: usize) -> Outcome<Self> {
        let mut memory = Self::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: by invariant 1 these pages are ours. A hint, so what it returns does not matter.
        unsafe { libc::madvise(memory.start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        memory.bytes_mut().fill(1);
        Ok(memory)
    }

    /// Maps a file, which other processes may map as well.
    pub fn shared(file: &File, bytes: usize) -> Outcome<Self> {
        Self::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd())
    }

    fn map(bytes: usize, flags: i32, file: i32) -> Outcome<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the system chooses touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let start = NonNull::new(start.cast()).ok_or("the system mapped address 0")?;
        Ok(Self { start, bytes })
    }

    /// All bytes of memory that no other process has.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by invariant 1, and whoever writes has the `&mut` of `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All bytes of memory that no other process has.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: by invariant 1, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// A number at a place of shared memory, which must be a multiple of 8.
    pub fn number(&self, place: usize) -> &AtomicU64 {
        assert!(
            place.is_multiple_of(8) && place + 8 <= self.bytes,
            "place {place} of {}",
            self.bytes
        );
        // SAFETY: the assertion keeps it inside the mapping.
        let number = unsafe { self.start.as_ptr().add(place) };
        // SAFETY: the start is that of a page, so the place is aligned; it is reached as an atomic only.
        unsafe { AtomicU64::from_ptr(number.cast()) }
    }

    /// Copies bytes to a place of shared memory.
    ///
    /// # Safety
    ///
    /// No other thread or process may read or write there meanwhile.
    pub unsafe fn put(&self, place: usize, bytes: &[u8]) {
        assert!(place + bytes.len() <= self.bytes, "place {place} of {}", self.bytes);
        // SAFETY: the assertion keeps it inside the mapping.
        let target = unsafe { self.start.as_ptr().add(place) };
        // SAFETY: by invariant 1 and the assertion; nobody else is there, says the caller.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Looks at bytes of shared memory.
    ///
    /// # Safety
    ///
    /// No other thread or process may write there while the result lives.
    pub unsafe fn look(&self, place: usize, bytes: usize) -> &[u8] {
        assert!(place + bytes <= self.bytes, "place {place} of {}", self.bytes);
        // SAFETY: the assertion keeps it inside the mapping.
        let start = unsafe { self.start.as_ptr().add(place) };
        // SAFETY: by invariant 1 and the assertion; nobody writes there, says the caller.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: by invariant 1 the mapping is ours, and all borrows of it have ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a file in memory that has no name; processes that are started inherit it.
pub fn nameless_file(bytes: usize) -> Outcome<File> {
    // SAFETY: the name ends with a zero.
    let descriptor = unsafe { libc::memfd_create(c"limits".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the system has just opened it for us.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// Takes over a file that was inherited.
///
/// # Safety
///
/// The descriptor must be open, and nobody else's.
pub unsafe fn inherited_file(descriptor: i32) -> File {
    // SAFETY: says the caller.
    unsafe { File::from_raw_fd(descriptor) }
}

/// Has the processor fetch the cache line of a byte.
#[inline]
pub fn prefetch(byte: &u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = byte;
}

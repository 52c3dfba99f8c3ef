//! Memory in an anonymous file, which other processes of this host map when handed its descriptor.
//!
//! The invariants are those of [`crate::region`]: mapped for the whole of `len` until drop, and the
//! file sealed against changes of its size before any other process can have it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use super::populate;
use crate::block::{AllocError, check_available};

/// What keeps the file as long as the mapping: without these, a process that has the descriptor could take
/// the memory away under us, and the next access would kill the process.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Mapping {
    pointer: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `Mapping` never touches its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new file of `len` zeroed bytes, every page of it there and mapped.
    pub(crate) fn new(len: usize) -> Result<Self, AllocError> {
        check_available(len)?;
        Self::make(len, libc::MAP_POPULATE, SEALS)
    }

    /// A new file of `len` zeroed bytes, whose pages are there from their first use on.
    pub(crate) fn sparse(len: usize) -> Result<Self, AllocError> {
        Self::make(len, 0, SEALS)
    }

    /// As [`Mapping::sparse`], of a file that nothing else will ever write.
    pub(crate) fn guarded(len: usize) -> Result<Self, AllocError> {
        check_available(len)?;
        let this = Self::make(len, 0, SEALS & !libc::F_SEAL_SEAL)?;
        // Only our mapping, which is there already, stays writable. A kernel that does not know this seal
        // leaves it to the others not to write.
        // SAFETY: changes our own file only.
        let _ = unsafe {
            libc::fcntl(this.file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE)
        };
        Ok(this)
    }

    fn make(len: usize, populate: libc::c_int, seals: libc::c_int) -> Result<Self, AllocError> {
        let shared = |error: io::Error| AllocError::Shared { reason: error.to_string() };
        let size = libc::off_t::try_from(len).map_err(|_| AllocError::Refused { bytes: len })?;
        // Only who is handed the descriptor has the memory: the file has no path.
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string, which the kernel copies.
        let file = unsafe { libc::memfd_create(c"echoic-ring".as_ptr(), flags) };
        check(file).map_err(shared)?;
        // SAFETY: a fresh descriptor that nothing else has.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: changes our own file only.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), size) }).map_err(shared)?;
        if populate != 0 {
            // Reserves the pages: where there are too few, this fails and not the first write.
            // SAFETY: as above.
            let reserved = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) };
            check(reserved).map_err(|_| AllocError::Refused { bytes: len })?;
        }
        // SAFETY: as above.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
            .map_err(shared)?;
        Self::map(file, len, WRITABLE, populate).map_err(shared)
    }

    /// Maps a file that another process made, after checking that it stays `len` bytes long.
    pub(crate) fn open(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_and_map(file, len, SEALS, WRITABLE, libc::MAP_POPULATE)
    }

    /// As [`Mapping::open`], to be read only.
    pub(crate) fn open_to_read(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_and_map(file, len, SEALS & !libc::F_SEAL_SEAL, libc::PROT_READ, 0)
    }

    /// As [`Mapping::open`], of a file that was made [sparse](Mapping::sparse).
    pub(crate) fn open_sparse(file: OwnedFd, len: usize) -> io::Result<Self> {
        Self::check_and_map(file, len, SEALS, WRITABLE, 0)
    }

    fn check_and_map(
        file: OwnedFd,
        len: usize,
        needed: libc::c_int,
        rights: libc::c_int,
        populate: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: asks about a descriptor that we have.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        check(seals)?;
        let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        if seals & needed != needed {
            return Err(refused("the file could change its size"));
        }
        if size_of_file(&file)? != u64::try_from(len).unwrap_or(u64::MAX) {
            return Err(refused("the file has another size"));
        }
        Self::map(file, len, rights, populate)
    }

    fn map(
        file: OwnedFd,
        len: usize,
        rights: libc::c_int,
        populate: libc::c_int,
    ) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | populate;
        // SAFETY: a new mapping, wherever the kernel likes; it replaces none.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pointer = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { pointer, len, file })
    }

    /// Has the system give the pages of these bytes now, as they are when they are there already.
    ///
    /// # Errors
    ///
    /// [`AllocError::Refused`] when there are too few.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), AllocError> {
        let refused = AllocError::Refused { bytes: range.len() };
        // SAFETY: the mapping is there until drop.
        match unsafe { populate(self.pointer, range.clone()) } {
            Ok(()) => Ok(()),
            // A kernel before 5.14: pages of the file, which the mapping gets when they are first used.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let offset = |at: usize| libc::off_t::try_from(at).map_err(|_| refused.clone());
                let (start, len) = (offset(range.start)?, offset(range.len())?);
                // SAFETY: changes our own file only.
                let reserved = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, start, len) };
                check(reserved).map_err(|_| refused)
            }
            Err(_) => Err(refused),
        }
    }

    /// Where the bytes start.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What to hand to another process.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, unmapped only here.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.len) };
    }
}

fn size_of_file(file: &OwnedFd) -> io::Result<u64> {
    let metadata = std::fs::File::from(file.try_clone()?).metadata()?;
    Ok(metadata.len())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_file_show_the_same_bytes() {
        let ours = Mapping::new(8192).unwrap();
        let theirs = Mapping::open(ours.file().try_clone_to_owned().unwrap(), 8192).unwrap();
        // SAFETY: inside the mapping; so for the next.
        let ours_last = unsafe { ours.pointer().add(8191) };
        // SAFETY: as above.
        let their_last = unsafe { theirs.pointer().add(8191) };
        // SAFETY: this test is the only one that has the file.
        unsafe { ours_last.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { their_last.read() }, 7);
    }

    #[test]
    fn a_guarded_file_is_read_by_others_and_written_by_nobody() {
        let ours = Mapping::guarded(8192).unwrap();
        let file = || ours.file().try_clone_to_owned().unwrap();
        let theirs = Mapping::open_to_read(file(), 8192).unwrap();
        // SAFETY: this test is the only one that has the file.
        unsafe { ours.pointer().write(7) };
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { theirs.pointer().read() }, 7);
        assert!(Mapping::check_and_map(file(), 8192, 0, WRITABLE, 0).is_err());
        assert!(Mapping::open_to_read(file(), 4096).is_err());
    }

    #[test]
    fn a_file_that_may_shrink_or_has_another_size_is_refused() {
        let ours = Mapping::new(4096).unwrap();
        let file = || ours.file().try_clone_to_owned().unwrap();
        assert!(Mapping::open(file(), 8192).is_err());
        // SAFETY: changes our own file only; the seals forbid it.
        assert!(unsafe { libc::ftruncate(ours.file().as_raw_fd(), 0) } < 0);
        let unsealed = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Mapping::open(unsealed.into(), 4096).is_err());
    }
}

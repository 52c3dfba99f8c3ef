//! What differs between systems: hints about a file, and reads that do not wait for the disk. Only speed depends on it.

pub use system::*;

#[cfg(all(target_os = "linux", not(echoic_portable)))]
mod system {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::num::NonZeroU64;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, Result, preadv2};

    /// Has the system expect reads from all over the place: what lies behind a record is not what comes next.
    pub fn expect_random(file: &File) {
        let _ = fadvise(file, 0, None, Advice::Random);
    }

    /// Has the system expect that all of the file is read.
    pub fn expect_sequential(file: &File) {
        let _ = fadvise(file, 0, None, Advice::Sequential);
    }

    /// Has the system fetch these bytes from the disk.
    pub fn fetch(file: &File, offset: u64, len: u64) {
        let _ = fadvise(file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    /// Reads some bytes, if they are in memory; `None` when they are not, or the file system can't tell.
    pub fn read_fetched(
        file: &File,
        pieces: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<Option<usize>> {
        match preadv2(file, pieces, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            read => read.map(Some),
        }
    }
}

#[cfg(not(all(target_os = "linux", not(echoic_portable))))]
mod system {
    use std::fs::File;
    use std::io::IoSliceMut;

    use rustix::io::Result;

    /// Does nothing: there is no such hint.
    pub fn expect_random(_file: &File) {}

    /// Does nothing: there is no such hint.
    pub fn expect_sequential(_file: &File) {}

    /// Has the system fetch these bytes from the disk, if it can be asked to.
    pub fn fetch(file: &File, offset: u64, len: u64) {
        #[cfg(target_vendor = "apple")]
        let _ = rustix::fs::fcntl_rdadvise(file, offset, len);
        #[cfg(not(target_vendor = "apple"))]
        let _ = (file, offset, len);
    }

    /// Reads nothing: the system does not say whether bytes are in memory.
    pub fn read_fetched(
        _file: &File,
        _pieces: &mut [IoSliceMut<'_>],
        _offset: u64,
    ) -> Result<Option<usize>> {
        Ok(None)
    }
}

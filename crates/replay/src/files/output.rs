//! A file being written.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use super::FileError;

/// How many bytes are worth a thread that has the disk begin with them.
const EARLY: u64 = 16 << 20;

/// A file that only this process writes, from a known length on.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    path: PathBuf,
    len: u64,
    /// Up to where a thread has the disk begin, and that thread.
    sync_start: u64,
    early: Option<JoinHandle<io::Result<()>>>,
}

impl Output {
    pub(super) fn new(file: File, path: PathBuf, len: u64) -> Self {
        Self { file, path, len, sync_start: len, early: None }
    }

    /// Bytes written so far, and bytes that were there before.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Writes all of `bytes` behind what is there.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.write_bytes(bytes).map_err(|source| FileError::new("write", &self.path, source))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Err(error) = super::faults::step(&self.path) {
            // A write may be cut anywhere.
            self.file
                .write_all(bytes.get(..super::faults::torn(&self.path, bytes.len())).unwrap())?;
            return Err(error);
        }
        #[cfg(test)]
        super::faults::wrote(&self.path, self.len);
        self.file.write_all(bytes)
    }

    /// Cuts the file to `len` bytes, and writes on from there.
    pub(crate) fn cut(&mut self, len: u64) -> Result<(), FileError> {
        let cut = || {
            #[cfg(test)]
            super::faults::step(&self.path)?;
            if self.len > len {
                self.file.set_len(len)?;
            }
            (&self.file).seek(SeekFrom::Start(len))
        };
        cut().map_err(|source| FileError::new("cut", &self.path, source))?;
        self.len = len;
        Ok(())
    }

    /// Has the disk begin with what was written so far, if that is much, while more is written.
    pub(crate) fn begin_sync(&mut self) -> Result<(), FileError> {
        let is_busy = self.early.as_ref().is_some_and(|early| !early.is_finished());
        if self.len - self.sync_start < EARLY || is_busy {
            return Ok(());
        }
        self.join().map_err(|source| FileError::new("sync", &self.path, source))?;
        self.sync_start = self.len;
        if let Ok(file) = self.file.try_clone() {
            self.early = thread::Builder::new().spawn(move || file.sync_data()).ok();
        }
        Ok(())
    }

    /// Waits for the last [`Output::begin_sync`]. The system reports an error once: the next sync would not know of it.
    fn join(&mut self) -> io::Result<()> {
        let Some(early) = self.early.take() else { return Ok(()) };
        early.join().unwrap_or_else(|_| Err(io::Error::other("the thread that did it panicked")))
    }

    /// Makes the bytes written so far durable.
    pub(crate) fn sync(&mut self) -> Result<(), FileError> {
        let early = self.join();
        let sync = || {
            early?;
            #[cfg(test)]
            {
                super::faults::step(&self.path)?;
                if super::faults::synced(&self.path) {
                    return Ok(());
                }
            }
            self.file.sync_data()
        };
        sync().map_err(|source| FileError::new("sync", &self.path, source))
    }
}

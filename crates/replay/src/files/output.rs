//! A file being written.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::FileError;

/// A file that only this process writes, from a known length on.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Output {
    pub(super) fn new(file: File, path: PathBuf, len: u64) -> Self {
        Self { file, path, len }
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

    /// Makes the bytes written so far durable.
    pub(crate) fn sync(&self) -> Result<(), FileError> {
        let sync = || {
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

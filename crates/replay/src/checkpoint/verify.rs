//! Reading all of a checkpoint, to know that it can be read.

use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;

use super::index::{self, Location};
use super::pack;
use super::reader::Reader;
use super::section;
use crate::Error;

/// How far [`Reader::verify`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The file being read.
    pub file: &'a Path,
    /// Bytes read of all files.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

impl Reader {
    /// Reads every byte of every file, and compares all checksums. `on_progress` is called every now
    /// and then, and may end the work.
    ///
    /// # Errors
    ///
    /// What is wrong, in which file; or [`Error::Interrupted`].
    pub fn verify(
        &self,
        mut on_progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let manifest = self.manifest();
        let index = manifest.blobs.iter().map(|blobs| (&blobs.index, &index::MAGIC));
        let sections = manifest.sections.iter().map(|entry| (entry, &section::MAGIC));
        let streams: Vec<_> = sections.chain(index).collect();
        let files = streams.iter().map(|(entry, _)| &entry.file).chain(&manifest.packs);
        let total = files.fold(0_u64, |total, file| total.saturating_add(file.bytes));
        let mut before = 0_u64;
        let mut report = |file: &Path, done: u64| match on_progress(Progress { file, done, total })
        {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        };
        for (entry, magic) in streams {
            let mut reader = self.open_section(entry, magic)?;
            let path = self.dir.at(&entry.file.file);
            loop {
                let len = reader.next_bytes()?.len();
                report(&path, before.saturating_add(reader.offset()))?;
                if len == 0 {
                    break;
                }
                reader.take_bytes(len);
            }
            before = before.saturating_add(entry.file.bytes);
        }
        let mut blobs: Vec<(u128, Location)> = self.locations().to_vec();
        blobs.sort_unstable_by_key(|(_, at)| (at.pack, at.offset));
        for (number, entry) in (0..).zip(&manifest.packs) {
            let first = blobs.partition_point(|(_, at)| at.pack < number);
            let end = blobs.partition_point(|(_, at)| at.pack <= number);
            let inside = blobs.get(first..end).unwrap_or_default();
            let (file, path) = self.open_pack(number)?;
            let mut file = BufReader::with_capacity(64 << 10, file);
            let mut since = 0_u64;
            let mut done = 0_u64;
            pack::verify(&mut file, &path, entry, inside, &mut |bytes| {
                done = done.saturating_add(bytes);
                since = since.saturating_add(bytes);
                if since < 1 << 20 {
                    return Ok(());
                }
                since = 0;
                report(&path, before.saturating_add(done))
            })?;
            before = before.saturating_add(entry.bytes);
            report(&path, before)?;
        }
        Ok(())
    }
}

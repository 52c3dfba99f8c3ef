//! Writing a checkpoint.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::blocks::BlockWriter;
use super::index::{self, Index, Location};
use super::layout::{self, DirectoryStatus, INDEX, MANIFEST, MANIFEST_PART};
use super::manifest::{BlobsEntry, Checksum, FileEntry, Manifest};
use super::pack::{Head, MAX_BLOB, PackWriter};
use super::reader::Reader;
use super::root::Root;
use super::section::{SectionWriter, Sections, ended};
use crate::Error;
use crate::files::{Dir, FileError};
use crate::names::ByName;

/// Of packs that are smaller than a `1 / SMALL` of the wanted size, more than `SMALL` are merged.
const SMALL: u64 = 32;

/// How to write a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A pack that is as large is ended, and the next one begun.
    pub pack_bytes: u64,
    /// When the checkpoint is made; now, when `None`.
    pub created: Option<SystemTime>,
}

impl Default for Options {
    fn default() -> Self {
        Self { pack_bytes: 256 << 20, created: None }
    }
}

/// What a committed checkpoint consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Its directory.
    pub path: PathBuf,
    /// Its number.
    pub number: u64,
    /// Bytes of all files that were written for it.
    pub written_bytes: u64,
    /// Blobs that were written.
    pub new_blobs: u64,
    /// All blobs.
    pub blobs: u64,
}

/// The latest checkpoint before, whose blobs need not be written again.
#[derive(Debug)]
struct Base {
    reader: Reader,
    packs: Vec<BasePack>,
}

#[derive(Debug, Clone, Copy)]
struct BasePack {
    /// Mostly waste, or one of too many small ones: what is needed of it is copied.
    is_left: bool,
    /// Its position in the manifest being written.
    listed: Option<u32>,
}

/// Writes one checkpoint. See the [module](super).
///
/// Dropping it without a commit removes all that it wrote.
#[must_use = "nothing is stored before the commit"]
#[derive(Debug)]
pub struct Writer {
    root: Root,
    dir: Dir,
    manifest: Manifest,
    options: Options,
    base: Option<Base>,
    unreadable: Vec<Error>,
    sections: Sections,
    /// The pack being written: its position among those of the manifest.
    pack: Option<(u32, PackWriter)>,
    parts: u32,
    blobs: ByName<Location>,
    new_blobs: u64,
    written_bytes: u64,
    failed: bool,
    committed: bool,
}

impl Writer {
    /// Begins a checkpoint in `root`, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] while another writes, [`Error::Foreign`] when the directory has something
    /// else, [`Error::File`].
    pub fn begin(root: impl AsRef<Path>) -> Result<Self, Error> {
        Self::begin_with(root, Options::default())
    }

    /// Like [`Writer::begin`], with options.
    pub fn begin_with(root: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let root = Root::lock(root.as_ref(), true)?;
        for number in root.numbers(DirectoryStatus::Partial)? {
            root.remove_partial(number)?;
        }
        let mut unreadable: Vec<Error> =
            root.remove_old(&mut Vec::new()).err().into_iter().collect();
        let complete = root.numbers(DirectoryStatus::Complete)?;
        let base = complete.last().and_then(|number| {
            let opened = root
                .checkpoint(*number, DirectoryStatus::Complete)
                .map_err(Error::from)
                .and_then(Reader::of);
            match opened {
                Ok(reader) => Some(Base::new(reader, options.pack_bytes)),
                Err(error) => {
                    unreadable.push(error);
                    None
                }
            }
        });
        let old = root.numbers(DirectoryStatus::Old)?;
        let last = [complete.last(), old.last()].into_iter().flatten().max();
        // No number is given twice, nor that of an unfinished checkpoint.
        let number = last.map_or(1, |last| last.saturating_add(1));
        let created = options.created.unwrap_or_else(SystemTime::now);
        let created = created.duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ms = u64::try_from(created.as_millis()).unwrap_or(u64::MAX);
        let dir = root.dir.make_dir(&layout::checkpoint(number, DirectoryStatus::Partial))?;
        // By this name the next writer knows which packs are not in use, so no pack is there before it.
        root.dir.sync()?;
        Ok(Self {
            root,
            dir,
            manifest: Manifest::new(number, created_ms),
            options,
            base,
            unreadable,
            sections: Sections::default(),
            pack: None,
            parts: 0,
            blobs: ByName::default(),
            new_blobs: 0,
            written_bytes: 0,
            failed: false,
            committed: false,
        })
    }

    /// The number of this checkpoint.
    pub fn number(&self) -> u64 {
        self.manifest.number
    }

    /// The number of the checkpoint whose blobs are not written again, if there is one.
    pub fn base(&self) -> Option<u64> {
        self.base.as_ref().map(|base| base.reader.number())
    }

    /// What is wrong with checkpoints that are there: why there is no [base](Writer::base) although
    /// there are checkpoints, or why old ones can't be removed.
    pub fn unreadable(&self) -> &[Error] {
        &self.unreadable
    }

    /// Adds something to be known about the checkpoint.
    pub fn describe(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.manifest.metadata.insert(key.into(), value.into());
    }

    /// Begins a section. Several may be written at the same time.
    pub fn section(&mut self, name: &str) -> Result<SectionWriter, Error> {
        let mut sections = self.sections.lock();
        if sections.values().any(|(known, _)| known == name) {
            return Err(Error::Unfit(format!("the section {name:?} is there already")));
        }
        let number = sections.len();
        sections.insert(number, (name.into(), None));
        drop(sections);
        let file = layout::section(number);
        let output = self.dir.create(&file)?;
        SectionWriter::begin(output, name, file, number, Sections::clone(&self.sections))
    }

    /// Writes a whole section.
    ///
    /// # Errors
    ///
    /// As [`Writer::section`] and [`SectionWriter::finish`], or what `fill` returned.
    pub fn put_section(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut SectionWriter) -> io::Result<()>,
    ) -> Result<(), Error> {
        let mut section = self.section(name)?;
        // After a write that went wrong, `finish` knows no more than that.
        fill(&mut section).map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => FileError::new("write", Path::new(name), error).into(),
        })?;
        section.finish()?;
        Ok(())
    }

    /// Refers to a blob that this checkpoint or the [base](Writer::base) has. `false` when neither has
    /// it, so that it must be given by [`Writer::blob`].
    pub fn refer(&mut self, id: u128) -> Result<bool, Error> {
        self.check()?;
        if self.blobs.contains_key(&id) {
            return Ok(true);
        }
        let Some(base) = &mut self.base else { return Ok(false) };
        let Some(at) = base.reader.location(id) else { return Ok(false) };
        if let Some(here) = base.refer(at, &mut self.manifest.packs) {
            self.blobs.insert(id, here);
            return Ok(true);
        }
        // What is damaged there may be right here.
        let Ok(bytes) = base.reader.blob(id) else { return Ok(false) };
        self.write_blob(Head { id, len: at.len, crc: at.crc }, &bytes)?;
        Ok(true)
    }

    /// Adds a blob. It is not written if this checkpoint or the [base](Writer::base) has it. Returns
    /// whether it was written.
    ///
    /// # Errors
    ///
    /// [`Error::File`], or [`Error::Unfit`] when the id stands for other bytes, the blob is too large, or an
    /// earlier error ended the work.
    pub fn blob(&mut self, id: u128, bytes: &[u8]) -> Result<bool, Error> {
        self.check()?;
        let head = Head::of(id, bytes);
        if head.len > MAX_BLOB {
            return Err(Error::too_large("bytes of a blob", MAX_BLOB, head.len));
        }
        if let Some(known) = self.blobs.get(&id) {
            compare(known, head, self.dir.path())?;
            return Ok(false);
        }
        if let Some(base) = &mut self.base
            && let Some(at) = base.reader.location(id)
        {
            compare(&at, head, base.reader.path())?;
            if let Some(here) = base.refer(at, &mut self.manifest.packs) {
                self.blobs.insert(id, here);
                return Ok(false);
            }
        }
        self.write_blob(head, bytes)?;
        Ok(true)
    }

    fn check(&self) -> Result<(), Error> {
        if self.failed { Err(ended()) } else { Ok(()) }
    }

    fn write_blob(&mut self, head: Head, bytes: &[u8]) -> Result<(), Error> {
        // Should anything go wrong, the pack is not what its writer thinks.
        self.failed = true;
        let (pack, writer) = match &mut self.pack {
            Some(open) => open,
            none => {
                let name = layout::pack(self.manifest.number, self.parts);
                let writer = PackWriter::begin(self.root.packs.create(&name)?, name)?;
                self.parts += 1;
                // Replaced when the pack is complete.
                let entry = FileEntry { file: String::new(), bytes: 0, crc32c: Checksum(0) };
                none.insert((list_pack(&mut self.manifest.packs, entry), writer))
            }
        };
        let offset = writer.write(head, bytes)?;
        let at = Location { pack: *pack, crc: head.crc, offset, len: head.len };
        if writer.len() >= self.options.pack_bytes {
            self.finish_pack()?;
        }
        self.blobs.insert(head.id, at);
        self.new_blobs += 1;
        self.failed = false;
        Ok(())
    }

    fn finish_pack(&mut self) -> Result<(), Error> {
        let Some((number, writer)) = self.pack.take() else { return Ok(()) };
        let entry = writer.finish()?;
        self.written_bytes += entry.bytes;
        if let Some(listed) = self.manifest.packs.get_mut(number as usize) {
            *listed = entry;
        }
        Ok(())
    }

    /// Makes the checkpoint complete, and durable.
    ///
    /// # Errors
    ///
    /// [`Error::File`], or [`Error::Unfit`] when a section is not finished. Then there is
    /// no checkpoint, except when only the last step failed, to make its name durable.
    pub fn commit(mut self) -> Result<Summary, Error> {
        self.check()?;
        let sections = std::mem::take(&mut *self.sections.lock());
        for (name, entry) in sections.into_values() {
            let unfinished =
                || Error::Unfit(format!("the section {name:?} was begun and not finished"));
            let entry = entry.ok_or_else(unfinished)?;
            self.written_bytes += entry.file.bytes;
            self.manifest.sections.push(entry);
        }
        self.finish_pack()?;
        if self.parts > 0 {
            self.root.packs.sync()?;
        }
        self.write_index()?;
        let text = self.manifest.write()?;
        let mut part = self.dir.create(MANIFEST_PART)?;
        part.write(text.as_bytes())?;
        part.sync()?;
        self.dir.rename(MANIFEST_PART, MANIFEST)?;
        self.dir.sync()?;
        self.written_bytes += text.len() as u64;
        let number = self.number();
        let name = |state| layout::checkpoint(number, state);
        self.root.dir.rename(&name(DirectoryStatus::Partial), &name(DirectoryStatus::Complete))?;
        self.committed = true;
        self.root.dir.sync()?;
        Ok(Summary {
            path: self.root.dir.at(&name(DirectoryStatus::Complete)),
            number,
            written_bytes: self.written_bytes,
            new_blobs: self.new_blobs,
            blobs: self.blobs.len() as u64,
        })
    }

    fn write_index(&mut self) -> Result<(), Error> {
        if self.blobs.is_empty() {
            return Ok(());
        }
        let index = Index::new(self.blobs.iter().map(|(id, at)| (*id, *at)).collect());
        let mut writer = BlockWriter::begin(self.dir.create(INDEX)?, &index::MAGIC)?;
        index.write(|bytes| writer.write(bytes))?;
        let entry = writer.finish(INDEX.into(), INDEX.into())?;
        self.written_bytes += entry.file.bytes;
        self.manifest.blobs = Some(BlobsEntry {
            count: index.entries().len() as u64,
            data_bytes: index.entries().iter().map(|(_, at)| at.len).sum(),
            index: entry,
        });
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.committed {
            // What can't be removed now is removed by the next writer.
            let _ = self.root.remove_partial(self.number());
        }
    }
}

/// The same id must mean the same bytes.
fn compare(known: &Location, head: Head, path: &Path) -> Result<(), Error> {
    let here = Location { len: head.len, crc: head.crc, ..*known };
    if here == *known {
        return Ok(());
    }
    let (expected, got) = (known.show(), here.show());
    let (id, path) = (head.id, path.display());
    Err(Error::Unfit(format!("blob {id:032x} has {got}, but {path} has it with {expected}")))
}

fn list_pack(packs: &mut Vec<FileEntry>, entry: FileEntry) -> u32 {
    packs.push(entry);
    u32::try_from(packs.len() - 1).unwrap_or(u32::MAX)
}

impl Base {
    fn new(reader: Reader, pack_bytes: u64) -> Self {
        let mut used = HashMap::<u32, u64>::new();
        for (_, at) in reader.locations() {
            *used.entry(at.pack).or_default() += at.stored();
        }
        let packs = &reader.manifest().packs;
        let is_small = |pack: &FileEntry| pack.bytes < pack_bytes / SMALL;
        let too_many = packs.iter().filter(|pack| is_small(pack)).count() as u64 > SMALL;
        let judge = |(number, pack): (u32, &FileEntry)| {
            let used = used.get(&number).copied().unwrap_or(0);
            let is_left = used < pack.bytes / 2 || (too_many && is_small(pack));
            BasePack { is_left, listed: None }
        };
        let packs = (0..).zip(packs).map(judge).collect();
        Self { reader, packs }
    }

    /// The place of a blob in the manifest being written; `None` when its pack is to be left.
    fn refer(&mut self, at: Location, listed: &mut Vec<FileEntry>) -> Option<Location> {
        let pack = self.packs.get_mut(at.pack as usize)?;
        if pack.is_left {
            return None;
        }
        let number = match pack.listed {
            Some(number) => number,
            None => {
                let entry = self.reader.manifest().packs.get(at.pack as usize)?;
                *pack.listed.insert(list_pack(listed, entry.clone()))
            }
        };
        Some(Location { pack: number, ..at })
    }
}

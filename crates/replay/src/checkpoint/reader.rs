//! Reading a checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use echoic_memory::sync::Mutex;

use super::index::{self, Index, Location};
use super::layout::{self, DirectoryStatus, INDEX, MANIFEST, PACKS};
use super::manifest::{FileEntry, Manifest, SectionEntry};
use super::pack::PackReader;
use super::root::{MARKER, list, named, read_manifest};
use super::section::{self, SectionReader};
use super::trail::Trail;
use crate::Error;
use crate::files::{Dir, Lock};

/// The most bytes of a head: more than any of ours has.
const MAX_HEAD: u64 = 64 << 20;

/// A checkpoint whose files are all there in their full length. While it is open, it is not removed.
/// See the [module](super).
#[derive(Debug)]
pub struct Reader {
    pub(super) dir: Dir,
    /// Opened when there are any.
    pub(super) packs: Option<Dir>,
    manifest: Manifest,
    index: Index,
    /// The pack that was read last, since blobs that follow each other are mostly in one.
    last: Mutex<Option<(u32, PackReader)>>,
    _held: Lock,
}

impl Reader {
    /// Opens a checkpoint, or the newest one of a root. The manifest and the index of blobs are read
    /// whole and checked, and the lengths of all files; what is in sections and blobs is checked when
    /// it is read.
    ///
    /// # Errors
    ///
    /// Any [`Error`] that says what is wrong with which file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let dir = Dir::open(path.as_ref())?;
        let names = dir.names()?;
        if names.iter().any(|name| name == MANIFEST) {
            return Self::of(dir);
        }
        MARKER.check(&dir, &names, false)?;
        let Some(newest) = list(path.as_ref())?.pop() else {
            let root = path.as_ref().display();
            return Err(Error::Unfit(format!("{root} has no complete checkpoint")));
        };
        Self::of(dir.dir(&layout::checkpoint(newest.number, DirectoryStatus::Complete))?)
    }

    pub(super) fn of(dir: Dir) -> Result<Self, Error> {
        let Some(held) = dir.hold()? else {
            return Err(MARKER.locked(dir.path()));
        };
        let manifest = read_manifest(&dir)?;
        for section in &manifest.sections {
            open_named(&dir, &section.file)?;
        }
        let mut packs = None;
        if !manifest.packs.is_empty() {
            let found = dir.parent()?.dir(PACKS).map_err(named)?;
            for pack in &manifest.packs {
                open_named(&found, pack)?;
            }
            packs = Some(found);
        }
        let index = match &manifest.blobs {
            Some(blobs) => {
                let (file, path) = (open_named(&dir, &blobs.index.file)?, dir.at(INDEX));
                let stream = SectionReader::begin(file, path.clone(), &blobs.index, &index::MAGIC)?;
                Index::read(stream, &path, blobs, &manifest.packs)?
            }
            None => Index::default(),
        };
        Ok(Self { dir, packs, manifest, index, last: Mutex::default(), _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Its number in its root.
    pub fn number(&self) -> u64 {
        self.manifest.number
    }

    /// What its manifest says: metadata, when it was made, and all files.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What its writer wanted to be known.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.manifest.metadata
    }

    /// The names of all sections.
    pub fn sections(&self) -> impl Iterator<Item = &str> {
        self.manifest.sections.iter().map(|section| section.name.as_str())
    }

    /// A section's bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::File`], or [`Error::Unfit`] when there is none of this
    /// name, or its file has another length.
    pub fn section(&self, name: &str) -> Result<SectionReader, Error> {
        let known = self.manifest.sections.iter().find(|section| section.name == name);
        let entry = known.ok_or_else(|| self.has_no(format_args!("section {name:?}")))?;
        self.open_section(entry, &section::MAGIC)
    }

    /// All bytes of a section that is short.
    pub(crate) fn head(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut section = self.section(name)?;
        let got = section.data_bytes();
        if got > MAX_HEAD {
            return Err(Error::unfit(self.path(), format_args!("{name} has {got} bytes")));
        }
        let mut bytes = Vec::new();
        let unfit = |error| Error::unfit(self.path(), error);
        let read = section.read_to_end(&mut bytes);
        read.map_err(|error| error.downcast().unwrap_or_else(unfit))?;
        Ok(bytes)
    }

    pub(super) fn open_section(
        &self,
        entry: &SectionEntry,
        magic: &[u8; 8],
    ) -> Result<SectionReader, Error> {
        let file = open_named(&self.dir, &entry.file)?;
        SectionReader::begin(file, self.dir.at(&entry.file.file), entry, magic)
    }

    /// How many blobs there are.
    pub fn blob_count(&self) -> usize {
        self.index.entries().len()
    }

    /// The ids of all blobs, in the order in which they are stored, which is the fastest to read them in.
    pub fn blob_ids(&self) -> Vec<u128> {
        let mut entries: Vec<_> = self.index.entries().iter().collect();
        entries.sort_unstable_by_key(|(_, at)| (at.pack, at.offset));
        entries.into_iter().map(|(id, _)| *id).collect()
    }

    /// Whether there is a blob with this id.
    pub fn has_blob(&self, id: u128) -> bool {
        self.index.find(id).is_some()
    }

    /// Bytes of a blob; `None` when there is none with this id.
    pub fn blob_bytes(&self, id: u128) -> Option<u64> {
        self.index.find(id).map(|at| at.len)
    }

    /// A blob.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::File`], or [`Error::Unfit`] when there is none of this id.
    pub fn blob(&self, id: u128) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.blob_into(id, &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces `bytes` by a blob.
    ///
    /// # Errors
    ///
    /// As [`Reader::blob`]; `bytes` is empty then.
    pub fn blob_into(&self, id: u128, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.clear();
        match self.index.find(id) {
            Some(at) => self.read_blob(id, at, bytes),
            None => Err(self.unknown(id)),
        }
    }

    /// The place of a blob among all, in the order of their ids; quick for ids that follow each other.
    pub(crate) fn place_of(&self, id: u128, trail: &mut Trail) -> Option<usize> {
        trail.find(id, self.index.entries())
    }

    /// As [`Reader::blob_into`], of the blob at a place.
    pub(crate) fn blob_at(&self, place: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.clear();
        match self.index.entries().get(place) {
            Some((id, at)) => self.read_blob(*id, at, bytes),
            None => Err(self.unknown(u128::MAX)),
        }
    }

    /// There is no blob of this id.
    pub(crate) fn unknown(&self, id: u128) -> Error {
        self.has_no(format_args!("blob {id:032x}"))
    }

    fn has_no(&self, what: impl std::fmt::Display) -> Error {
        Error::Unfit(format!("{} has no {what}", self.path().display()))
    }

    fn read_blob(&self, id: u128, at: &Location, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let mut last = self.last.lock();
        let pack = match last.take() {
            Some((number, pack)) if number == at.pack => pack,
            _ => {
                let (file, path) = self.open_pack(at.pack)?;
                PackReader::new(file, path)
            }
        };
        let (_, pack) = last.insert((at.pack, pack));
        pack.read(id, at, bytes)
    }

    fn pack_path(&self, pack: u32) -> PathBuf {
        let name = self.manifest.packs.get(pack as usize).map_or("", |pack| &pack.file);
        self.packs.as_ref().map_or_else(|| name.into(), |packs| packs.at(name))
    }

    pub(super) fn open_pack(&self, pack: u32) -> Result<(File, PathBuf), Error> {
        let entry = self.manifest.packs.get(pack as usize);
        let (Some(packs), Some(entry)) = (&self.packs, entry) else {
            return Err(Error::Missing { path: self.pack_path(pack) });
        };
        Ok((open_named(packs, entry)?, packs.at(&entry.file)))
    }

    pub(super) fn location(&self, id: u128) -> Option<Location> {
        self.index.find(id).copied()
    }

    pub(super) fn locations(&self) -> &[(u128, Location)] {
        self.index.entries()
    }
}

/// Opens a file that a manifest names, which must have the length that it says.
fn open_named(dir: &Dir, entry: &FileEntry) -> Result<File, Error> {
    let (file, got) = dir.file(&entry.file).map_err(named)?;
    if got == entry.bytes {
        return Ok(file);
    }
    let (path, expected) = (dir.at(&entry.file), entry.bytes);
    let what = format!("{} has {got} bytes, the manifest says {expected}", path.display());
    Err(Error::Unfit(what))
}

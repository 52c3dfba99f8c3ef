//! The manifest of a checkpoint: text that people can read, and its own checksum.
//!
//! It is JSON: `{"crc32c": …, "manifest": {…}}`. The checksum is that of the text of the inner object,
//! as it stands. This outer form, `format` and `version` are the same in all versions of the format.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crc32c::crc32c;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::layout;
use crate::Error;

/// The format that this release writes and reads.
pub const VERSION: u32 = 2;
/// Bytes of the longest manifest.
pub const MAX_BYTES: u64 = 64 << 20;
/// Says whose file it is.
const FORMAT: &str = "echoic checkpoint";

/// A checksum, as text of eight digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub u32);

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:08x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match u32::from_str_radix(&text, 16) {
            Ok(value) if format!("{value:08x}") == text => Ok(Self(value)),
            _ => Err(serde::de::Error::custom("a checksum is eight hexadecimal digits")),
        }
    }
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name: in the directory of the checkpoint, or in that of the packs.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// The checksum of its header and of the heads in it, which have those of all other bytes.
    pub crc32c: Checksum,
}

/// A section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionEntry {
    /// The name that its writer gave it.
    pub name: String,
    /// Bytes that were written to it.
    pub data_bytes: u64,
    /// Where it is.
    #[serde(flatten)]
    pub file: FileEntry,
}

/// All blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobsEntry {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub data_bytes: u64,
    /// The file that says where each is.
    pub index: SectionEntry,
}

/// What a checkpoint consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The release that wrote it.
    pub release: String,
    /// Its number in its root.
    pub number: u64,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
    /// What its writer wanted to be known.
    pub metadata: BTreeMap<String, String>,
    /// In the order in which they were finished.
    pub sections: Vec<SectionEntry>,
    /// All files that blobs are in.
    pub packs: Vec<FileEntry>,
    /// Absent when there are none.
    pub blobs: Option<BlobsEntry>,
}

/// What every version has.
#[derive(Deserialize)]
struct Any {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Outer<'a> {
    crc32c: Checksum,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// What is wrong with the text of a manifest.
fn wrong(path: &Path, expected: &'static str, found: impl ToString) -> Error {
    Error::Foreign { path: path.to_owned(), expected: expected.into(), found: found.to_string() }
}

impl Manifest {
    /// One without content.
    pub fn new(number: u64, created_ms: u64) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            release: env!("CARGO_PKG_VERSION").into(),
            number,
            created_ms,
            metadata: BTreeMap::new(),
            sections: Vec::new(),
            packs: Vec::new(),
            blobs: None,
        }
    }

    /// As a file has it.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] when it could not be read back.
    pub fn write(&self) -> Result<String, Error> {
        // Strings, numbers and lists of them always are JSON.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let sealed = seal(&text);
        match sealed.len() as u64 {
            got if got > MAX_BYTES => Err(Error::too_large("bytes of a manifest", MAX_BYTES, got)),
            _ => Ok(sealed),
        }
    }

    /// Reads a file whole. `path` is where it came from, for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`], [`Error::Format`] or [`Error::Damaged`].
    pub fn read(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| wrong(path, "text of a manifest", error))?;
        let outer: Outer<'_> = serde_json::from_str(text)
            .map_err(|error| wrong(path, "a checksum and a manifest", error))?;
        let inner = outer.manifest.get();
        let got = crc32c(inner.as_bytes());
        if got != outer.crc32c.0 {
            return Err(Error::checksum(path, 0, "the checksum", outer.crc32c.0, got));
        }
        let any: Any = serde_json::from_str(inner)
            .map_err(|error| wrong(path, "a format and a version", error))?;
        if any.format != FORMAT {
            return Err(wrong(
                path,
                "the format \"echoic checkpoint\"",
                format!("{:?}", any.format),
            ));
        }
        if any.version != VERSION {
            let (path, got) = (path.to_owned(), any.version);
            return Err(Error::Format { path, expected: VERSION, got });
        }
        let manifest: Self = serde_json::from_str(inner)
            .map_err(|error| wrong(path, "the fields of a manifest", error))?;
        manifest.check().map_err(|(expected, found)| wrong(path, expected, found))?;
        Ok(manifest)
    }

    /// Names that a writer would not give can only come from an attacker.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let (mut names, mut files) = (HashSet::new(), HashSet::new());
        for section in &self.sections {
            if !layout::is_section(&section.file.file) {
                return Err(("files named section-NUMBER.bin", format!("{:?}", section.file.file)));
            }
            if !names.insert(&section.name) || !files.insert(&section.file.file) {
                return Err(("sections with names and files of their own", format!("{section:?}")));
            }
        }
        for pack in &self.packs {
            if layout::read_pack(&pack.file).is_none() || !files.insert(&pack.file) {
                return Err((
                    "different packs named pack-NUMBER-PART.bin",
                    format!("{:?}", pack.file),
                ));
            }
        }
        match &self.blobs {
            Some(blobs) if blobs.index.file.file != layout::INDEX => {
                Err(("an index named index.bin", format!("{:?}", blobs.index.file.file)))
            }
            _ => Ok(()),
        }
    }
}

/// Puts the text of a manifest's inner object into a file with its checksum.
pub fn seal(text: &str) -> String {
    format!("{{\n\"crc32c\": \"{:08x}\",\n\"manifest\": {text}\n}}\n", crc32c(text.as_bytes()))
}

//! Where the journals of tables are, and what each says about itself.
//!
//! ```text
//! journals/
//!   replay/                   the table's name, with %XX for what is no letter, digit, - or _
//!     echoic-table            whose it is, which log counts, and what it goes on from
//!     log-0123456789abcdef/   a journal
//! ```

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::{Form, TableConfig};
use crate::codec::{CodecError, read_formatted, write_formatted};
use crate::fields;
use crate::files::{Dir, FileError};

/// The file in which a journal says what it is: a CRC-32C of the rest, the format, a [`Label`].
const FILE: &str = "echoic-table";
const PART: &str = "echoic-table.part";
/// The format of that file, and of the entries.
const FORMAT: u32 = 2;
/// More than any of ours has.
const MAX_BYTES: u64 = 64 << 20;
/// Longer names are cut, so that they are names to every file system.
const MAX_NAME: usize = 160;

/// What a journal goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// The checkpoint's number.
    pub(super) checkpoint: u64,
    /// Checksum of the table's head in it.
    pub(super) head: u32,
}

/// What a journal says about itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Label {
    /// The table's name.
    pub(super) table: String,
    /// How it keeps items.
    pub(super) form: Form,
    /// Which journal it is; also the name of its directory.
    pub(super) id: String,
    /// None when it goes on from an empty table.
    pub(super) base: Option<Base>,
}

fields! {
    Base { checkpoint: u64, head: u32 }
    Label { table: String, form: Form, id: String, base: Option<Base> }
}

impl Label {
    /// Of a new journal.
    pub(super) fn new(config: &TableConfig, base: Option<Base>) -> Self {
        Self { table: config.name.clone(), form: config.form.clone(), id: fresh_id(), base }
    }

    /// The directory of its records.
    pub(super) fn log(&self) -> String {
        format!("log-{}", self.id)
    }

    /// Reads what a journal says; none when there is no journal. What is in the file is for the caller
    /// to make sense of.
    pub(super) fn read(dir: &Dir) -> Result<Option<Result<Self, String>>, FileError> {
        let bytes = match dir.read(FILE, MAX_BYTES) {
            Err(error) if error.is_missing() => return Ok(None),
            read => read?,
        };
        let Some(bytes) = bytes else {
            return Ok(Some(Err(format!("{FILE} has more than {MAX_BYTES} bytes"))));
        };
        let label = bytes.split_first_chunk().map(|(sum, rest)| {
            match u32::from_le_bytes(*sum) == crc32c::crc32c(rest) {
                true => read_formatted(rest, FORMAT).map_err(|error: CodecError| error.to_string()),
                false => Err("its checksum is wrong".to_owned()),
            }
        });
        let label = label.unwrap_or_else(|| Err("it is cut off".into()));
        Ok(Some(label.map_err(|what| format!("{FILE}: {what}"))))
    }

    /// Writes it, durably and all at once.
    pub(super) fn write(&self, dir: &Dir) -> Result<(), FileError> {
        match dir.remove_file(PART) {
            Err(error) if !error.is_missing() => return Err(error),
            _ => {}
        }
        let mut file = dir.create(PART)?;
        let bytes = write_formatted(FORMAT, self);
        file.write(&crc32c::crc32c(&bytes).to_le_bytes())?;
        file.write(&bytes)?;
        file.sync()?;
        dir.rename(PART, FILE)?;
        dir.sync()
    }
}

/// A name that no other journal has.
fn fresh_id() -> String {
    // The standard library's only random numbers, and the time in case they repeat.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:016x}", RandomState::new().hash_one(now.as_nanos()))
}

/// The directory of a table of this name.
pub(super) fn dir_name(table: &str) -> String {
    let mut name = String::new();
    for byte in table.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > MAX_NAME {
        // Two that are alike up to there, and in their checksums, are distinguished by their labels.
        name.truncate(MAX_NAME);
        name.push_str(&format!("%%{:08x}", crc32c::crc32c(table.as_bytes())));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_table_names_a_directory_of_its_own() {
        assert_eq!(dir_name("replay_1-b"), "replay_1-b");
        assert_eq!(dir_name("../é 1%"), "%2E%2E%2F%C3%A9%201%25");
        let long = |last: &str| dir_name(&("x".repeat(255) + last));
        assert_ne!(long("a"), long("b"));
        assert!(long("a").len() < 200);
    }
}

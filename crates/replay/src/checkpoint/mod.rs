//! Checkpoints on disk: named sections, and blobs that are stored once for many checkpoints.
//!
//! A directory, the *root*, has numbered checkpoints. A [`Writer`] adds one: [sections](Writer::section)
//! are streams of bytes under a name, [blobs](Writer::blob) are bytes under an id that no checkpoint of
//! the root stores again. A [`Reader`] opens one, [`list`] returns all, and [`retain`] removes
//! old ones. What the bytes mean is for others to know.
//!
//! ```text
//! root/
//!   echoic-checkpoints.lock     held by the process that changes the root
//!   packs/pack-0000000001-0000.bin
//!   checkpoint-0000000001/
//!     manifest.json             names and checksums of all files, those in packs/ included
//!     section-0000.bin
//!     index.bin                 which blob is where in which pack
//!   checkpoint-0000000002.partial/   being written
//!   checkpoint-0000000000.old/       being removed
//! ```
//!
//! # Invariants
//!
//! 1. A directory `checkpoint-NUMBER` is complete and durable from the moment it has this name.
//! 2. Files that a complete checkpoint names never change. Packs are never appended to by a later one.
//! 3. Nothing is removed but what a manifest of ours names, or what a writer that did not finish has
//!    left under names that only a writer gives.
//! 4. Every byte that a reader hands out was compared with a checksum. Nothing that is read is trusted:
//!    lengths are compared with the files before memory is allocated, and names can't leave the root.
//!
//! # Limitations
//!
//! The ids of all blobs of a checkpoint are in memory while it is written or read, at about 50 bytes a
//! blob. A checkpoint refers to packs beside it: move or copy the root, not one checkpoint.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use echoic_replay::checkpoint::{Reader, Writer};
//!
//! # let root = std::env::temp_dir().join(format!("echoic-doc-{}", std::process::id()));
//! let mut writer = Writer::begin(&root)?;
//! writer.blob(7, b"a chunk of experience")?;
//! let mut section = writer.section("tables")?;
//! section.write_all(b"one table")?;
//! section.finish()?;
//! writer.commit()?;
//!
//! let reader = Reader::open(&root)?;
//! let mut tables = String::new();
//! reader.section("tables")?.read_to_string(&mut tables)?;
//! assert_eq!(tables, "one table");
//! assert_eq!(reader.blob(7)?, b"a chunk of experience");
//!
//! // The chunk is in the root already, and is not stored again.
//! let mut writer = Writer::begin(&root)?;
//! assert!(writer.refer(7)?);
//! writer.commit()?;
//! # drop(reader);
//! # std::fs::remove_dir_all(&root)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod blocks;
#[cfg(test)]
mod crash;
mod index;
mod layout;
pub mod manifest;
mod pack;
mod reader;
mod retain;
mod root;
mod section;
mod trail;
mod verify;
mod writer;

pub use manifest::VERSION;
pub use reader::Reader;
pub use retain::{Retained, retain};
pub use root::{Found, list};
pub use section::{SectionReader, SectionWriter};
pub(crate) use trail::Trail;
pub use verify::Progress;
pub use writer::{Options, Summary, Writer};

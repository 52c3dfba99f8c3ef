//! How the bytes of a chunk are kept: as they are, or smaller.
//!
//! - [`Encoding`]: the forms, and this file says what each is made of.
//! - [`Policy`] and [`Chooser`]: which form a column gets.
//! - `delta`: differences between consecutive steps; `codec`: lz4 and zstd, with their buffers.
//! - `serial`: a chunk as bytes of a file or a message.
//!
//! Every form gives back the very bytes that went in, whatever they mean: also NaNs with a payload,
//! and bools that are neither 0 nor 1.

use std::fmt;

mod choose;
pub(crate) mod codec;
mod delta;
mod serial;
#[cfg(test)]
mod tests;

pub use choose::{Chooser, Policy, UnknownEncoding};

/// A form of the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Encoding {
    /// The bytes themselves.
    #[default]
    Raw,
    /// One lz4 block: decodes at gigabytes a second.
    Lz4,
    /// One zstd frame: smaller, and decodes at about a quarter of lz4's speed.
    Zstd,
    /// Differences between steps as lz4.
    DeltaLz4,
    /// Differences between steps as zstd.
    DeltaZstd,
}

impl Encoding {
    /// Every form.
    pub const ALL: [Self; 5] = [Self::Raw, Self::Lz4, Self::Zstd, Self::DeltaLz4, Self::DeltaZstd];

    fn is_delta(self) -> bool {
        matches!(self, Self::DeltaLz4 | Self::DeltaZstd)
    }

    fn is_zstd(self) -> bool {
        matches!(self, Self::Zstd | Self::DeltaZstd)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::DeltaLz4 => "delta+lz4",
            Self::DeltaZstd => "delta+zstd",
        })
    }
}

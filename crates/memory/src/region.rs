//! The memory that a ring and its columns live in: a block of this process, or a shared mapping.
//!
//! # Invariants
//!
//! 1. `pointer` is valid for reads and writes of `len` initialised bytes until drop, and aligned to
//!    [`BLOCK_ALIGNMENT`].
//! 2. A region hands out its pointer and nothing else, as a [`Block`] does.
//! 3. The file of a shared mapping can neither shrink nor grow, so the mapping stays backed.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::block::{AllocError, Block};

#[cfg(target_os = "linux")]
use crate::mapping::Mapping;

/// See the [module](self).
#[derive(Debug)]
pub(crate) enum Region {
    /// For threads of this process.
    Own(Block),
    /// For other processes too.
    #[cfg(target_os = "linux")]
    Shared(Mapping),
}

impl Region {
    /// Zeroed memory of this process.
    pub(crate) fn own(bytes: usize) -> Result<Self, AllocError> {
        Block::new(bytes).map(Self::Own)
    }

    /// Zeroed memory that other processes can map.
    #[cfg(target_os = "linux")]
    pub(crate) fn shared(bytes: usize) -> Result<Self, AllocError> {
        Mapping::new(bytes).map(Self::Shared)
    }

    /// Zeroed memory that other processes can map.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn shared(_bytes: usize) -> Result<Self, AllocError> {
        Err(AllocError::Shared { reason: "this needs Linux".into() })
    }

    /// As [`Region::shared`], for others to read only.
    #[cfg(target_os = "linux")]
    pub(crate) fn guarded(bytes: usize) -> Result<Self, AllocError> {
        Mapping::guarded(bytes).map(Self::Shared)
    }

    /// As [`Region::shared`], for others to read only.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn guarded(bytes: usize) -> Result<Self, AllocError> {
        Self::shared(bytes)
    }

    /// As [`Region::shared`], with pages that are there from their first use on.
    #[cfg(target_os = "linux")]
    pub(crate) fn sparse(bytes: usize) -> Result<Self, AllocError> {
        Mapping::sparse(bytes).map(Self::Shared)
    }

    /// As [`Region::shared`], with pages that are there from their first use on.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sparse(bytes: usize) -> Result<Self, AllocError> {
        Self::shared(bytes)
    }

    /// The sparse memory that another process made.
    #[cfg(target_os = "linux")]
    pub(crate) fn attach_sparse(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        Mapping::open_sparse(file, bytes).map(Self::Shared)
    }

    /// The sparse memory that another process made.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn attach_sparse(_file: OwnedFd, _bytes: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What to hand to other processes, if they can map it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Own(_) => None,
            #[cfg(target_os = "linux")]
            Self::Shared(mapping) => Some(mapping.file()),
        }
    }

    /// Where the bytes start.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        match self {
            Self::Own(block) => block.pointer(),
            #[cfg(target_os = "linux")]
            Self::Shared(mapping) => mapping.pointer(),
        }
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(block) => block.len(),
            #[cfg(target_os = "linux")]
            Self::Shared(mapping) => mapping.len(),
        }
    }
}

//! The memory that a ring and its columns live in: a block of this process, or a shared mapping.
//!
//! # Invariants
//!
//! 1. `pointer` is valid for reads and writes of `len` initialised bytes until drop, and aligned to
//!    [`BLOCK_ALIGNMENT`].
//! 2. A region hands out its pointer and nothing else, as a [`Block`] does.
//! 3. The file of a shared mapping can neither shrink nor grow, so the mapping stays backed.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::block::{AllocError, Block, Untouched};
use crate::os::{self, Mapping};

/// See the [module](self).
#[derive(Debug)]
pub(crate) enum Region {
    /// For threads of this process.
    Own(Block),
    /// As above, with pages that are there from their first use on.
    Untouched(Untouched),
    /// For other processes too.
    Shared(Mapping),
}

impl Region {
    /// Zeroed memory of this process.
    pub(crate) fn own(bytes: usize) -> Result<Self, AllocError> {
        Block::new(bytes).map(Self::Own)
    }

    /// As [`Region::own`], with pages that are there from their first use on.
    pub(crate) fn untouched(bytes: usize) -> Result<Self, AllocError> {
        Untouched::new(bytes).map(Self::Untouched)
    }

    /// What to hand to other processes, if they can map it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Own(_) | Self::Untouched(_) => None,
            Self::Shared(mapping) => Some(mapping.file()),
        }
    }

    /// Has the system give the pages of these bytes now, which must be inside. The bytes stay as they are.
    ///
    /// # Errors
    ///
    /// [`AllocError::Refused`] when there are too few.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), AllocError> {
        assert!(range.end <= self.len(), "inside the region");
        match self {
            Self::Shared(mapping) => mapping.populate(range),
            Self::Untouched(block) => {
                let bytes = range.len();
                // SAFETY: the block is there until drop, and the system gives a process whole pages.
                match unsafe { os::populate(block.pointer(), range) } {
                    // Where it does not know how, the pages come when they are first used.
                    Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                        Err(AllocError::Refused { bytes })
                    }
                    _ => Ok(()),
                }
            }
            Self::Own(_) => Ok(()),
        }
    }

    /// Where the bytes start.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        match self {
            Self::Own(block) => block.pointer(),
            Self::Untouched(block) => block.pointer(),
            Self::Shared(mapping) => mapping.pointer(),
        }
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(block) => block.len(),
            Self::Untouched(block) => block.len(),
            Self::Shared(mapping) => mapping.len(),
        }
    }
}

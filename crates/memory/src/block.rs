//! One aligned allocation that never moves.
//!
//! # Invariants
//!
//! 1. `pointer` is valid for reads and writes of `layout.size()` initialised bytes until drop.
//! 2. A block hands out its pointer and nothing else: who may touch which byte is the business of
//!    [`crate::store`].

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;

use crate::os;

/// Alignment of every batch in a block: a cache line, and what XLA and AVX-512 want.
pub const ALIGNMENT: usize = 64;

/// Alignment of every block: two lines, which is what [`CachePadded`] asks for at most.
pub(crate) const BLOCK_ALIGNMENT: usize = 128;

// The ring's words are put at multiples of it. Some processors have longer lines, s390x for one: raise it for them.
const _: () = assert!(align_of::<CachePadded<u64>>() <= BLOCK_ALIGNMENT);

/// From this size on the block is aligned to huge pages and the kernel is asked to use them.
const HUGE_PAGE: usize = 2 << 20;

/// Memory that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The sizes multiplied past what an address can hold.
    #[error("{what} needs more bytes than an address can hold")]
    Overflow {
        /// What was to be allocated.
        what: String,
    },
    /// Make it smaller: the machine has no such amount.
    #[error("the machine has no {bytes} bytes of memory to allocate")]
    Refused {
        /// How much was asked for.
        bytes: usize,
    },
    /// Use fewer buffers or smaller batches: the ring counts both in 32 bits.
    #[error("a ring of {buffers} batches of {batch_size} samples has more than it can count")]
    TooMany {
        /// How many batches.
        buffers: usize,
        /// How many samples each.
        batch_size: usize,
    },
    /// The system could not make memory that other processes can map.
    #[error("could not make shared memory: {reason}")]
    Shared {
        /// What the system said.
        reason: String,
    },
}

/// Zeroed, aligned memory, every page of it already mapped.
#[derive(Debug)]
pub struct Block {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block owns its memory and has no thread affinity; by invariant 2 it never touches the
// bytes after construction, so sharing the block itself races with nothing.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives only the address.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates `bytes` zeroed bytes and touches every page, so that first use is not slower.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when the size is impossible or the system refuses.
    pub fn new(bytes: usize) -> Result<Self, AllocError> {
        let alignment = if bytes >= HUGE_PAGE { HUGE_PAGE } else { BLOCK_ALIGNMENT };
        // An allocation of zero bytes has no address; one line is cheaper than a special case.
        let layout = Layout::from_size_align(bytes.max(ALIGNMENT), alignment)
            .map_err(|_| AllocError::Overflow { what: format!("a block of {bytes} bytes") })?;
        check_available(bytes)?;
        // SAFETY: the layout's size is at least a line, so not zero.
        let pointer = unsafe { alloc(layout) };
        let pointer = NonNull::new(pointer).ok_or(AllocError::Refused { bytes })?;
        // Not `alloc_zeroed`: with this alignment it would touch the pages before the advice.
        if alignment == HUGE_PAGE {
            // SAFETY: our own allocation, which begins a page.
            unsafe { os::advise_huge_pages(pointer, layout.size()) };
        }
        // SAFETY: freshly allocated with this size.
        unsafe { pointer.write_bytes(0, layout.size()) };
        Ok(Self { pointer, layout })
    }

    /// Where the bytes start.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never true: the smallest block is one cache line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed, aligned memory of which the system gives each page when it is first written.
///
/// Invariants: as of [`Block`], of which it differs in when the pages come.
#[derive(Debug)]
pub(crate) struct Untouched {
    /// What was allocated, and where in it the aligned part starts.
    start: NonNull<u8>,
    layout: Layout,
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: as for `Block`.
unsafe impl Send for Untouched {}
// SAFETY: as for `Block`.
unsafe impl Sync for Untouched {}

impl Untouched {
    /// Allocates `bytes` zeroed bytes, aligned to cache lines.
    pub(crate) fn new(bytes: usize) -> Result<Self, AllocError> {
        check_available(bytes)?;
        let overflow = || AllocError::Overflow { what: format!("a block of {bytes} bytes") };
        // The allocator touches zeroed memory when it is asked for more alignment than it has by
        // itself, so the alignment is made here.
        let room = bytes.max(1).checked_add(ALIGNMENT).ok_or_else(overflow)?;
        let layout = Layout::from_size_align(room, 16).map_err(|_| overflow())?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(AllocError::Refused { bytes })?;
        let skip = start.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: less than a line is skipped, and the allocation has a line more than `bytes`.
        let pointer = unsafe { start.add(skip) };
        advise_huge_pages(pointer, bytes);
        Ok(Self { start, layout, pointer, len: bytes })
    }

    /// Where the bytes start.
    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed only here.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

/// An empty vector with room for this many values, if the machine has it, in huge pages where the system
/// grants them. Its memory is there when it is first written, as always; but a vector that grew to the
/// same size would lie in small pages, and random reads of it would wait for the address cache too.
pub fn roomy<T>(len: usize) -> Vec<T> {
    let mut vector: Vec<T> = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    if check_available(bytes).is_ok() && vector.try_reserve_exact(len).is_ok() {
        let room = vector.spare_capacity_mut();
        let bytes = size_of_val(room);
        advise_huge_pages(NonNull::from(room).cast(), bytes);
    }
    vector
}

/// Refuses more than the machine has: a system that overcommits would grant it, and kill the process
/// when the pages are touched.
pub(crate) fn check_available(bytes: usize) -> Result<(), AllocError> {
    match os::physical_memory() {
        Some(memory) if bytes > memory => Err(AllocError::Refused { bytes }),
        _ => Ok(()),
    }
}

/// Asks for huge pages where whole ones fit: random reads then miss the address cache less often.
fn advise_huge_pages(pointer: NonNull<u8>, bytes: usize) {
    let skip = pointer.align_offset(HUGE_PAGE);
    let whole = bytes.saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: inside the allocation, of which `whole` bytes more are left.
        let start = unsafe { pointer.add(skip) };
        // SAFETY: pages that are wholly inside our own allocation.
        unsafe { os::advise_huge_pages(start, whole) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn untouched_memory_is_zeroed_and_aligned() {
        for bytes in [0, 1, 100, 3 * HUGE_PAGE] {
            let block = Untouched::new(bytes).unwrap();
            assert_eq!((block.len(), block.pointer().as_ptr() as usize % ALIGNMENT), (bytes, 0));
            // SAFETY: the block has this many initialised bytes, and nothing else has it.
            let all = unsafe { std::slice::from_raw_parts(block.pointer().as_ptr(), bytes) };
            assert!(all.iter().all(|byte| *byte == 0));
        }
        assert!(Untouched::new(1 << 46).is_err());
    }

    #[test]
    fn a_roomy_vector_has_room_if_the_machine_has() {
        for len in [0, 3, 3 * HUGE_PAGE] {
            let vector: Vec<u16> = roomy(len);
            assert!(vector.is_empty() && vector.capacity() >= len, "{len}");
        }
        assert!(roomy::<u64>(1 << 60).is_empty());
    }

    #[test]
    fn is_zeroed_and_aligned_at_every_size() {
        for bytes in [0, 1, 64, 4097, HUGE_PAGE, HUGE_PAGE + 1] {
            let block = Block::new(bytes).unwrap();
            assert!(block.len() >= bytes.max(1) && !block.is_empty());
            assert_eq!(block.pointer().as_ptr() as usize % ALIGNMENT, 0, "{bytes} bytes");
            // SAFETY: invariant 1, and this test is the only one that has the block.
            let all = unsafe { std::slice::from_raw_parts(block.pointer().as_ptr(), block.len()) };
            assert!(all.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = Block::new(usize::MAX).unwrap_err();
        assert!(matches!(error, AllocError::Overflow { .. }), "{error}");
        for bytes in [1 << 60, 1 << 46] {
            assert_eq!(Block::new(bytes).unwrap_err(), AllocError::Refused { bytes });
        }
    }
}

//! What differs between systems, behind one interface. Everything else in this crate runs on any Unix.
//!
//! - [`Parking`]: where threads sleep until a word changes.
//! - [`Mapping`]: memory that other processes map. [`SHARES_MEMORY`]: whether there is such memory.
//! - [`populate`] and [`advise_huge_pages`]: asking for pages. [`available_memory`]: how much there is.
//!
//! `linux.rs` has all of them. `portable.rs` is for macOS, loom and miri: it parks threads of one process, shares no
//! memory, and asks for no pages. With `--cfg echoic_portable` it is used on Linux too, for tests.

#[cfg(all(target_os = "linux", not(any(loom, miri, echoic_portable))))]
#[path = "linux.rs"]
mod system;
#[cfg(not(all(target_os = "linux", not(any(loom, miri, echoic_portable)))))]
#[path = "portable.rs"]
mod system;

pub(crate) use system::{Mapping, Parking, advise_huge_pages, populate};
pub use system::{SHARES_MEMORY, available_memory};

/// How many bytes of memory the machine has.
pub(crate) fn physical_memory() -> Option<usize> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: asks for a number; so for the next.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?)
}

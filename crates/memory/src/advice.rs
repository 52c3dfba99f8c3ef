//! Telling the system and the processor which memory is wanted soon. Only speed depends on it.

pub use crate::os::available_memory;

/// Has the system read these bytes, if they are of a file that is mapped and not in memory yet, without
/// waiting for it.
pub fn will_need(bytes: &[u8]) {
    #[cfg(not(miri))]
    {
        let (start, len) = (bytes.as_ptr() as usize, bytes.len());
        let skipped = start % PAGE;
        // SAFETY: advice that changes no contents, about pages in which a live slice lies. The system
        // refuses an address that does not begin one of its pages, and only speed is lost then.
        let _ = unsafe {
            libc::madvise(
                (start - skipped) as *mut libc::c_void,
                len + skipped,
                libc::MADV_WILLNEED,
            )
        };
    }
    #[cfg(miri)]
    let _ = bytes;
}

/// Has the processor fetch the cache line of a value, so that many reads from all over the place wait
/// together and not one after the other.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Has the processor fetch the cache line at an address, which need not be valid.
#[inline]
pub(crate) fn prefetch_at(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which reads nothing and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// The size of a page where it matters most.
#[cfg(not(miri))]
pub(crate) const PAGE: usize = 4096;

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn advice_changes_no_bytes() {
        let bytes: Vec<u8> = (0..20_000).map(|at| at as u8).collect();
        super::will_need(&bytes[100..9000]);
        super::will_need(&[]);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}

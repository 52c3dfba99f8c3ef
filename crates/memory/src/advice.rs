//! Telling the system which memory is wanted soon.

/// Has the system read these bytes, if they are of a file that is mapped and not in memory yet, without
/// waiting for it. Only speed depends on it.
pub fn will_need(bytes: &[u8]) {
    #[cfg(all(target_os = "linux", not(miri)))]
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
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = bytes;
}

/// The size of a page where it matters most.
#[cfg(all(target_os = "linux", not(miri)))]
const PAGE: usize = 4096;

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

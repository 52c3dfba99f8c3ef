//! Telling the system and the processor which memory is wanted soon. Only speed depends on it.

#[cfg(all(target_os = "linux", not(miri)))]
use std::{io, ops::Range, ptr::NonNull};

/// Has the system read these bytes, if they are of a file that is mapped and not in memory yet, without
/// waiting for it.
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

/// Has the system give the pages of these bytes of a mapping now, for writing. It changes none of the bytes.
///
/// # Errors
///
/// What the system says: `EINVAL` where it does not know how (Linux before 5.14).
///
/// # Safety
///
/// So many bytes from `start` on must be mapped, whole pages around them too.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) unsafe fn populate(start: NonNull<u8>, range: Range<usize>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let first = start.as_ptr() as usize + range.start;
    let skipped = first % PAGE;
    loop {
        // SAFETY: by the caller's promise these pages are mapped. Pages that are there stay as they are.
        let result = unsafe {
            libc::madvise(
                (first - skipped) as *mut libc::c_void,
                range.len() + skipped,
                libc::MADV_POPULATE_WRITE,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// How many bytes of memory the system could give now without taking them from others; `None` where it does not say.
pub fn available_memory() -> Option<usize> {
    let number = |text: &str| text.split_whitespace().next()?.parse::<usize>().ok();
    let system = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = system.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let system = number(line)?.checked_mul(1024)?;
    // Of a container of its own, which sees its limit here.
    let file = |name| std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok();
    let limit = file("max").and_then(|text| number(&text));
    let used = file("current").and_then(|text| number(&text));
    let container = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    Some(system.min(container.unwrap_or(usize::MAX)))
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

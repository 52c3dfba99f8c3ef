//! Linux: futexes, memory files, and pages on request.

mod mapping;

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::Duration;

pub(crate) use self::mapping::Mapping;
use crate::advice::PAGE;
use crate::sync::AtomicU32;

/// Whether other processes can map memory of this one.
pub const SHARES_MEMORY: bool = true;

/// Parking on the word itself, in whichever process it is mapped.
#[derive(Debug)]
pub(crate) struct Parking;

impl Parking {
    pub(crate) fn new() -> Self {
        Self
    }

    /// Sleeps while `word` is `seen`, at most for `pause`; may return early.
    pub(crate) fn park(&self, word: &AtomicU32, seen: u32, pause: Option<Duration>) {
        let timeout = pause.map(|pause| libc::timespec {
            tv_sec: libc::time_t::try_from(pause.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word and the timeout outlive the call, which reads them only. Whatever
        // ends it, the caller looks again.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, timeout) };
    }

    /// Wakes all threads that sleep on `word`.
    pub(crate) fn wake(&self, word: &AtomicU32) {
        // SAFETY: the word's address is only looked up among those slept on.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
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

/// Asks for huge pages. Where the kernel does not follow, only speed is lost.
///
/// # Safety
///
/// So many bytes from `start` on must be of one allocation, and `start` must begin a page.
pub(crate) unsafe fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: advice about pages of one allocation, by the caller's promise. It changes no contents.
    let _ = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
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

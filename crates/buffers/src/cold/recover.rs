//! Which records of a file are whole.

use std::os::unix::fs::FileExt as _;

use super::format::{Header, TRAILER_BYTES};
use super::locked::LockedFile;
use crate::error::Error;
use crate::os;

/// How much is read at once.
const CHUNK: u64 = 4 << 20;

/// Records without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    end: u64,
}

/// Sees to it that a file is long enough for these records.
pub(super) fn check_length(
    file: &LockedFile,
    header: &Header,
    oldest: u64,
    end: u64,
    len: u64,
) -> Result<(), Error> {
    let Some(newest) = end.checked_sub(1).filter(|newest| *newest >= oldest) else {
        return Ok(());
    };
    let wraps = oldest / header.slots != newest / header.slots;
    let last_slot = if wraps { header.slots - 1 } else { header.slot(newest) };
    let expected = header.offset(last_slot) + header.row_bytes as u64 + TRAILER_BYTES as u64;
    if len >= expected {
        return Ok(());
    }
    let what = format!("it should be at least {expected} bytes long, and is {len}");
    Err(Error::damaged(file.path(), len, what))
}

/// Keeps the longest run of whole records from `first` on, and sees to it that no other record is taken
/// for one of the file later. Returns the first record and the position after the last.
pub(super) fn keep_longest_run(
    file: &LockedFile,
    header: &Header,
    first: u64,
    len: u64,
) -> Result<(u64, u64), Error> {
    let mut runs = join(find_runs(file, header, first, len)?);
    // Of two that are as long the later one is kept.
    runs.sort_unstable_by_key(|run| (run.end - run.first, run.first));
    let Some(kept) = runs.pop() else {
        return Ok((first, first));
    };
    for position in runs.iter().flat_map(|run| run.first..run.end) {
        let at = header.offset(header.slot(position)) + header.row_bytes as u64;
        let erased = file.file().write_all_at(&[0; TRAILER_BYTES], at);
        erased.map_err(|source| Error::io("write", file.path(), source))?;
    }
    Ok((kept.first, kept.end))
}

/// The runs in the order of their slots.
fn find_runs(file: &LockedFile, header: &Header, first: u64, len: u64) -> Result<Vec<Run>, Error> {
    os::expect_sequential(file.file());
    let failed = |source| Error::io("read", file.path(), source);
    let end = len.min(header.file_bytes().unwrap_or(u64::MAX));
    // Whole slots, and at least one, but no more than there is: the header may say anything.
    let chunk = (CHUNK / header.slot_bytes).max(1).saturating_mul(header.slot_bytes);
    let mut bytes = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    let (mut offset, mut slot) = (header.data_offset(), 0);
    while offset < end {
        let wanted = chunk.min(end - offset);
        bytes.resize(usize::try_from(wanted).unwrap_or(usize::MAX), 0);
        file.file().read_exact_at(&mut bytes, offset).map_err(failed)?;
        for record in bytes.chunks(usize::try_from(header.slot_bytes).unwrap_or(usize::MAX)) {
            let found = header.read_record(slot, record).filter(|position| *position >= first);
            match (found, runs.last_mut()) {
                (Some(position), Some(run)) if run.end == position => run.end += 1,
                (Some(position), _) => runs.push(Run { first: position, end: position + 1 }),
                (None, _) => {}
            }
            slot += 1;
        }
        offset += wanted;
    }
    Ok(runs)
}

/// Joins runs that follow each other, as those at the end and at the beginning of a file do.
fn join(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|run| run.first);
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(before) if before.end == run.first => before.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_follow_each_other_are_one() {
        let run = |first, end| Run { first, end };
        let found = vec![run(10, 13), run(5, 7), run(7, 10), run(20, 21)];
        assert_eq!(join(found), [run(5, 13), run(20, 21)]);
    }
}

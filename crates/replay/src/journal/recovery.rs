//! Opening a journal: what is there, what a crash has cut off, and what must not be.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::Options;
use super::appender::begin_segment;
use super::replay::{Replay, Torn};
use super::segment::{self, Scan, Step};
use crate::Error;
use crate::files::{Dir, FileError, Lock, Marker, Output, OwnedDir};

const MARKER: Marker = Marker {
    file: "echoic-journal.lock",
    text: "This directory has a journal of Echoic. Whoever has it open holds a lock on this file.\n",
    expected: "echoic-journal.lock",
    holder: "another process has this journal open",
};

/// A segment whose records are all right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    /// Its first record.
    pub(super) first: u64,
    /// Bytes of it that count.
    pub(super) len: u64,
}

/// A journal whose records were all read once.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) dir: Arc<Dir>,
    pub(super) lock: Lock,
    pub(super) segments: VecDeque<u64>,
    /// The first record of the last segment, and its file.
    pub(super) last: (u64, Output),
    /// The number of the next record.
    pub(super) next: u64,
    pub(super) replay: Replay,
}

/// Reads all records, so that nothing is replayed of a journal that is damaged, and cuts off what a
/// crash left at its end.
pub(super) fn recover(path: &Path, options: &Options) -> Result<Recovered, Error> {
    let OwnedDir { dir, lock, .. } = MARKER.own(path, true)?;
    let dir = Arc::new(dir);
    // Not before the lock: its last owner may have been at work.
    let names = dir.names()?;
    let parts = names.iter().filter_map(|name| name.strip_suffix(".part"));
    for first in parts.filter_map(segment::read_name) {
        dir.remove_file(&segment::part_name(first))?;
    }
    let Found { mut firsts, mut segments, mut next, torn } = find(&dir, &names, options.from)?;
    if next < options.from {
        // There is no record that is needed, and some are missing that a checkpoint covers.
        next = options.from;
        segments.clear();
    }
    let replay = Replay::new(Arc::clone(&dir), segments.clone(), options.from, next, torn);
    let last = match segments.last() {
        Some(last) => {
            let mut file = dir.extend(&segment::name(last.first), last.len)?;
            // What is replayed now must be there the next time, too.
            file.sync()?;
            (last.first, file)
        }
        None => {
            let file = begin_segment(&dir, next)?;
            for first in std::mem::take(&mut firsts) {
                dir.remove_file(&segment::name(first))?;
            }
            firsts.push(next);
            (next, file)
        }
    };
    Ok(Recovered { dir, lock, segments: firsts.into(), last, next, replay })
}

/// What a journal's files have.
struct Found {
    /// The first record of every segment.
    firsts: Vec<u64>,
    /// Those that have records that are needed.
    segments: Vec<Segment>,
    /// The number behind the last record.
    next: u64,
    torn: Option<Torn>,
}

/// Reads all records that are needed, from the one with the number `from` on.
fn find(dir: &Dir, names: &[String], from: u64) -> Result<Found, Error> {
    let mut firsts: Vec<u64> = names.iter().filter_map(|name| segment::read_name(name)).collect();
    firsts.sort_unstable();
    // A checkpoint covers what is before the segment that has record `from`: it need not be right.
    let needed = firsts.partition_point(|first| *first <= from).saturating_sub(1);
    let mut next = from;
    let mut segments = Vec::new();
    let mut torn = None;
    for (number, first) in firsts.iter().enumerate().skip(needed) {
        let (file, len) = dir.file(&segment::name(*first))?;
        let path = dir.at(&segment::name(*first));
        let follows = if number == needed { *first <= next } else { *first == next };
        if !follows {
            return Err(Error::Unfit(format!(
                "{} starts with record {first}, expected {next}: the records before it are missing",
                path.display()
            )));
        }
        let mut scan = Scan::begin(file, path, len, *first)?;
        let wrong = loop {
            match scan.step()? {
                Step::Record => {}
                Step::End => break None,
                Step::Torn(what) => break Some(what),
            }
        };
        let (offset, sequence) = (scan.offset(), scan.next());
        if let Some(what) = wrong {
            let end = Torn { offset, bytes: len.saturating_sub(offset), sequence, what };
            if number + 1 < firsts.len() || is_damage(dir, *first, &end)? {
                return Err(scan.damaged(end.what));
            }
            torn = Some(end);
        }
        next = sequence;
        segments.push(Segment { first: *first, len: offset });
    }
    Ok(Found { firsts, segments, next, torn })
}

/// Reads a journal that no process has open, and changes nothing: what a crash has left at its end stays there.
/// Without a number, all records that there are.
pub(super) fn inspect(path: &Path, from: Option<u64>) -> Result<(Replay, Lock), Error> {
    let OwnedDir { dir, lock, .. } = MARKER.share(path)?;
    let names = dir.names()?;
    let oldest = names.iter().filter_map(|name| segment::read_name(name)).min();
    let from = from.or(oldest).unwrap_or(0);
    let Found { segments, next, torn, .. } = find(&dir, &names, from)?;
    Ok((Replay::new(Arc::new(dir), segments, from, next.max(from), torn), lock))
}

/// Whether what stands behind the last whole record proves that it was no crash that cut it off.
fn is_damage(dir: &Dir, first: u64, torn: &Torn) -> Result<bool, FileError> {
    let name = segment::name(first);
    let (mut file, _) = dir.file(&name)?;
    let mut tail = Vec::new();
    let read = file
        .seek(SeekFrom::Start(torn.offset))
        .and_then(|_| file.take(torn.bytes).read_to_end(&mut tail));
    read.map_err(|source| FileError::new("read", &dir.at(&name), source))?;
    Ok(segment::proves_damage(&tail, torn.sequence))
}

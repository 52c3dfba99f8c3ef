//! The latest values of one column: cut into chunks, and the ones not cut yet.
//!
//! The values of a column are numbered without gaps; steps may have gaps where the column was not given.
//! Runs say which step has which value, segments say which chunk has it.
//!
//! # Invariants
//!
//! 1. Segments follow each other without gaps, and only the last can be open. `buffer` holds the values
//!    of the open one, and nothing when there is none.
//! 2. Every value of the window is in a segment. A segment that left the window stays in `pinned` exactly
//!    while items that were not handed over name it.
//! 3. `cut_at` is the number after the last value that the open segment takes; it is the number of the
//!    next value when no segment is open.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::config::ColumnConfig;
use super::error::WriterError;
use super::segment::Segment;
use super::sink::ChunkId;
use super::tuner::Tuner;
use crate::chunk::{Chunk, ColumnKind};
use crate::encoding::Chooser;
use crate::episode::Episode;

/// Memory taken for a chunk before it has values: enough for all but long or wide fixed chunks.
const RESERVE_BYTES: usize = 64 << 10;

/// Consecutive steps with consecutive values, up to the next run.
#[derive(Debug, Clone, Copy)]
struct Run {
    step: u64,
    value: u64,
}

/// Values `offset .. offset + len` of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of the segment in its column.
    pub segment: u64,
    /// The first value.
    pub offset: u32,
    /// How many.
    pub len: u32,
}

/// Why steps can't be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// They are older than the window.
    Gone,
    /// This one has no value.
    Absent(u64),
}

/// Memory of a value that is being written, given back if that ends with a panic.
struct Unfinished<'a> {
    buffer: &'a mut Vec<u8>,
    keep: usize,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.buffer.truncate(self.keep);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Column {
    pub path: String,
    pub kind: Arc<ColumnKind>,
    pub step_bytes: usize,
    /// Whether values are stored at all: a caller may know that no item will ever name them.
    pub wanted: bool,
    keep_alive: u64,
    /// The one that the values of the open segment are from.
    episode: Episode,
    tuner: Tuner,
    chooser: Chooser,
    /// Number of the next value.
    next: u64,
    cut_at: u64,
    /// When `next` gets here, a segment leaves the window.
    prune_at: u64,
    /// The first value after the history was last cleared.
    floor: u64,
    buffer: Vec<u8>,
    runs: VecDeque<Run>,
    segments: VecDeque<Segment>,
    /// Number of the first of `segments`.
    first_segment: u64,
    pinned: BTreeMap<u64, Segment>,
}

impl Column {
    pub fn new(
        path: &str,
        kind: ColumnKind,
        config: &ColumnConfig,
        episode: Episode,
    ) -> Result<Self, WriterError> {
        let too_large = || WriterError::TooLarge { path: path.into() };
        let step_bytes = kind.step_bytes().ok_or_else(too_large)?;
        Ok(Self {
            path: path.into(),
            kind: Arc::new(kind),
            step_bytes,
            wanted: true,
            keep_alive: config.keep_alive.into(),
            episode,
            tuner: Tuner::new(config, step_bytes),
            chooser: Chooser::new(config.encoding),
            next: 0,
            cut_at: 0,
            prune_at: u64::MAX,
            floor: 0,
            buffer: Vec::new(),
            runs: VecDeque::new(),
            segments: VecDeque::new(),
            first_segment: 0,
            pinned: BTreeMap::new(),
        })
    }

    /// Other settings; the chunk under construction keeps its length, and what was handed over its form.
    pub fn configure(&mut self, config: &ColumnConfig, released: &mut Vec<ChunkId>) {
        // What left the window does not come back when the window grows.
        self.floor = self.window_start();
        self.keep_alive = config.keep_alive.into();
        self.tuner = Tuner::new(config, self.step_bytes);
        if self.chooser.policy() != config.encoding {
            self.chooser = Chooser::new(config.encoding);
        }
        self.prune(released);
    }

    /// Whether a step has a value, given that no later one has.
    #[inline]
    pub fn has_latest(&self, step: u64) -> bool {
        self.runs.back().is_some_and(|run| run.step + (self.next - run.value) > step)
    }

    /// Adds the values of `steps` steps from `step` on, which are after all steps so far.
    #[inline]
    pub fn push(
        &mut self,
        mut step: u64,
        values: &[u8],
        steps: usize,
        released: &mut Vec<ChunkId>,
    ) {
        let (mut values, mut left) = (values, steps as u64);
        while left > 0 {
            if self.next == self.cut_at {
                self.open();
            }
            let run = (self.cut_at - self.next).min(left);
            let (now, later) = values.split_at(run as usize * self.step_bytes);
            self.buffer.extend_from_slice(now);
            self.finish(step, run, released);
            (step, values, left) = (step + run, later, left - run);
        }
    }

    /// Adds the value of one step, written by `fill` into zeroed memory.
    pub fn push_with(
        &mut self,
        step: u64,
        fill: impl FnOnce(&mut [u8]),
        released: &mut Vec<ChunkId>,
    ) {
        if self.next == self.cut_at {
            self.open();
        }
        let start = self.buffer.len();
        self.buffer.resize(start + self.step_bytes, 0);
        let mut value = Unfinished { buffer: &mut self.buffer, keep: start };
        fill(&mut value.buffer[start..]);
        value.keep += self.step_bytes;
        drop(value);
        self.finish(step, 1, released);
    }

    /// Counts values whose bytes are in the buffer, from this step on.
    #[inline]
    fn finish(&mut self, step: u64, values: u64, released: &mut Vec<ChunkId>) {
        let value = self.next;
        if self.runs.back().is_none_or(|run| run.step + (value - run.value) != step) {
            self.runs.push_back(Run { step, value });
        }
        self.next += values;
        if self.next == self.cut_at {
            self.cut();
        }
        if self.next >= self.prune_at {
            self.prune(released);
        }
    }

    #[cold]
    fn open(&mut self) {
        let length = self.tuner.length();
        let bytes = (length as usize).saturating_mul(self.step_bytes);
        self.buffer.reserve_exact(bytes.min(RESERVE_BYTES.max(self.step_bytes)));
        self.segments.push_back(Segment::open(self.next));
        self.cut_at = self.next + u64::from(length);
    }

    /// Cuts the open segment, if there is one.
    #[cold]
    fn cut(&mut self) {
        if let Some(last) = self.segments.back_mut().filter(|last| last.chunk.is_none()) {
            let len = u32::try_from(self.next - last.first).expect("a chunk's length is 4 bytes");
            let values = std::mem::take(&mut self.buffer);
            let chunk = Chunk::raw(Arc::clone(&self.kind), len, values.into_boxed_slice());
            let chunk = chunk.expect("a segment has as many values as it counts");
            last.chunk = Some(Arc::new(chunk.of_episode(Some(self.episode))));
            self.tuner.cut(len);
        }
        self.cut_at = self.next;
        self.schedule();
    }

    /// Cuts the open segment if it is this one.
    pub fn cut_if(&mut self, segment: u64) {
        if !self.is_cut(segment) {
            self.cut();
        }
    }

    /// What comes from now on is of another episode, and of other chunks.
    pub fn begin_episode(&mut self, episode: Episode) {
        // A segment whose first value could not be written has none.
        if self.segments.back().is_some_and(|last| last.first < self.next) {
            self.cut();
        }
        self.episode = episode;
    }

    /// Whether a segment is complete.
    pub fn is_cut(&self, segment: u64) -> bool {
        self.next == self.cut_at || segment + 1 < self.first_segment + self.segments.len() as u64
    }

    /// How many steps an item of values before `end` may wait for the chunk under construction.
    pub fn wait(&self, end: u64) -> u64 {
        let open = self.segments.back().filter(|last| last.chunk.is_none() && last.first < end);
        open.map_or(0, |last| self.tuner.wait(self.next - last.first, self.cut_at - last.first))
    }

    /// The first value that may be named.
    fn window_start(&self) -> u64 {
        self.floor.max(self.next.saturating_sub(self.keep_alive))
    }

    /// Lets go what left the window.
    #[cold]
    fn prune(&mut self, released: &mut Vec<ChunkId>) {
        let start = self.window_start();
        while self.segments.front().and_then(Segment::end).is_some_and(|end| end <= start) {
            let Some(segment) = self.segments.pop_front() else { break };
            let number = self.first_segment;
            self.first_segment += 1;
            if segment.named > 0 {
                self.pinned.insert(number, segment);
            } else {
                self.retire(&segment, released);
            }
        }
        while self.runs.get(1).is_some_and(|run| run.value <= start) {
            self.runs.pop_front();
        }
        self.schedule();
    }

    fn schedule(&mut self) {
        let end = self.segments.front().and_then(Segment::end);
        self.prune_at = end.map_or(u64::MAX, |end| end.saturating_add(self.keep_alive));
    }

    fn retire(&mut self, segment: &Segment, released: &mut Vec<ChunkId>) {
        if let Some(id) = segment.id {
            released.push(id);
            self.tuner.retired(u64::from(segment.unused()) * self.step_bytes as u64);
        }
    }

    /// Forgets all steps. The items that name values of the open segment must have had it cut.
    pub fn clear(&mut self, released: &mut Vec<ChunkId>) {
        if self.segments.back().is_some_and(|last| last.chunk.is_none()) {
            self.segments.pop_back();
            self.buffer.clear();
        }
        (self.cut_at, self.floor) = (self.next, self.next);
        self.runs.clear();
        self.prune(released);
    }

    /// A segment that is in the window or named.
    pub fn segment_mut(&mut self, number: u64) -> &mut Segment {
        find(&mut self.segments, &mut self.pinned, self.first_segment, number)
    }

    /// As [`segment_mut`](Self::segment_mut), with what chooses the form of its chunk.
    pub fn segment_and_chooser(&mut self, number: u64) -> (&mut Segment, &mut Chooser) {
        let segment = find(&mut self.segments, &mut self.pinned, self.first_segment, number);
        (segment, &mut self.chooser)
    }

    /// Takes back one slice's name of a segment, once it and those up to `reach` values later were handed over.
    pub fn unname(&mut self, part: Part, reach: u32, released: &mut Vec<ChunkId>) {
        let segment = self.segment_mut(part.segment);
        segment.note_used(part.offset, part.len + reach);
        segment.named -= 1;
        if segment.named == 0
            && let Some(segment) = self.pinned.remove(&part.segment)
        {
            self.retire(&segment, released);
        }
    }

    /// The values of consecutive steps: their first number.
    pub fn locate(&self, first: u64, len: u32) -> Result<u64, WriterError> {
        self.find(first, len).map_err(|missing| {
            let path = self.path.clone();
            match missing {
                Missing::Gone => {
                    WriterError::Gone { path, step: first, keep_alive: self.keep_alive }
                }
                Missing::Absent(step) => WriterError::Absent { path, step },
            }
        })
    }

    /// [`locate`](Self::locate) with an error that costs nothing.
    pub fn find(&self, first: u64, len: u32) -> Result<u64, Missing> {
        let mut end = self.next;
        let mut found = self.runs.back().filter(|run| run.step <= first);
        if found.is_none() {
            // Most items name the latest steps, which are in the last run; these are not.
            let after = self.runs.partition_point(|run| run.step <= first);
            end = self.runs.get(after).map_or(self.next, |run| run.value);
            found = after.checked_sub(1).and_then(|index| self.runs.get(index));
        }
        let run = found.ok_or(Missing::Gone)?;
        let offset = first - run.step;
        if offset.checked_add(len.into()).is_none_or(|need| need > end - run.value) {
            return Err(Missing::Absent(first.max(run.step + (end - run.value))));
        }
        let value = run.value + offset;
        if value < self.window_start() { Err(Missing::Gone) } else { Ok(value) }
    }

    /// Calls `each` with the parts of segments that have these values.
    pub fn parts(&self, mut value: u64, len: u32, mut each: impl FnMut(Part)) {
        let mut left = u64::from(len);
        let mut index = self.index(value);
        while left > 0 {
            let Some(segment) = self.segments.get(index) else { return };
            let end = segment.end().unwrap_or(self.next);
            let run = left.min(end - value);
            let number = self.first_segment + index as u64;
            let offset = (value - segment.first) as u32;
            each(Part { segment: number, offset, len: run as u32 });
            (value, left, index) = (value + run, left - run, index + 1);
        }
    }

    /// Which of `segments` has a value.
    fn index(&self, value: u64) -> usize {
        match self.segments.back() {
            Some(last) if last.first <= value => self.segments.len() - 1,
            _ => self.segments.partition_point(|segment| segment.first <= value).saturating_sub(1),
        }
    }

    /// Copies a value of the window.
    pub fn read(&self, value: u64, to: &mut [u8]) {
        let Some(segment) = self.segments.get(self.index(value)) else { return };
        let offset = value - segment.first;
        match segment.values() {
            Some(chunk) => chunk.copy_to(offset as u32, to),
            None => {
                let start = offset as usize * self.step_bytes;
                to.copy_from_slice(&self.buffer[start..start + self.step_bytes]);
            }
        }
    }

    /// The steps that may be named, oldest first.
    pub fn history(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let start = self.window_start();
        let ends = self.runs.iter().skip(1).map(|run| run.value).chain([self.next]);
        self.runs.iter().zip(ends).filter_map(move |(run, end)| {
            let first = start.max(run.value);
            (first < end).then(|| run.step + (first - run.value)..run.step + (end - run.value))
        })
    }

    /// The last of [`history`](Self::history), if there is any.
    pub fn last_run(&self) -> Option<std::ops::Range<u64>> {
        let (start, run) = (self.window_start(), self.runs.back()?);
        let first = start.max(run.value);
        (first < self.next)
            .then(|| run.step + (first - run.value)..run.step + (self.next - run.value))
    }

    /// Bytes of all values that it holds, and of their other forms.
    pub fn held_bytes(&self) -> usize {
        let segments = self.segments.iter().chain(self.pinned.values());
        self.buffer.capacity() + segments.map(Segment::held_bytes).sum::<usize>()
    }
}

/// A segment that is in the window, of which the first has number `first`, or pinned.
fn find<'a>(
    segments: &'a mut VecDeque<Segment>,
    pinned: &'a mut BTreeMap<u64, Segment>,
    first: u64,
    number: u64,
) -> &'a mut Segment {
    let segment = match number.checked_sub(first) {
        Some(index) => segments.get_mut(index as usize),
        None => pinned.get_mut(&number),
    };
    segment.expect("a named segment is kept")
}

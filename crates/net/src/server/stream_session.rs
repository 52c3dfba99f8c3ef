//! From the bytes of data frames into the ring.
//!
//! Samples lie in a frame one after the other, their leaves in the order of the columns. An
//! [`StreamSession`] takes bytes as they come, whole samples or not, and stores every sample as soon as it is
//! complete. It reserves slots only for samples whose bytes are all there, so a client that stops in
//! the middle of one keeps nobody waiting.

use std::io::{self, IoSliceMut};

use echoic_replay::{Blocked, Incoming, Stream, StreamError};

use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::DataHead;

/// From this size on samples are read from the socket into the ring itself. Below, the system call
/// would get too many small pieces, and the copy stays in the cache.
const DIRECT_BYTES: usize = 4096;
/// The most pieces that one system call reads into: below the limit of every system.
const MAX_PIECES: usize = 1000;

/// What keeps a sample out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It may pass later.
    Blocked(Blocked),
    /// The stream is closed.
    Closed,
}

/// The samples of one connection.
#[derive(Debug)]
pub(crate) struct StreamSession {
    /// Sequence number of the first sample that is not stored.
    pub(crate) next: u64,
    /// Sequence number of the first sample that may not come yet.
    pub(crate) limit: u64,
    /// Samples of the current frame that have not been passed on.
    left: u32,
    /// How many of these are stored already, from another connection.
    skip: u64,
    /// Bytes of a sample that is not complete: the first `partial_len` of `partial`.
    partial: Vec<u8>,
    partial_len: usize,
    /// Samples dropped because they were stored already.
    pub(crate) duplicates: u64,
}

/// What became of some bytes.
#[derive(Debug)]
pub(crate) struct Fed {
    /// How many were used.
    pub(crate) used: usize,
    /// Why not all of the current frame, if so.
    pub(crate) obstacle: Option<Obstacle>,
}

impl StreamSession {
    pub(crate) fn new(next: u64, limit: u64) -> Self {
        let (partial, duplicates) = (Vec::new(), 0);
        Self { next, limit, left: 0, skip: 0, partial, partial_len: 0, duplicates }
    }

    /// Gives up memory that is only of use while samples come.
    pub(crate) fn rest(&mut self) {
        if self.partial_len == 0 {
            self.partial = Vec::new();
        }
    }

    /// Whether the next bytes belong to a data frame.
    pub(crate) fn in_frame(&self) -> bool {
        self.left > 0
    }

    /// Whether a complete sample waits for room.
    pub(crate) fn is_complete(&self, stream: &Stream) -> bool {
        self.partial_len > 0 && self.partial_len == stream.spec().nbytes()
    }

    /// Begins a data frame.
    pub(crate) fn begin(&mut self, head: DataHead) -> Result<(), WireError> {
        if head.first > self.next {
            let (expected, got) = (self.next, head.first);
            return Err(WireError::Sequence { field: "first sample", expected, got });
        }
        let end = head.first.saturating_add(head.count.into());
        if end > self.limit {
            let (expected, got) = (self.limit, end);
            return Err(WireError::Sequence { field: "samples within the credit", expected, got });
        }
        self.left = head.count;
        self.skip = (self.next - head.first).min(head.count.into());
        Ok(())
    }

    /// Takes bytes of the current frame.
    pub(crate) fn feed(&mut self, stream: &Stream, bytes: &[u8]) -> Fed {
        let sample = stream.spec().nbytes();
        let mut used = 0;
        while self.left > 0 {
            let rest = &bytes[used..];
            if self.partial_len > 0 {
                let taken = self.extend_partial(rest, sample);
                used += taken;
                if self.partial_len < sample {
                    break;
                }
                if let Err(obstacle) = self.store_partial(stream) {
                    return Fed { used, obstacle: Some(obstacle) };
                }
                continue;
            }
            let whole = rest.len().checked_div(sample).unwrap_or(usize::MAX);
            let samples = whole.min(self.left as usize);
            if samples == 0 {
                // An incomplete sample: keep what there is of it.
                used += self.extend_partial(rest, sample);
                break;
            }
            let (passed, obstacle) = self.pass(stream, &rest[..samples * sample], samples);
            used += passed * sample;
            if obstacle.is_some() {
                return Fed { used, obstacle };
            }
        }
        Fed { used, obstacle: None }
    }

    /// Passes whole samples on: how many, and what stopped the next.
    fn pass(&mut self, stream: &Stream, rows: &[u8], samples: usize) -> (usize, Option<Obstacle>) {
        let sample = stream.spec().nbytes();
        let skipped = (self.skip as usize).min(samples);
        self.skip -= skipped as u64;
        self.duplicates += skipped as u64;
        self.left -= skipped as u32;
        let mut passed = skipped;
        while passed < samples {
            let mut incoming = match reserve(stream, samples - passed) {
                Ok(incoming) => incoming,
                Err(obstacle) => return (passed, Some(obstacle)),
            };
            let stored = incoming.len();
            let from = &rows[passed * sample..][..stored * sample];
            scatter(&mut incoming, from, stream.spec().leaf_bytes(), sample);
            incoming.commit();
            passed += stored;
            self.count(stored);
        }
        (passed, None)
    }

    fn count(&mut self, stored: usize) {
        self.next += stored as u64;
        self.left -= stored as u32;
    }

    fn extend_partial(&mut self, bytes: &[u8], sample: usize) -> usize {
        let taken = bytes.len().min(sample - self.partial_len);
        if taken > 0 {
            self.partial.resize(sample, 0);
            self.partial[self.partial_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.partial_len += taken;
        }
        taken
    }

    fn store_partial(&mut self, stream: &Stream) -> Result<(), Obstacle> {
        let row = std::mem::take(&mut self.partial);
        let (passed, obstacle) = self.pass(stream, &row, 1);
        self.partial = row;
        if passed == 1 {
            self.partial_len = 0;
        }
        obstacle.map_or(Ok(()), Err)
    }

    /// Reads from the socket, large samples straight into the ring, and what follows into `rest`.
    /// Returns how many bytes were read in all, and how many of them are in `rest`.
    ///
    /// `None` when there is nothing to be gained, and nothing was read.
    pub(crate) fn read_direct(
        &mut self,
        stream: &Stream,
        link: &mut dyn Link,
        rest: &mut [u8],
    ) -> Option<Result<io::Result<(usize, usize)>, Obstacle>> {
        let sample = stream.spec().nbytes();
        let leaves = stream.spec().leaf_bytes();
        if sample < DIRECT_BYTES || self.left == 0 || self.skip > 0 || leaves.len() >= MAX_PIECES {
            return None;
        }
        let available = link.available()?;
        let fitting = available / sample;
        if self.partial_len > 0 || fitting == 0 {
            return Some(self.read_partial(stream, link, rest, sample, available));
        }
        // What follows goes through a buffer, so not much of it: the next read is direct again.
        let tail = rest.len().min(sample);
        let rest = &mut rest[..tail];
        let samples = fitting.min(self.left as usize).min((MAX_PIECES / leaves.len()).max(1));
        let mut incoming = match reserve(stream, samples) {
            Ok(incoming) => incoming,
            Err(obstacle) => return Some(Err(obstacle)),
        };
        let samples = incoming.len();
        let read = {
            let mut pieces = pieces(&mut incoming, leaves, samples);
            pieces.push(IoSliceMut::new(rest));
            link.read_vectored(&mut pieces)
        };
        let wanted = samples * sample;
        match read {
            Ok(read) if read >= wanted => {
                incoming.commit();
                self.count(samples);
                Some(Ok(Ok((read, read - wanted))))
            }
            // The socket had less than it said. The slots go back as they are.
            Ok(read) => {
                let mut rows = Vec::with_capacity(wanted);
                for piece in pieces(&mut incoming, leaves, samples) {
                    rows.extend_from_slice(&piece);
                }
                drop(incoming);
                rows.truncate(read);
                let fed = self.feed(stream, &rows);
                // Some samples may have found no room any more: they are few, and they fit.
                let unused = &rows[fed.used..];
                if unused.len() > rest.len() {
                    return Some(Ok(Err(io::Error::other("a socket lost bytes"))));
                }
                rest[..unused.len()].copy_from_slice(unused);
                Some(Ok(Ok((read, unused.len()))))
            }
            Err(error) => Some(Ok(Err(error))),
        }
    }

    /// Reads the rest of an incomplete sample into its place, and what follows into `rest`.
    fn read_partial(
        &mut self,
        stream: &Stream,
        link: &mut dyn Link,
        rest: &mut [u8],
        sample: usize,
        available: usize,
    ) -> Result<io::Result<(usize, usize)>, Obstacle> {
        if self.partial_len == sample {
            self.store_partial(stream)?;
        }
        self.partial.resize(sample, 0);
        let missing = sample - self.partial_len;
        if self.left == 0 {
            return Ok(link.read(rest).map(|read| (read, read)));
        }
        // If whole samples follow in this frame, the next read takes them straight into the ring.
        let more = self.left > 1 && available >= missing + sample;
        let rest = if more { &mut [] } else { rest };
        let mut pieces =
            [IoSliceMut::new(&mut self.partial[self.partial_len..]), IoSliceMut::new(rest)];
        let read = match link.read_vectored(&mut pieces) {
            Ok(read) => read,
            Err(error) => return Ok(Err(error)),
        };
        self.partial_len += read.min(missing);
        // A complete one is stored by the next `feed`, which also meets the obstacle if there is one.
        Ok(Ok((read, read.saturating_sub(missing))))
    }
}

fn reserve(stream: &Stream, samples: usize) -> Result<Incoming<'_>, Obstacle> {
    stream.try_reserve(samples).map_err(|error| match error {
        StreamError::TimedOut(reason) => Obstacle::Blocked(reason),
        _ => Obstacle::Closed,
    })
}

/// The memory of reserved samples in the order of the wire.
fn pieces<'a>(
    incoming: &'a mut Incoming<'_>,
    leaves: &[usize],
    samples: usize,
) -> Vec<IoSliceMut<'a>> {
    let columns = incoming.columns_mut().zip(leaves).filter(|(_, bytes)| **bytes > 0);
    let mut columns: Vec<_> =
        columns.map(|(column, bytes)| column.chunks_exact_mut(*bytes)).collect();
    let mut pieces = Vec::with_capacity(samples * columns.len() + 1);
    for _ in 0..samples {
        pieces.extend(columns.iter_mut().filter_map(Iterator::next).map(IoSliceMut::new));
    }
    pieces
}

/// Copies rows into columns.
fn scatter(incoming: &mut Incoming<'_>, rows: &[u8], leaves: &[usize], sample: usize) {
    let mut offset = 0;
    for (column, bytes) in incoming.columns_mut().zip(leaves) {
        match *bytes {
            0 => {}
            // The common sizes as constants: each copy is then one instruction, not a call.
            1 => scatter_leaf::<1>(column, rows, offset, sample),
            2 => scatter_leaf::<2>(column, rows, offset, sample),
            4 => scatter_leaf::<4>(column, rows, offset, sample),
            8 => scatter_leaf::<8>(column, rows, offset, sample),
            16 => scatter_leaf::<16>(column, rows, offset, sample),
            all if all == sample => column.copy_from_slice(rows),
            bytes => {
                for (to, row) in column.chunks_exact_mut(bytes).zip(rows.chunks_exact(sample)) {
                    to.copy_from_slice(&row[offset..offset + bytes]);
                }
            }
        }
        offset += bytes;
    }
}

fn scatter_leaf<const N: usize>(column: &mut [u8], rows: &[u8], offset: usize, sample: usize) {
    for (to, row) in column.chunks_exact_mut(N).zip(rows.chunks_exact(sample)) {
        to.copy_from_slice(&row[offset..offset + N]);
    }
}

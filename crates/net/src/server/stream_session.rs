//! From the bytes of data frames into the ring.
//!
//! Samples lie in a frame one after the other, their leaves in the order of the columns. A
//! [`StreamSession`] takes bytes as they come, whole samples or not, and stores every sample as soon as it is
//! complete. It reserves slots only for samples whose bytes are all there, so a client that stops in
//! the middle of one makes no other wait.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use echoic_replay::WaitReason;
use echoic_replay::table::Waiting;
use echoic_replay::{Incoming, Stream, StreamError};

use super::session::{Accepts, AckDue, Ending, Progress, Session, Stop, Turn};
use super::wait_queue::Key;
use crate::transport::Link;
use crate::wire::WireError;
use crate::wire::frame::{Control, DATA_BYTES, DataHead, Header, kind};
use crate::wire::handshake::ProducerId;

/// From this size on samples are read from the socket into the ring itself. Below, the system call
/// would get too many small pieces, and the copy stays in the cache.
const DIRECT_BYTES: usize = 4096;
/// The most pieces that one system call reads into: below the limit of every system.
const MAX_PIECES: usize = 1000;

/// The samples of one connection.
pub(crate) struct StreamSession {
    producer: ProducerId,
    stream: Arc<Stream>,
    /// Sequence number of the first sample that is not stored.
    next: u64,
    /// The same when it was last sent.
    acknowledged: u64,
    /// Sequence number of the first sample that may not come yet.
    limit: u64,
    /// Samples of the current frame that have not been passed on.
    left: u32,
    /// How many of these are stored already, from another connection.
    skip: u64,
    /// Bytes of a sample that is not complete: the first `partial_len` of `partial`.
    partial: Vec<u8>,
    partial_len: usize,
    /// Samples dropped because they were stored already.
    duplicates: u64,
    /// Counts it among those that wait, while its samples do.
    waiting: Option<Waiting>,
}

impl Session for StreamSession {
    fn accepts(&self, kind: u8) -> Result<Accepts, &'static str> {
        match kind {
            kind::DATA => Ok(Accepts::Start(DATA_BYTES as u32)),
            _ => Err("DATA, PING, PONG or GOODBYE"),
        }
    }

    fn frame(&mut self, header: Header, payload: &[u8], _turn: &mut Turn<'_>) -> Result<(), Stop> {
        let head = DataHead::read(header, payload, self.stream.spec().nbytes())?;
        Ok(self.begin(head)?)
    }

    fn is_inside_frame(&self) -> bool {
        self.left > 0
    }

    fn part(&mut self, bytes: &[u8], turn: &mut Turn<'_>) -> (usize, Result<(), Stop>) {
        let (next, duplicates) = (self.next, self.duplicates);
        let (used, fed) = self.feed(bytes);
        turn.count(self.next - next, self.duplicates - duplicates);
        (used, fed)
    }

    fn read_direct(
        &mut self,
        rest: &mut [u8],
        turn: &mut Turn<'_>,
    ) -> Result<Option<io::Result<(usize, usize)>>, Stop> {
        let before = self.next;
        let read = self.read_large(turn.link, rest);
        turn.count(self.next - before, 0);
        read
    }

    /// Once another one waits for room, nothing more is read. A complete sample that has waited is stored.
    fn resume(&mut self, turn: &mut Turn<'_>) -> Result<(), Stop> {
        if let Some(stall) = turn.waits.stall(Key::Stream) {
            return Err(Stop::Wait(Key::Stream, Some(stall)));
        }
        match self.partial_len > 0 && self.partial_len == self.stream.spec().nbytes() {
            true => self.part(&[], turn).1,
            false => Ok(()),
        }
    }

    fn acknowledge(&mut self, due: AckDue, stall: Option<WaitReason>, turn: &mut Turn<'_>) {
        let (credit, new) = (turn.shared.credit(), self.next - self.acknowledged);
        match due {
            AckDue::Much if new < (credit / 4).max(1) => return,
            AckDue::Any if new == 0 => return,
            AckDue::Always => {}
            // What is on its way stays within what was granted: a limit never falls.
            _ => self.limit = self.limit.max(self.next.saturating_add(credit)),
        }
        self.acknowledged = self.next;
        let (next, limit) = (self.next, self.limit);
        turn.out.write(|out| Control::Ack { next, limit, stall }.write(out));
    }

    fn progress(&self) -> Option<Progress> {
        Some(Progress { producer: self.producer, next: self.next, of_tables: false })
    }

    fn rest(&mut self) {
        if self.partial_len == 0 {
            self.partial = Vec::new();
        }
    }
}

impl StreamSession {
    pub(crate) fn new(producer: ProducerId, stream: Arc<Stream>, next: u64, limit: u64) -> Self {
        Self {
            producer,
            stream,
            next,
            acknowledged: next,
            limit,
            left: 0,
            skip: 0,
            partial: Vec::new(),
            partial_len: 0,
            duplicates: 0,
            waiting: None,
        }
    }

    /// Begins a data frame.
    fn begin(&mut self, head: DataHead) -> Result<(), WireError> {
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

    /// Takes bytes of the current frame: how many, and what keeps it from taking more.
    fn feed(&mut self, bytes: &[u8]) -> (usize, Result<(), Stop>) {
        let sample = self.stream.spec().nbytes();
        let mut used = 0;
        while self.left > 0 {
            let rest = &bytes[used..];
            if self.partial_len > 0 {
                let taken = self.extend_partial(rest, sample);
                used += taken;
                if self.partial_len < sample {
                    break;
                }
                if let Err(stop) = self.store_partial() {
                    return (used, Err(stop));
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
            let (passed, stop) = self.pass(&rest[..samples * sample], samples);
            used += passed * sample;
            if stop.is_err() {
                return (used, stop);
            }
        }
        (used, Ok(()))
    }

    /// Passes whole samples on: how many, and what stopped the next.
    fn pass(&mut self, rows: &[u8], samples: usize) -> (usize, Result<(), Stop>) {
        let stream = &*self.stream;
        let sample = stream.spec().nbytes();
        let skipped = (self.skip as usize).min(samples);
        self.skip -= skipped as u64;
        self.duplicates += skipped as u64;
        self.left -= skipped as u32;
        let mut passed = skipped;
        while passed < samples {
            let mut incoming = match reserve(stream, samples - passed, &mut self.waiting) {
                Ok(incoming) => incoming,
                Err(stop) => return (passed, Err(stop)),
            };
            let stored = incoming.len();
            let from = &rows[passed * sample..][..stored * sample];
            scatter(&mut incoming, from, stream.spec().leaf_bytes(), sample);
            incoming.commit();
            passed += stored;
            self.next += stored as u64;
            self.left -= stored as u32;
        }
        (passed, Ok(()))
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

    fn store_partial(&mut self) -> Result<(), Stop> {
        let row = std::mem::take(&mut self.partial);
        let (passed, stop) = self.pass(&row, 1);
        self.partial = row;
        if passed == 1 {
            self.partial_len = 0;
        }
        stop
    }

    /// Reads from the socket, large samples straight into the ring, and what follows into `rest`; see
    /// [`Session::read_direct`].
    fn read_large(
        &mut self,
        link: &mut dyn Link,
        rest: &mut [u8],
    ) -> Result<Option<io::Result<(usize, usize)>>, Stop> {
        let stream = &*self.stream;
        let (sample, leaves) = (stream.spec().nbytes(), stream.spec().leaf_bytes());
        if sample < DIRECT_BYTES || self.left == 0 || self.skip > 0 || leaves.len() >= MAX_PIECES {
            return Ok(None);
        }
        let Some(available) = link.available() else { return Ok(None) };
        let fitting = available / sample;
        if self.partial_len > 0 || fitting == 0 {
            return self.read_partial(link, rest, sample, available).map(Some);
        }
        // What follows goes through a buffer, so not much of it: the next read is direct again.
        let tail = rest.len().min(sample);
        let rest = &mut rest[..tail];
        let samples = fitting.min(self.left as usize).min((MAX_PIECES / leaves.len()).max(1));
        let mut incoming = reserve(stream, samples, &mut self.waiting)?;
        let samples = incoming.len();
        let read = {
            let mut pieces = pieces(&mut incoming, leaves, samples);
            pieces.push(IoSliceMut::new(rest));
            link.read_vectored(&mut pieces)
        };
        let wanted = samples * sample;
        Ok(Some(match read {
            Ok(read) if read >= wanted => {
                incoming.commit();
                self.next += samples as u64;
                self.left -= samples as u32;
                Ok((read, read - wanted))
            }
            // The socket had less than it said. The slots go back as they are.
            Ok(read) => {
                let mut rows = Vec::with_capacity(wanted);
                for piece in pieces(&mut incoming, leaves, samples) {
                    rows.extend_from_slice(&piece);
                }
                drop(incoming);
                rows.truncate(read);
                let (used, _) = self.feed(&rows);
                // Some samples may have found no room any more: they are few, and they fit.
                let unused = &rows[used..];
                if unused.len() > rest.len() {
                    return Ok(Some(Err(io::Error::other("a socket lost bytes"))));
                }
                rest[..unused.len()].copy_from_slice(unused);
                Ok((read, unused.len()))
            }
            Err(error) => Err(error),
        }))
    }

    /// Reads the rest of an incomplete sample into its place, and what follows into `rest`.
    fn read_partial(
        &mut self,
        link: &mut dyn Link,
        rest: &mut [u8],
        sample: usize,
        available: usize,
    ) -> Result<io::Result<(usize, usize)>, Stop> {
        if self.partial_len == sample {
            self.store_partial()?;
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

/// Room for samples, or what keeps them out, for which the client is counted among those that wait.
fn reserve<'a>(
    stream: &'a Stream,
    samples: usize,
    waiting: &mut Option<Waiting>,
) -> Result<Incoming<'a>, Stop> {
    let reserved = stream.try_reserve(samples).map_err(|error| match error {
        StreamError::TimedOut(reason) => Stop::Wait(Key::Stream, Some(reason)),
        // The server is closing: what was not stored stays with the client.
        _ => Stop::Ended(Ending::Gone),
    });
    match reserved {
        Ok(_) => *waiting = None,
        Err(_) => _ = waiting.get_or_insert_with(|| stream.begin_wait()),
    }
    reserved
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

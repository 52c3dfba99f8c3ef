//! What a client's I/O thread carries to a stream: the samples of its window.
//!
//! A sample that comes after a pause goes out at once; samples that come close together wait for each
//! other for at most the `linger` time, so that many of them share a system call, and so that whoever
//! sends them need not wake anybody.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use echoic_memory::window::Reader;

use super::io_thread::Pipeline;
use super::link::LinkError;
use super::{StreamSender, WakePolicy};
use crate::address::Address;
use crate::wire::WireError;
use crate::wire::frame::{
    Control, DATA_BYTES, DataHead, HEADER_BYTES, Header, kind, samples_per_frame,
};
use crate::wire::handshake::{Open, Purpose, Welcome};
use crate::write_buffer::WriteBuffer;

/// What one data frame should weigh at most: enough that its head costs nothing.
const FRAME_BYTES: usize = 1 << 20;
/// From this much on it is not worth waiting for more.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;

/// See the [module](self).
pub(super) struct Samples {
    shared: Arc<StreamSender>,
    reader: Reader,
    frame: Option<Frame>,
    /// Samples before this have been sent on this connection.
    sent: u64,
    /// Samples before this may be sent.
    limit: u64,
    /// When samples were last sent.
    last_carried: Option<Instant>,
}

/// A data frame that is being sent.
struct Frame {
    first: u64,
    count: u32,
    /// How many bytes of its rows are out.
    out: usize,
}

impl Frame {
    /// The number behind its last sample.
    fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// The number behind the last sample that is out as a whole.
    fn sent(&self, sample: usize) -> u64 {
        self.first + self.out.checked_div(sample).unwrap_or(0) as u64
    }
}

impl Samples {
    pub(super) fn new(shared: Arc<StreamSender>, reader: Reader) -> Self {
        Self { shared, reader, frame: None, sent: 0, limit: 0, last_carried: None }
    }

    /// Finds what was finished at last.
    pub(super) fn settle(&mut self) {
        self.reader.finished();
    }

    /// The window with what was not delivered.
    pub(super) fn into_reader(self) -> Reader {
        self.reader
    }

    fn sample(&self) -> usize {
        self.shared.spec.nbytes()
    }

    /// The next frame and its head.
    fn next_frame(&self) -> Option<(Frame, [u8; HEADER_BYTES + DATA_BYTES])> {
        let sample = self.sample();
        let ready = self.reader.known_finished().min(self.limit).saturating_sub(self.sent);
        let most = samples_per_frame(sample, FRAME_BYTES)?;
        let count = u32::try_from(ready).unwrap_or(u32::MAX).min(most);
        let head = DataHead { first: self.sent, count };
        let head = (count > 0).then(|| head.bytes(sample)).flatten()?;
        Some((Frame { first: self.sent, count, out: 0 }, head))
    }
}

impl Pipeline for Samples {
    fn open(&mut self, _address: &Address) -> Open {
        let first = self.shared.window.released();
        self.shared.reconnector.open(Purpose::Produce, first, Some(&self.shared.spec))
    }

    fn resume(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        let Welcome { next, limit, .. } = welcome;
        let (first, finished) = (self.shared.window.released(), self.reader.finished());
        if next < first || next > finished {
            let (field, expected) = ("next sample of the welcome", finished);
            return Err(WireError::Sequence { field, expected, got: next }.into());
        }
        self.reader.release(next);
        (self.frame, self.sent, self.limit, self.last_carried) = (None, next, limit, None);
        self.shared.sent.store(next, Ordering::Relaxed);
        Ok(())
    }

    fn is_delivered(&self) -> bool {
        self.shared.is_delivered()
    }

    fn acknowledged(&self) -> u64 {
        self.shared.window.released()
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let samples = self.reader.finished().min(self.limit).saturating_sub(self.sent);
        let shared = &self.shared;
        let enough = || samples.saturating_mul(self.sample() as u64) >= ENOUGH_BYTES as u64;
        let waited = || {
            self.last_carried.is_none_or(|carried| {
                now.duration_since(carried) >= shared.reconnector.options.linger
            })
        };
        samples > 0
            && (shared.urgent.load(Ordering::Acquire) > self.sent
                || shared.reconnector.is_closing()
                || enough()
                || waited())
    }

    fn await_ring(&mut self, now: Instant) -> Option<Instant> {
        if self.sent >= self.limit {
            return None;
        }
        let linger = self.shared.reconnector.options.linger;
        let since = self.last_carried.filter(|carried| now.duration_since(*carried) < linger);
        let wake_policy = if since.is_some() { WakePolicy::AtEnough } else { WakePolicy::AtOnce };
        self.shared.set_wake_policy(wake_policy);
        since?.checked_add(linger)
    }

    fn stop_ringing(&mut self) {
        self.shared.set_wake_policy(WakePolicy::Off);
    }

    fn fill(&mut self, out: &mut WriteBuffer) {
        if let Some((frame, head)) = self.next_frame() {
            out.write(|out| out.extend_from_slice(&head));
            self.frame = Some(frame);
        }
    }

    fn is_inside_frame(&self) -> bool {
        self.frame.is_some()
    }

    fn rows<'a>(&'a self, pieces: &mut Vec<IoSlice<'a>>) {
        let Some(frame) = &self.frame else { return };
        let sample = self.sample();
        // Rows that are out may be acknowledged, and then they are not ours to look at any more.
        let first = frame.sent(sample);
        let sent = (first - frame.first) as usize;
        let left = frame.count as usize - sent;
        let (count, rows) = self.reader.rows(first, left);
        pieces.push(IoSlice::new(&rows[frame.out - sent * sample..]));
        if count < left {
            pieces.push(IoSlice::new(self.reader.rows(first + count as u64, left - count).1));
        }
    }

    fn wrote(&mut self, bytes: usize, of_rows: usize, now: Instant) {
        let (sample, stats) = (self.sample(), &self.shared.stats);
        stats.writes.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(frame) = &mut self.frame else { return };
        frame.out += of_rows;
        if frame.out >= frame.count as usize * sample {
            self.sent = frame.end();
            self.frame = None;
            self.last_carried = Some(now);
            self.shared.sent.store(self.sent, Ordering::Relaxed);
        }
    }

    fn take(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        let (kind::ACK, Control::Ack { next, limit, stall }) =
            (header.kind, Control::read(header, payload)?)
        else {
            let (expected, got) = ("ACK, PING, PONG or GOODBYE", header.kind);
            return Err(WireError::Unexpected { expected, got }.into());
        };
        // Of a frame that is not all out, samples may be stored already.
        let out = self.frame.as_ref().map_or(self.sent, |frame| frame.sent(self.sample()));
        if next > out || limit < next {
            let (field, expected) = ("acknowledged sample", out);
            return Err(WireError::Sequence { field, expected, got: next }.into());
        }
        self.limit = self.limit.max(limit);
        self.shared.set_stall(stall);
        self.reader.release(next);
        Ok(())
    }
}

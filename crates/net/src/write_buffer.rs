//! What is to be sent over a connection: small frames one behind the other, and large ones where they are.
//!
//! Bytes leave in the order in which they came. A buffer takes what it is given, so a writer that gives it more asks
//! [`WriteBuffer::is_full`] before: nothing is read that would have to be answered, and nothing is loaded. Answers to
//! PINGs, which a peer can have us give without end, are bounded here.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::sync::Arc;

use crate::buffer_pool::{BufferPool, PooledBuffer};
use crate::wire::frame::{Control, MAX_CONTROL};

/// From this size on, a frame is sent from where it is.
const WHOLE: usize = 16 << 10;
/// From this size on, small frames go to the next piece.
const SMALL_PIECE: usize = 64 << 10;
/// What is larger is given back to the system when it is sent, which takes a while.
const HUGE: usize = 16 << 20;
/// The most pieces of one system call.
const PIECES: usize = 64;

/// Bytes that belong together.
pub(crate) enum Piece {
    Small(Vec<u8>),
    Pooled(PooledBuffer),
    /// Some of the bytes that others have, too.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("len", &self.bytes().len()).finish_non_exhaustive()
    }
}

impl Piece {
    /// What `write` appends.
    pub(crate) fn of(write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::new();
        write(&mut bytes);
        Self::Small(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Pooled(bytes) => bytes,
            Self::Shared(bytes, range) => &(**bytes).as_ref()[range.clone()],
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    pieces: VecDeque<Piece>,
    /// How much of the first piece is sent.
    sent: usize,
    /// How many bytes are not.
    unsent: usize,
    /// Huge buffers that are sent.
    spent: Vec<PooledBuffer>,
    /// A small piece that is sent, for the next one.
    emptied: Vec<u8>,
}

impl WriteBuffer {
    /// Adds what `write` appends.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.pieces.back(), Some(Piece::Small(bytes)) if bytes.len() < SMALL_PIECE) {
            self.pieces.push_back(Piece::Small(std::mem::take(&mut self.emptied)));
        }
        if let Some(Piece::Small(bytes)) = self.pieces.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.unsent += bytes.len() - before;
        }
    }

    /// Adds a frame.
    pub(crate) fn push(&mut self, frame: Piece) {
        let len = frame.bytes().len();
        if len < WHOLE && !matches!(frame, Piece::Pooled(_)) {
            return self.write(|out| out.extend_from_slice(frame.bytes()));
        }
        self.unsent += len;
        self.pieces.push_back(frame);
    }

    /// Answers a PING. With that much unsent, the peer gets bytes from us anyway.
    pub(crate) fn pong(&mut self, number: u64) {
        if !self.is_full(MAX_CONTROL as usize) {
            self.write(|out| Control::Pong(number).write(out));
        }
    }

    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent == 0
    }

    /// How many bytes are unsent.
    pub(crate) fn len(&self) -> usize {
        self.unsent
    }

    /// Whether this many bytes are unsent.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.unsent >= most
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives up memory that is only of use while much is sent.
    pub(crate) fn rest(&mut self) {
        if self.pieces.is_empty() {
            (self.pieces, self.emptied) = (VecDeque::new(), Vec::new());
        }
    }

    /// Has no part in bytes of others any more: what is unsent of them is copied.
    pub(crate) fn detach(&mut self, pool: &Arc<BufferPool>) {
        for piece in &mut self.pieces {
            if let Piece::Shared(..) = piece {
                *piece = Piece::Pooled(pool.take_with(&[], piece.bytes()));
            }
        }
    }

    /// Huge buffers that are sent, to be freed by a thread that has the time.
    pub(crate) fn take_spent(&mut self) -> Vec<PooledBuffer> {
        std::mem::take(&mut self.spent)
    }

    /// Sends what a link takes, up to `most` bytes; how many that were.
    ///
    /// # Errors
    ///
    /// As the link says, but for `WouldBlock`.
    pub(crate) fn send(
        &mut self,
        link: &mut (impl Write + ?Sized),
        most: usize,
    ) -> io::Result<usize> {
        let mut bytes = 0;
        while self.unsent > 0 && bytes < most {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let next = self.slices(most - bytes);
            let count = slices.iter_mut().zip(next).map(|(slice, next)| *slice = next).count();
            match link.write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.wrote(sent);
                    bytes += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// What is to be sent with the next system call, up to `most` bytes.
    pub(crate) fn slices(&self, mut most: usize) -> impl Iterator<Item = IoSlice<'_>> {
        let mut skip = self.sent;
        self.pieces.iter().take(PIECES).map(move |piece| {
            let bytes = &piece.bytes()[std::mem::take(&mut skip)..];
            let part = &bytes[..bytes.len().min(most)];
            most -= part.len();
            IoSlice::new(part)
        })
    }

    /// So many bytes of the slices are sent.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.unsent -= bytes;
        self.sent += bytes;
        while let Some(first) = self.pieces.front()
            && self.sent >= first.bytes().len()
        {
            self.sent -= first.bytes().len();
            match self.pieces.pop_front() {
                Some(Piece::Pooled(buffer)) if buffer.len() >= HUGE => self.spent.push(buffer),
                Some(Piece::Small(mut bytes)) if bytes.capacity() <= 2 * SMALL_PIECE => {
                    bytes.clear();
                    self.emptied = bytes;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer_pool::BufferPool;

    /// Takes as many bytes as is said for this turn, if any.
    struct Link {
        turns: std::iter::Cycle<std::vec::IntoIter<Option<usize>>>,
        got: Vec<u8>,
    }

    impl Write for Link {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let most = self.turns.next().flatten().ok_or(io::ErrorKind::WouldBlock)?;
            let before = self.got.len();
            self.got.extend(slices.iter().flat_map(|slice| slice.iter()).take(most));
            Ok(self.got.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn bytes_leave_in_the_order_in_which_they_came_whatever_the_link_takes(
            frames in prop::collection::vec((0..4u8, 1..3 * WHOLE, 0..2usize), 1..40),
            mut turns in prop::collection::vec(prop::option::weighted(0.8, 1..5 * WHOLE), 1..10),
            most in 1..4 * WHOLE,
        ) {
            // A link that never takes anything would keep us for ever.
            turns.push(Some(1000));
            let mut link = Link { turns: turns.into_iter().cycle(), got: Vec::new() };
            let (pool, mut out) = (BufferPool::new(1 << 20), WriteBuffer::default());
            let mut all = Vec::new();
            for (byte, (form, len, sends)) in (0..).zip(frames) {
                let frame = vec![byte; len];
                all.extend_from_slice(&frame);
                match form {
                    0 => out.write(|out| out.extend_from_slice(&frame)),
                    1 => out.push(Piece::Small(frame)),
                    2 => {
                        let around = [&frame[..1], &frame, &frame[..1]].concat();
                        out.push(Piece::Shared(Arc::new(around), 1..1 + len));
                    }
                    _ => out.push(Piece::Pooled(pool.take_with(&frame[..1], &frame[1..]))),
                }
                if len % 3 == 0 {
                    out.detach(&pool);
                }
                for _ in 0..sends {
                    prop_assert!(out.send(&mut link, most).unwrap() <= most);
                }
                prop_assert_eq!(out.unsent, all.len() - link.got.len());
            }
            while !out.is_empty() {
                out.send(&mut link, most).unwrap();
            }
            prop_assert!(link.got == all);
        }
    }

    #[test]
    fn who_asks_without_end_whether_we_are_there_gets_no_more_memory() {
        let mut out = WriteBuffer::default();
        (0..10_000).for_each(|number| out.pong(number));
        assert!(out.unsent < 2 * MAX_CONTROL as usize, "{} bytes", out.unsent);
        let frame = out.slices(usize::MAX).next().unwrap().len();
        out.wrote(frame);
        out.pong(1);
        assert!(!out.is_empty(), "when it has read, it is answered");
    }
}

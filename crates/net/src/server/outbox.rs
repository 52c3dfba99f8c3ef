//! What is to be sent over a connection: small frames one behind the other, and large ones that were
//! gathered into buffers of their own.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use crate::buffer_pool::PooledBuffer;
use crate::transport::Link;

/// From this size on, small frames go to the next piece.
const SMALL_PIECE: usize = 64 << 10;
/// How much is sent before others have their turn: a client that reads as fast as we write would never end it.
const TURN: usize = 2 << 20;
/// What is larger is given back to the system when it is sent, which takes a while.
const LARGE: usize = 16 << 20;
/// The most pieces of one system call.
const PIECES: usize = 16;

#[derive(Debug)]
enum Piece {
    Small(Vec<u8>),
    Large(PooledBuffer),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// How much of the first piece is sent.
    sent: usize,
    /// How many bytes are not.
    unsent: usize,
    /// Large buffers that are sent.
    spent: Vec<PooledBuffer>,
}

impl Outbox {
    /// Queues what `write` appends.
    pub(crate) fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.pieces.back(), Some(Piece::Small(bytes)) if bytes.len() < SMALL_PIECE) {
            self.pieces.push_back(Piece::Small(Vec::new()));
        }
        if let Some(Piece::Small(bytes)) = self.pieces.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.unsent += bytes.len() - before;
        }
    }

    /// Queues a buffer.
    pub(crate) fn push(&mut self, frame: PooledBuffer) {
        self.unsent += frame.len();
        self.pieces.push_back(Piece::Large(frame));
    }

    /// How many bytes are not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Gives up memory that is only of use while much is sent.
    pub(crate) fn rest(&mut self) {
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }

    /// Large buffers that are sent, to be let go of by somebody who has the time.
    pub(crate) fn take_spent(&mut self) -> Vec<PooledBuffer> {
        std::mem::take(&mut self.spent)
    }

    /// Sends what the link takes, up to a turn's worth; whether that was anything, and whether the link may take more.
    ///
    /// # Errors
    ///
    /// As the link says, but for `WouldBlock`.
    pub(crate) fn send(&mut self, link: &mut dyn Link) -> io::Result<(bool, bool)> {
        let before = self.unsent;
        while self.unsent > 0 {
            let mut left = (TURN + self.unsent).saturating_sub(before);
            if left == 0 {
                return Ok((true, true));
            }
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut skipped = self.sent;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let bytes = &piece.bytes()[std::mem::take(&mut skipped)..];
                let part = &bytes[..bytes.len().min(left)];
                left -= part.len();
                *slice = IoSlice::new(part);
            }
            match link.write_vectored(&slices[..self.pieces.len().min(PIECES)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.forget(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok((self.unsent < before, false))
    }

    /// Drops the pieces that are sent.
    fn forget(&mut self, sent: usize) {
        self.unsent -= sent;
        self.sent += sent;
        while let Some(first) = self.pieces.front()
            && self.sent >= first.bytes().len()
        {
            self.sent -= first.bytes().len();
            if let Some(Piece::Large(buffer)) = self.pieces.pop_front()
                && buffer.len() >= LARGE
            {
                self.spent.push(buffer);
            }
        }
    }
}

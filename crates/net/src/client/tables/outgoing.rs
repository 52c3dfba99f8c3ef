//! Requests on their way out: small ones one behind the other, large ones where they were made.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// From this size on, a frame is sent from where it is.
const LARGE: usize = 16 << 10;
/// The most pieces of one system call.
const PIECES: usize = 64;

#[derive(Debug)]
enum Piece {
    Small(Vec<u8>),
    Large(Arc<Vec<u8>>),
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
pub(super) struct Outgoing {
    pieces: VecDeque<Piece>,
    /// How much of the first piece is sent.
    sent: usize,
    /// How many bytes are not.
    unsent: usize,
    /// Whether the start of what is here is sent.
    is_begun: bool,
}

impl Outgoing {
    /// Adds what `write` appends.
    pub(super) fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.pieces.back(), Some(Piece::Small(_))) {
            self.pieces.push_back(Piece::Small(Vec::new()));
        }
        if let Some(Piece::Small(bytes)) = self.pieces.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.unsent += bytes.len() - before;
        }
    }

    /// Adds a frame.
    pub(super) fn push(&mut self, frame: &Arc<Vec<u8>>) {
        if frame.len() < LARGE {
            return self.say(|out| out.extend_from_slice(frame));
        }
        self.unsent += frame.len();
        self.pieces.push_back(Piece::Large(Arc::clone(frame)));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many bytes are not sent.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whether a part of it is sent, and more is to come.
    pub(super) fn is_inside(&self) -> bool {
        self.is_begun && self.unsent > 0
    }

    pub(super) fn slices<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) {
        let mut skip = self.sent;
        for piece in self.pieces.iter().take(PIECES) {
            slices.push(IoSlice::new(piece.bytes().get(skip..).unwrap_or_default()));
            skip = 0;
        }
    }

    /// So many bytes of the slices are sent.
    pub(super) fn forget(&mut self, sent: usize) {
        self.unsent -= sent;
        self.sent += sent;
        self.is_begun = self.unsent > 0 && (self.is_begun || sent > 0);
        while let Some(first) = self.pieces.front()
            && self.sent >= first.bytes().len()
        {
            self.sent -= first.bytes().len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_in_any_steps_is_all_of_it_in_order() {
        let large: Vec<u8> = (0..LARGE + 5).map(|at| at as u8).collect();
        let frames = [vec![1; 3], large, vec![2; 4], vec![3; LARGE]].map(Arc::new);
        let whole: Vec<u8> = frames.iter().flat_map(|frame| frame.iter().copied()).collect();
        for step in [1, 7, 5000, usize::MAX] {
            let mut out = Outgoing::default();
            frames.iter().for_each(|frame| out.push(frame));
            let mut got = Vec::new();
            assert!(!out.is_inside());
            while out.unsent() > 0 {
                let mut slices = Vec::new();
                out.slices(&mut slices);
                let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                let sent = all.len().min(step);
                got.extend_from_slice(&all[..sent]);
                drop(slices);
                out.forget(sent);
                assert_eq!(out.is_inside(), out.unsent() > 0);
            }
            assert_eq!(got, whole);
        }
    }
}

//! The memory that the payload of an answer is in.

use std::ops::{Deref, DerefMut};

use echoic_memory::arena::AnswerBuffer;

use crate::buffer_pool::PooledBuffer;

/// Whose the memory is.
#[derive(Debug)]
pub(super) enum Payload {
    /// The client's.
    Pooled(PooledBuffer),
    /// The server's, which has written into it.
    Placed(AnswerBuffer),
}

impl Payload {
    /// Whether the server has written it where it is, into memory that is shared with it.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Placed(_))
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pooled(bytes) => bytes,
            Self::Placed(bytes) => bytes,
        }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pooled(bytes) => bytes,
            Self::Placed(bytes) => bytes,
        }
    }
}

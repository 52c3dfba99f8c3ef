//! Unread samples of a stream: into a checkpoint and back.

use std::time::{Duration, Instant};

use super::{Stream, StreamError};

/// For how long at most a producer that is writing a sample is waited for. To copy one takes
/// microseconds; one that takes longer was stopped.
const PATIENCE: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_micros(100);

/// Samples one after the other, each with its leaves in the order of the spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unread {
    /// How many.
    pub samples: usize,
    /// The bytes of all.
    pub bytes: Vec<u8>,
}

/// Why the samples of a stream can't be saved or brought back.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreadError {
    /// Some producer has stopped in the middle.
    #[error(
        "a producer has been writing one sample for more than {} ms; its process may be stopped",
        PATIENCE.as_millis()
    )]
    Busy,
    /// No memory for a copy.
    #[error("no memory for a copy of {0} bytes of unread samples")]
    Memory(usize),
    /// Not this many samples.
    #[error("{samples} samples of {sample} bytes each do not have {got} bytes")]
    Torn {
        /// How many they should be.
        samples: usize,
        /// Bytes of a sample.
        sample: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A smaller stream.
    #[error("{got} unread samples do not fit: the stream has room for {room}")]
    Room {
        /// Samples that fit.
        room: usize,
        /// Samples that came.
        got: usize,
    },
    /// The stream is in use.
    #[error("the stream has been used already: samples are brought back into a new one")]
    Used,
    /// The stream ended.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl Stream {
    /// Copies the unread samples, in order. Consumers wait while they are copied; producers
    /// go on.
    pub fn unread(&self) -> Result<Unread, UnreadError> {
        let leaf_bytes = self.spec.leaf_bytes();
        let most = self.room().saturating_mul(self.spec.nbytes());
        let mut unread = Unread::default();
        unread.bytes.try_reserve_exact(most).map_err(|_| UnreadError::Memory(most))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let read = self.store.read_unread(|samples, columns| {
                unread.samples += samples;
                for sample in 0..samples {
                    for (column, leaf) in columns.iter().zip(leaf_bytes) {
                        unread.bytes.extend_from_slice(&column[sample * leaf..(sample + 1) * leaf]);
                    }
                }
            });
            match read {
                Ok(()) => return Ok(unread),
                Err(_) if deadline <= Instant::now() => return Err(UnreadError::Busy),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    /// Stores samples that [`Stream::unread`] gave, all or none, in an unused stream.
    pub fn restore(&self, unread: &Unread) -> Result<(), UnreadError> {
        self.check_restore(unread.samples, unread.bytes.len())?;
        let (leaf_bytes, sample_bytes) = (self.spec.leaf_bytes(), self.spec.nbytes());
        let mut done = 0;
        while done < unread.samples {
            let mut incoming = self.try_reserve(unread.samples - done)?;
            let count = incoming.len();
            let mut start = done * sample_bytes;
            for (column, leaf) in incoming.columns_mut().zip(leaf_bytes) {
                for sample in 0..count {
                    let from = start + sample * sample_bytes;
                    column[sample * leaf..(sample + 1) * leaf]
                        .copy_from_slice(&unread.bytes[from..from + leaf]);
                }
                start += leaf;
            }
            incoming.commit();
            done += count;
        }
        Ok(())
    }

    /// Whether [`Stream::restore`] would store this many samples that have this many bytes.
    pub fn check_restore(&self, samples: usize, got: usize) -> Result<(), UnreadError> {
        let sample = self.spec.nbytes();
        if samples.checked_mul(sample) != Some(got) {
            return Err(UnreadError::Torn { samples, sample, got });
        }
        let room = self.room();
        if samples > room {
            return Err(UnreadError::Room { room, got: samples });
        }
        if self.is_closed() {
            return Err(StreamError::Closed.into());
        }
        if self.store.counts().committed > 0 {
            return Err(UnreadError::Used);
        }
        Ok(())
    }

    /// Samples that fit.
    fn room(&self) -> usize {
        self.store.buffers().saturating_mul(self.batch_size())
    }
}

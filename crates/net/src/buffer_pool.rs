//! Large buffers that are used again: to take their memory from the system each time, and to have it
//! zeroed, would cost as much as to fill them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use echoic_memory::sync::Mutex;

/// Buffers that are not in use.
#[derive(Debug)]
pub(crate) struct BufferPool {
    most: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The longest unused first.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// The last that is larger than all of these may be: the next batch has about its size.
    large: Vec<u8>,
}

/// A buffer, given back when dropped. Its bytes are whatever they were before, until they are written.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<BufferPool>,
}

impl BufferPool {
    /// Keeps up to `most` bytes, and one buffer that is larger.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, shelf: Mutex::default() })
    }

    /// A buffer of `len` bytes.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> PooledBuffer {
        let mut shelf = self.shelf.lock();
        // One that is far too large is left for larger requests.
        let fits = |buffer: &Vec<u8>| buffer.len() >= len && buffer.len() / 4 <= len;
        let bytes = shelf.buffers.iter().rposition(fits).map(|found| shelf.buffers.remove(found));
        shelf.bytes -= bytes.as_ref().map_or(0, Vec::len);
        let large = || fits(&shelf.large).then(|| std::mem::take(&mut shelf.large));
        let bytes = bytes.or_else(large);
        drop(shelf);
        let bytes = bytes.unwrap_or_else(|| vec![0; len]);
        PooledBuffer { bytes, len, home: Arc::clone(self) }
    }

    /// A buffer that has these bytes, one part behind the other.
    pub(crate) fn take_with(self: &Arc<Self>, head: &[u8], rest: &[u8]) -> PooledBuffer {
        let mut buffer = self.take(head.len() + rest.len());
        let (start, end) = buffer.split_at_mut(head.len());
        start.copy_from_slice(head);
        end.copy_from_slice(rest);
        buffer
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() {
            return;
        }
        if bytes.len() > self.home.most {
            let gone = std::mem::replace(&mut self.home.shelf.lock().large, bytes);
            return drop(gone);
        }
        // What has to go is freed when the lock is no longer held.
        let mut gone = Vec::new();
        let shelf = &mut *self.home.shelf.lock();
        while shelf.bytes + bytes.len() > self.home.most && !shelf.buffers.is_empty() {
            let oldest = shelf.buffers.remove(0);
            shelf.bytes -= oldest.len();
            gone.push(oldest);
        }
        shelf.bytes += bytes.len();
        shelf.buffers.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_by_who_needs_about_as_much() {
        let buffer_pool = BufferPool::new(1000);
        let mut first = buffer_pool.take(400);
        first.fill(7);
        drop(first);
        assert_eq!(buffer_pool.take(50).as_ref(), [0; 50], "it is far too large for that");
        assert_eq!(buffer_pool.take(300).as_ref(), [7; 300]);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let buffer_pool = BufferPool::new(1000);
        let pooled = [
            buffer_pool.take(400),
            buffer_pool.take(400),
            buffer_pool.take(400),
            buffer_pool.take(2000),
        ];
        drop(pooled);
        let shelf = buffer_pool.shelf.lock();
        assert_eq!((shelf.bytes, shelf.buffers.len(), shelf.large.len()), (800, 2, 2000));
    }

    #[test]
    fn one_buffer_that_is_larger_than_all_that_is_kept_is_used_again() {
        let buffer_pool = BufferPool::new(1000);
        let mut first = buffer_pool.take(2000);
        first.fill(7);
        drop((first, buffer_pool.take(100)));
        let again = buffer_pool.take(1500);
        assert_eq!(again.as_ref(), [7; 1500]);
        drop((again, buffer_pool.take(3000)));
        let shelf = buffer_pool.shelf.lock();
        assert_eq!((shelf.bytes, shelf.large.len()), (100, 3000), "the last, and no other");
    }
}

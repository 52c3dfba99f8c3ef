//! Values of many slices on their way to many places.
//!
//! Values of a chunk that is kept as it is are copied at once. Encoded chunks are decoded whole, and the
//! items of a batch share chunks: so their slices wait in [`Gather`] until all are known, and each chunk is
//! decoded once for all of them.

use std::sync::Arc;

use crate::chunk::SliceRef;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Gather<'a, 'b> {
    /// Slices of encoded chunks, and where their values go.
    encoded: Vec<(SliceRef<'a>, &'b mut [u8])>,
}

impl<'a, 'b> Gather<'a, 'b> {
    /// Copies the values of a slice, at the latest in [`finish`](Self::finish). `to` has their length.
    pub fn add(&mut self, slice: SliceRef<'a>, to: &'b mut [u8]) {
        match slice.chunk.values() {
            Some(_) => slice.chunk.copy_to(slice.offset, to),
            None => self.encoded.push((slice, to)),
        }
    }

    /// Copies what was not copied yet.
    pub fn finish(mut self) {
        self.encoded.sort_unstable_by_key(|(slice, _)| Arc::as_ptr(slice.chunk));
        let mut decoded = Vec::new();
        for slices in
            self.encoded.chunk_by_mut(|(one, _), (other, _)| Arc::ptr_eq(one.chunk, other.chunk))
        {
            if let [(slice, to)] = slices {
                slice.chunk.copy_to(slice.offset, to);
                continue;
            }
            let Some((first, _)) = slices.first() else { continue };
            let chunk = first.chunk;
            decoded.resize(chunk.raw_len(), 0);
            chunk.copy_to(0, &mut decoded);
            let step_bytes = chunk.raw_len() / chunk.len() as usize;
            for (slice, to) in slices {
                let start = slice.offset as usize * step_bytes;
                to.copy_from_slice(&decoded[start..start + to.len()]);
            }
        }
    }
}

//! Values of one column at consecutive steps: immutable, shared, perhaps encoded.
//!
//! A writer cuts what it appends into chunks, column by column; an item names slices of them. Chunks are
//! shared by reference count, between items and between tables, and are freed when the last item that
//! names them has gone.

use std::sync::Arc;

use crate::spec::{Dtype, Leaf};

/// What the values of a column are: dtype and shape of one step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ColumnKind {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of one step.
    pub shape: Vec<usize>,
}

impl ColumnKind {
    /// Bytes of one step; `None` when that is past what an address can hold.
    pub fn step_bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.itemsize(), |bytes, axis| bytes.checked_mul(*axis))
    }
}

impl From<&Leaf> for ColumnKind {
    fn from(leaf: &Leaf) -> Self {
        Self { dtype: leaf.dtype, shape: leaf.shape.clone() }
    }
}

/// Steps `offset .. offset + len` of a chunk.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Where the values are.
    pub chunk: Arc<Chunk>,
    /// The first step.
    pub offset: u32,
    /// How many steps.
    pub len: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Chunk {
    kind: Arc<ColumnKind>,
    len: u32,
    data: Box<[u8]>,
}

/// Bytes that make no chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// Give as many bytes as the steps have.
    #[error("{len} steps of {step} bytes are not {got} bytes")]
    Length {
        /// How many steps.
        len: u32,
        /// Bytes of a step.
        step: usize,
        /// Bytes given.
        got: usize,
    },
}

impl Chunk {
    /// A chunk of these bytes.
    ///
    /// # Errors
    ///
    /// [`ChunkError`].
    pub fn raw(kind: Arc<ColumnKind>, len: u32, data: Box<[u8]>) -> Result<Self, ChunkError> {
        let step = kind.step_bytes().unwrap_or(usize::MAX);
        if step.checked_mul(len as usize) != Some(data.len()) {
            return Err(ChunkError::Length { len, step, got: data.len() });
        }
        Ok(Self { kind, len, data })
    }

    /// What its values are.
    pub fn kind(&self) -> &Arc<ColumnKind> {
        &self.kind
    }

    /// How many steps it has: at least one.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies steps `offset ..` into `to`, whose length says how many.
    ///
    /// # Panics
    ///
    /// When there are no such steps.
    pub fn copy_to(&self, offset: u32, to: &mut [u8]) {
        let start = offset as usize * self.kind.step_bytes().unwrap_or(0);
        to.copy_from_slice(&self.data[start..start + to.len()]);
    }
}

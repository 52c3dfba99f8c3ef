//! A value that has its cache lines to itself.

use std::ops::Deref;

/// Keeps a cursor that many threads write apart from its neighbours.
///
/// 128 bytes and not 64: x86 prefetches lines in pairs, and some ARM cores have 128-byte lines.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(T);

impl<T> Padded<T> {
    /// Puts `value` on its own lines.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

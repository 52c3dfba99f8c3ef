//! A tree checked and taken apart, for whoever is to copy it.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::leaf::{ShapeRule, Source};
use crate::tree::Tree;

/// From this size on the GIL is released while bytes are copied. Below, taking it back could cost
/// more than the copy takes: up to a switch interval (5 ms) when another thread computes.
pub const DETACH_BYTES: usize = 256 << 10;

thread_local! {
    /// Reused by every call of a thread, so that none allocates.
    static SOURCES: RefCell<Vec<Source>> = const { RefCell::new(Vec::new()) };
}

/// Checks a tree and calls `store` with its sources, one per leaf; it is not called if a leaf is
/// wrong.
#[inline]
pub fn with_sources<S: ShapeRule>(
    tree: &Tree,
    value: &Bound<'_, PyAny>,
    shapes: &mut S,
    store: impl FnOnce(&[Source], &S) -> PyResult<()>,
    refused: impl FnOnce(&PyErr),
) -> PyResult<()> {
    // Taken out, not borrowed: converting a leaf runs Python, which may come here by itself.
    let mut sources = SOURCES.take();
    let result = match tree.gather(value, shapes, &mut sources) {
        Ok(()) => store(&sources, shapes),
        Err(error) => {
            refused(&error);
            Err(error)
        }
    };
    sources.clear();
    SOURCES.set(sources);
    result
}

/// Checks once more that no source has changed: see [`Source::recheck`].
#[inline]
pub fn recheck(py: Python<'_>, tree: &Tree, sources: &[Source]) -> PyResult<()> {
    sources.iter().try_for_each(|source| source.recheck(py, &tree.rules[source.leaf]))
}

//! How items become bytes, and bytes items again.

use std::sync::Arc;

use echoic_memory::sync::Mutex;
use echoic_replay::Episode;
use echoic_replay::chunk::{Chunk, Slice};
use echoic_replay::table::{Form, check_priorities};
use echoic_replay::trajectory::{Signature, Trajectory};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{OrRaise, spec_error, trajectory_error};
use crate::leaf::{Many, One, Source};
use crate::numbers::float_numbers;
use crate::sources::{recheck, with_sources};
use crate::structure;
use crate::tree::Tree;

/// A tree and what its leaves are called in chunks.
pub struct Known {
    pub tree: Tree,
    pub signature: Arc<Signature>,
}

/// How many forms of items a table knows at a time. Of one that it has forgotten, classes are lost.
const MAX_FORMS: usize = 64;

/// Forms of items, with the classes of their nodes. The one added or found last comes first.
#[derive(Default)]
pub struct Forms(Mutex<Vec<Arc<Known>>>);

impl Forms {
    fn find(&self, is_it: impl Fn(&Known) -> bool) -> Option<Arc<Known>> {
        let mut forms = self.0.lock();
        let at = forms.iter().position(|known| is_it(known))?;
        forms[..=at].rotate_right(1);
        forms.first().cloned()
    }

    fn add(&self, known: Arc<Known>) {
        let mut forms = self.0.lock();
        // Another of the same signature has other classes of the same names: the latest counts.
        let old = forms.iter().position(|other| other.signature == known.signature);
        let old = old.or((forms.len() == MAX_FORMS).then_some(MAX_FORMS - 1));
        let dropped = old.map(|old| forms.remove(old));
        forms.insert(0, known);
        drop(forms);
        // Without the lock: the end of a Python object may run Python.
        drop(dropped);
    }
}

/// What items of a table look like.
pub enum Shape {
    /// Every item is like the example.
    Rows {
        tree: Tree,
        /// Where each leaf starts in a row, and where the row ends.
        offsets: Vec<usize>,
    },
    /// Items of any form; here are those seen lately, the last one first.
    Chunks(Forms),
}

impl Shape {
    /// The shape of a table that was described.
    pub fn of(py: Python<'_>, form: &Form, structure: &str) -> PyResult<Self> {
        Ok(match form {
            Form::Rows(spec) => {
                let tree = structure::read(py, structure, spec.leaves().to_vec())?;
                Self::Rows { tree, offsets: offsets(spec) }
            }
            Form::Trajectories(_) => Self::Chunks(Forms::default()),
        })
    }

    /// Checks an item and calls the function for its form.
    pub fn with_one(
        &self,
        tree: &Bound<'_, PyAny>,
        row: impl FnOnce(&Items<'_>) -> PyResult<()>,
        trajectory: impl FnOnce(&Trajectory) -> PyResult<()>,
    ) -> PyResult<()> {
        match self {
            Self::Rows { tree: example, offsets } => with_sources(
                example,
                tree,
                &mut One,
                |sources, _| row(&Items { example, offsets, sources }),
                |_| {},
            ),
            Self::Chunks(forms) => trajectory(&Self::trajectory_of(forms, tree)?),
        }
    }

    /// Checks many items and their priorities, which are 1 when there are none, and calls `rows`.
    pub fn with_many(
        &self,
        tree: &Bound<'_, PyAny>,
        priorities: Option<&Bound<'_, PyAny>>,
        rows: impl FnOnce(&Items<'_>, &[f64]) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = tree.py();
        let Self::Rows { tree: example, offsets } = self else {
            return Err(spec_error(
                py,
                "extend() is for tables with a spec, whose items are all alike",
            ));
        };
        // Before the items are looked at: to read a sequence may run Python code.
        let priorities = priorities.map(float_numbers).transpose()?;
        let store = |sources: &[Source], shapes: &Many| {
            let count = shapes.rows.unwrap_or(0);
            let priorities = priorities.unwrap_or_else(|| vec![1.0; count]);
            if priorities.len() != count {
                let message = format!("{count} items and {} priorities", priorities.len());
                return Err(PyValueError::new_err(message));
            }
            check_priorities(&priorities).or_raise(py)?;
            rows(&Items { example, offsets, sources }, &priorities)
        };
        with_sources(example, tree, &mut Many::default(), store, |_| {})
    }

    /// A tree as a trajectory of chunks that have one step.
    fn trajectory_of(forms: &Forms, tree: &Bound<'_, PyAny>) -> PyResult<Trajectory> {
        let (known, chunks) = Self::chunks_of(forms, tree)?;
        let slice = |chunk| vec![Slice { chunk: Arc::new(chunk), offset: 0, len: 1 }];
        let columns = chunks.into_iter().map(slice).collect();
        let trajectory = Trajectory::new(Arc::clone(&known.signature), columns);
        trajectory.map_err(|error| trajectory_error(tree.py(), error.to_string()))
    }

    /// The leaves of a tree as chunks of one step.
    fn chunks_of(forms: &Forms, tree: &Bound<'_, PyAny>) -> PyResult<(Arc<Known>, Vec<Chunk>)> {
        let py = tree.py();
        if let Some(known) = forms.find(|_| true)
            && let Ok(chunks) = chunks(&known, tree)
        {
            return Ok((known, chunks));
        }
        let example = Tree::compile(tree, "")?;
        let squeezed = std::iter::repeat(true);
        let signature = Arc::new(structure::signature(py, &example, squeezed)?);
        let known = Arc::new(Known { tree: example, signature });
        forms.add(Arc::clone(&known));
        let chunks = chunks(&known, tree)?;
        Ok((known, chunks))
    }

    /// The tree of a signature.
    pub fn known(
        py: Python<'_>,
        forms: &Forms,
        signature: &Arc<Signature>,
    ) -> PyResult<Arc<Known>> {
        let same = |known: &Known| {
            Arc::ptr_eq(&known.signature, signature) || known.signature == *signature
        };
        if let Some(known) = forms.find(same) {
            return Ok(known);
        }
        let leaves = signature.columns.iter().map(|column| echoic_replay::Leaf {
            path: column.path.clone(),
            dtype: column.kind.dtype,
            shape: column.kind.shape.clone(),
        });
        let tree = structure::read(py, &signature.structure, leaves.collect())?;
        let known = Arc::new(Known { tree, signature: Arc::clone(signature) });
        forms.add(Arc::clone(&known));
        Ok(known)
    }
}

/// Where each leaf starts in a row, and where the row ends.
pub fn offsets(spec: &echoic_replay::Spec) -> Vec<usize> {
    let mut offsets = vec![0];
    offsets.extend(spec.leaf_bytes().iter().scan(0, |end, bytes| {
        *end += bytes;
        Some(*end)
    }));
    offsets
}

/// Checked items on their way into rows.
pub struct Items<'a> {
    example: &'a Tree,
    offsets: &'a [usize],
    sources: &'a [Source],
}

impl Items<'_> {
    /// Bytes of one item.
    pub fn row_bytes(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Checks once more that no source has changed: see [`Source::recheck`].
    pub fn recheck(&self, py: Python<'_>) -> PyResult<()> {
        recheck(py, self.example, self.sources)
    }

    /// Copies the items from `first` on into rows that lie one behind the other.
    ///
    /// # Safety
    ///
    /// There must be so many items, and [`Items::recheck`] must have succeeded since Python code could
    /// last run in this thread.
    pub unsafe fn copy_to(&self, first: usize, rows: &mut [u8]) {
        for source in self.sources {
            let start = self.offsets[source.leaf];
            let bytes = self.offsets[source.leaf + 1] - start;
            // SAFETY: `gather` accepted this value with the rule of this leaf, after a leading axis of
            // the number of items if there are many; the rest is the caller's promise.
            unsafe { source.copy_to_rows(first * bytes, bytes, rows, self.row_bytes(), start) };
        }
    }
}

fn chunks(known: &Known, tree: &Bound<'_, PyAny>) -> PyResult<Vec<Chunk>> {
    let mut chunks = Vec::with_capacity(known.tree.rules.len());
    // Nothing says that items that come one by one are of one episode.
    let episode = Some(Episode::fresh());
    with_sources(
        &known.tree,
        tree,
        &mut One,
        |sources, _| {
            recheck(tree.py(), &known.tree, sources)?;
            // They come in the order of the tree, and leaves are numbered with keys sorted.
            let mut sources: Vec<&Source> = sources.iter().collect();
            sources.sort_unstable_by_key(|source| source.leaf);
            for source in sources {
                let kind = &known.signature.columns[source.leaf].kind;
                let mut bytes = vec![0; kind.step_bytes().unwrap_or(0)];
                // SAFETY: `gather` accepted this value with the rule of this leaf, whose bytes are
                // those of a step, and it was rechecked just now.
                unsafe { source.copy_to(0, &mut bytes) };
                let chunk = Chunk::raw(Arc::new(kind.clone()), 1, bytes.into());
                let chunk = chunk.map_err(|error| spec_error(tree.py(), error.to_string()))?;
                chunks.push(chunk.of_episode(episode));
            }
            Ok(())
        },
        |_| {},
    )?;
    Ok(chunks)
}

//! How items become bytes, and bytes items again.

use std::sync::{Arc, Mutex, PoisonError};

use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::table::Form;
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use pyo3::prelude::*;

use crate::error::{spec_error, trajectory_error};
use crate::leaf::{One, Source};
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
        let mut forms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = forms.iter().position(|known| is_it(known))?;
        forms[..=at].rotate_right(1);
        forms.first().cloned()
    }

    fn add(&self, known: Arc<Known>) {
        let mut forms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        /// Where each leaf starts in a row.
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

    /// A tree as a trajectory of chunks that have one step.
    pub fn trajectory_of(forms: &Forms, tree: &Bound<'_, PyAny>) -> PyResult<Arc<Trajectory>> {
        let (known, chunks) = Self::chunks_of(forms, tree)?;
        let slice = |chunk| vec![Slice { chunk: Arc::new(chunk), offset: 0, len: 1 }];
        let columns = chunks.into_iter().map(slice).collect();
        let trajectory = Trajectory::new(Arc::clone(&known.signature), columns);
        let trajectory = trajectory.map_err(|error| trajectory_error(tree.py(), error.to_string()));
        trajectory.map(Arc::new)
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
        let signature = Arc::new(Signature {
            structure: structure::write(py, &example)?,
            columns: example
                .rules
                .iter()
                .map(|rule| Column {
                    path: rule.leaf.path.clone(),
                    kind: ColumnKind::from(&rule.leaf),
                    squeezed: true,
                })
                .collect(),
        });
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

/// Where each leaf starts in a row.
pub fn offsets(spec: &echoic_replay::Spec) -> Vec<usize> {
    let mut offset = 0;
    let starts = spec.leaf_bytes().iter().map(|bytes| {
        offset += bytes;
        offset - bytes
    });
    starts.collect()
}

fn chunks(known: &Known, tree: &Bound<'_, PyAny>) -> PyResult<Vec<Chunk>> {
    let mut chunks = Vec::with_capacity(known.tree.rules.len());
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
                chunks.push(chunk.map_err(|error| spec_error(tree.py(), error.to_string()))?);
            }
            Ok(())
        },
        |_| {},
    )?;
    Ok(chunks)
}

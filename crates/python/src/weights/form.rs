//! From a tree to the bytes of a publication builder, and trees from plans.

use std::sync::Arc;

use echoic_memory::sync::Mutex;
use echoic_net::wire::weights::check;
use echoic_replay::weights::{Plan, PublicationBuilder};
use echoic_replay::{Dtype, Leaf};
use pyo3::prelude::*;

use crate::dtype;
use crate::error::spec_error;
use crate::leaf::{One, Source};
use crate::sources::{DETACH_BYTES, recheck};
use crate::structure;
use crate::tree::Tree;

/// A tree and where its leaves lie.
pub struct Form {
    pub tree: Tree,
    pub plan: Arc<Plan>,
}

/// The form of what was published last: the next one is of the same, most likely.
#[derive(Default)]
pub struct LastForm(Mutex<Option<Arc<Form>>>);

impl LastForm {
    fn get(&self) -> Option<Arc<Form>> {
        self.0.lock().clone()
    }

    fn set(&self, form: &Arc<Form>) {
        let mut last = self.0.lock();
        let before = last.replace(Arc::clone(form));
        drop(last);
        // Without the lock: the end of a Python object may run Python.
        drop(before);
    }

    /// Checks a tree, and takes it apart.
    pub fn gather(&self, value: &Bound<'_, PyAny>) -> PyResult<(Arc<Form>, Vec<Source>)> {
        let py = value.py();
        let mut sources = Vec::new();
        if let Some(form) = self.get() {
            if form.tree.gather(value, &mut One, &mut sources).is_ok() {
                return Ok((form, sources));
            }
            sources.clear();
        }
        // Of another form than the last, which is allowed: it is told with the bytes.
        let tree = Tree::compile(value, "")?;
        let leaves = tree.rules.iter().map(|rule| rule.leaf.clone()).collect();
        let plan = Plan::new(structure::write(py, &tree)?, leaves);
        let plan = Arc::new(plan.map_err(|error| spec_error(py, error.to_string()))?);
        // Also of a store without listeners: it may be given one when it has weights already.
        check(&plan).map_err(|error| {
            spec_error(
                py,
                format!(
                    "the weights can't be published, since no other process could read them: {error}"
                ),
            )
        })?;
        tree.gather(value, &mut One, &mut sources)?;
        let form = Arc::new(Form { tree, plan });
        self.set(&form);
        Ok((form, sources))
    }

    /// The form of a plan, with the classes of its nodes where it was published here.
    pub fn of(&self, py: Python<'_>, plan: &Arc<Plan>) -> PyResult<Arc<Form>> {
        if let Some(form) = self.get()
            && (Arc::ptr_eq(&form.plan, plan) || form.plan == *plan)
        {
            return Ok(form);
        }
        let leaves = plan.spec().leaves().iter().map(|leaf| readable(py, leaf)).collect();
        let tree = structure::read(py, plan.structure(), leaves)?;
        let form = Arc::new(Form { tree, plan: Arc::clone(plan) });
        self.set(&form);
        Ok(form)
    }
}

/// A leaf as numpy can show it: where it does not know bfloat16, as the bits of the numbers.
fn readable(py: Python<'_>, leaf: &Leaf) -> Leaf {
    match leaf.dtype {
        Dtype::BFloat16 if dtype::to_numpy(py, leaf.dtype).is_err() => {
            Leaf { dtype: Dtype::UInt(2), ..leaf.clone() }
        }
        _ => leaf.clone(),
    }
}

/// Copies the leaves into a publication builder.
pub fn fill(
    py: Python<'_>,
    form: &Form,
    sources: &[Source],
    builder: &mut PublicationBuilder,
) -> PyResult<()> {
    recheck(py, &form.tree, sources)?;
    let large = form.plan.nbytes() >= DETACH_BYTES;
    let mut copy = || {
        for source in sources {
            // SAFETY: `gather` accepted this value with the rule of this leaf, whose bytes these are, and
            // it was rechecked just now.
            unsafe { source.copy_to(0, builder.leaf_mut(source.leaf)) };
        }
    };
    if large {
        py.detach(copy)
    } else {
        copy()
    }
    Ok(())
}

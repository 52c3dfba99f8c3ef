//! The form of a transition: its fields, the tree of each, and where their leaves lie in a row.
//!
//! A form is made of an example, one entry a field, or of two numbers: then everything is a vector of 32-bit
//! floats and is converted to that.

use std::cell::RefCell;
use std::ops::Range;

use echoic_buffers::Error as BufferError;
use echoic_buffers::RowLayout;
use echoic_buffers::transitions::Part;
use echoic_replay::{Dtype, Leaf};
use numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyString};

use crate::array::{self, Header};
use crate::columns::{Plan, view};
use crate::dtype;
use crate::error::{OrRaise, Raise, replay_error, spec_error};
use crate::leaf::{Cast, LeafRule, Many, One, ShapeRule, Source, display};
use crate::memory::{Arena, Memory};
use crate::tree::{Node, Tree};

thread_local! {
    /// Reused by every call of a thread, so that few allocate.
    static SOURCES: RefCell<Vec<Source>> = const { RefCell::new(Vec::new()) };
}

/// The fields that mean something here, in the order in which `push` takes them.
pub const NAMES: [&str; 6] = ["obs", "actions", "rewards", "terminated", "truncated", "next_obs"];

/// The fields that are in frames, where observations are stored once.
pub const OBSERVATIONS: [&str; 2] = ["obs", "next_obs"];

/// One field of a transition.
pub struct Field {
    pub name: Py<PyString>,
    pub text: String,
    pub tree: Tree,
    /// The number of its first leaf among those of all fields.
    pub first: usize,
    /// Whether it is one array or number: then numbers and lists of Python are converted, and a value of
    /// one element has the shape that the field has.
    single: bool,
    /// Whether flags and numbers of other dtypes are converted, too: always where everything is a vector of
    /// floats, and for a field that is one number.
    converts: bool,
    /// Whether everything is a vector of floats, to which integers are converted, too.
    wide: bool,
}

/// What a form does with values of other dtypes than its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Casting {
    Refused,
    /// They are cast in arrays of their own, for those who borrow the bytes of a value.
    Apart,
    /// They are cast in the copy into a row.
    InCopy,
}

impl Casting {
    /// As the setting `cast` says.
    pub fn of(cast: bool) -> Self {
        if cast { Self::InCopy } else { Self::Refused }
    }

    fn of_leaf(self, py: Python<'_>, leaf: Dtype) -> PyResult<Cast> {
        Ok(match (self, leaf) {
            (Self::Refused, _) => Cast::Refused,
            (Self::InCopy, Dtype::Float(4)) => Cast::InCopy(dtype::to_numpy(py, Dtype::Float(8))?),
            (Self::InCopy, Dtype::Float(8)) => Cast::InCopy(dtype::to_numpy(py, Dtype::Float(4))?),
            _ => Cast::Apart,
        })
    }
}

/// The error for settings that say no form, or two.
pub fn no_form() -> PyErr {
    PyTypeError::new_err("give either obs_dim and act_dim, or example= and neither of them")
}

/// How observations are made of frames.
pub struct FrameForm {
    pub layout: RowLayout,
    /// Frames of one observation.
    pub stack: usize,
}

/// See the [module](self).
pub struct Form {
    pub fields: Vec<Field>,
    /// Where leaves lie in a row: nowhere, without bytes, where they are in frames.
    pub layout: RowLayout,
    /// Where the leaves of an observation lie in a frame, where observations are stored once.
    pub frames: Option<FrameForm>,
    /// The widths of observations and actions, where everything is a vector of floats.
    pub widths: Option<(usize, usize)>,
    /// The same, also of an example that says so, where nothing but that has to be looked at.
    pub vectors: Option<(usize, usize)>,
    /// The field and the number in it of each leaf.
    leaves: Vec<(usize, usize)>,
    /// How many bytes each leaf has in a transition.
    bytes: Vec<usize>,
}

impl Form {
    /// Vectors of 32-bit floats of these widths.
    pub fn of_widths(
        py: Python<'_>,
        obs: usize,
        act: usize,
        shared: Option<Option<usize>>,
        casting: Casting,
    ) -> PyResult<Self> {
        let leaf = |name: &str, dtype, shape: &[usize]| -> PyResult<Tree> {
            let leaf = Leaf { path: name.to_owned(), dtype, shape: shape.to_vec() };
            Ok(Tree::from_parts(Node::Leaf(0), vec![LeafRule::from_leaf(py, leaf)?]))
        };
        let float = Dtype::Float(4);
        let trees = vec![
            leaf(NAMES[0], float, &[obs])?,
            leaf(NAMES[1], float, &[act])?,
            leaf(NAMES[2], float, &[])?,
            leaf(NAMES[3], Dtype::Bool, &[])?,
            leaf(NAMES[4], Dtype::Bool, &[])?,
            leaf(NAMES[5], float, &[obs])?,
        ];
        let names = NAMES.map(str::to_owned).into_iter();
        Self::new(py, names.zip(trees).collect(), Some((obs, act)), shared, casting)
    }

    /// The form that the settings of a buffer say; `None` if they say none.
    pub fn of_settings(
        py: Python<'_>,
        obs_dim: Option<i64>,
        act_dim: Option<i64>,
        example: Option<&Bound<'_, PyAny>>,
        shared: Option<Option<usize>>,
        casting: Casting,
    ) -> PyResult<Option<Self>> {
        match (obs_dim, act_dim, example) {
            (Some(obs), Some(act), None) => {
                let (obs, act) = (positive(py, "obs_dim", obs)?, positive(py, "act_dim", act)?);
                Self::of_widths(py, obs, act, shared, casting).map(Some)
            }
            (None, None, Some(example)) => Self::of_example(example, shared, casting).map(Some),
            (None, None, None) => Ok(None),
            _ => Err(no_form()),
        }
    }

    /// The form of an example: a dict with an entry for each field.
    ///
    /// `shared` says that observations are stored once, and of how many frames on their first axis each is.
    pub fn of_example(
        example: &Bound<'_, PyAny>,
        shared: Option<Option<usize>>,
        casting: Casting,
    ) -> PyResult<Self> {
        let py = example.py();
        let dict = example.cast::<PyDict>().map_err(|_| {
            let class = example.get_type().name().map_or("?".into(), |name| name.to_string());
            spec_error(
                py,
                format!(
                    "the example must be a dict with an entry for each field, such as 'obs', \
                     'actions' and 'rewards'; got a {class}"
                ),
            )
        })?;
        let mut trees = Vec::new();
        for name in NAMES {
            if let Some(value) = dict.get_item(name)? {
                trees.push((name.to_owned(), Tree::compile(&value, name)?));
            }
        }
        for (key, value) in dict.iter() {
            let name = key.cast::<PyString>().map_err(|_| {
                spec_error(py, "the fields of an example must have strings as names")
            })?;
            let name = name.to_str()?.to_owned();
            if !NAMES.contains(&&*name) {
                let tree = Tree::compile(&value, &name)?;
                trees.push((name, tree));
            }
        }
        for (_, tree) in &trees {
            tree.try_build(py, 1)?;
        }
        Self::new(py, trees, None, shared, casting)
    }

    /// The form of fields with these names.
    pub(super) fn new(
        py: Python<'_>,
        trees: Vec<(String, Tree)>,
        widths: Option<(usize, usize)>,
        shared: Option<Option<usize>>,
        casting: Casting,
    ) -> PyResult<Self> {
        // Observations that are stored once are compared as bytes first.
        let apart = shared.is_some() && casting == Casting::InCopy;
        let casting = if apart { Casting::Apart } else { casting };
        let mut fields = Vec::with_capacity(trees.len());
        let mut leaves = Vec::new();
        for (text, mut tree) in trees {
            for rule in &mut tree.rules {
                rule.cast = casting.of_leaf(py, rule.leaf.dtype)?;
            }
            let first = leaves.len();
            leaves.extend((0..tree.rules.len()).map(|leaf| (fields.len(), leaf)));
            let number = |rule: &LeafRule| rule.leaf.shape.is_empty();
            let single = matches!(tree.root(), Node::Leaf(_));
            let converts = single && (widths.is_some() || tree.rules.iter().all(number));
            let name = PyString::intern(py, &text).unbind();
            let wide = widths.is_some();
            fields.push(Field { name, text, tree, first, single, converts, wide });
        }
        if leaves.is_empty() {
            return Err(spec_error(py, "the example has no leaves: there is nothing to store"));
        }
        let too_large = |error: echoic_memory::AllocError| BufferError::from(error).raise(py);
        let frames = match shared {
            Some(stack) => Some(FrameForm::new(py, &fields, stack)?),
            None => None,
        };
        let in_rows = |field: &&Field| frames.is_none() || !OBSERVATIONS.contains(&&*field.text);
        let all = fields.iter().flat_map(|field| {
            field.tree.rules.iter().map(move |rule| in_rows(&field).then_some(&rule.leaf))
        });
        let layout = RowLayout::new(all).map_err(too_large)?;
        let rules = fields.iter().flat_map(|field| &field.tree.rules);
        let bytes = rules.map(|rule| rule.leaf.nbytes().unwrap_or(usize::MAX)).collect();
        let vectors = vectors(&fields).filter(|_| frames.is_none() && casting != Casting::Refused);
        Ok(Self { fields, layout, frames, widths, vectors, leaves, bytes })
    }

    /// The rule of a leaf.
    pub fn rule(&self, leaf: usize) -> &LeafRule {
        let (field, own) = self.leaves[leaf];
        &self.fields[field].tree.rules[own]
    }

    /// How many leaves there are.
    pub fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// The number of a field.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.text == name)
    }

    /// The leaves of a field.
    pub fn leaves_of(&self, name: &str) -> Range<usize> {
        match self.fields.iter().find(|field| field.text == name) {
            Some(field) => field.first..field.first + field.tree.rules.len(),
            None => 0..0,
        }
    }

    /// Which part of a transition each leaf is.
    pub fn parts(&self) -> Vec<Part> {
        let part = |(field, _): &(usize, usize)| match &*self.fields[*field].text {
            "obs" => Part::Obs,
            "next_obs" => Part::NextObs,
            "terminated" | "truncated" => Part::Outcome,
            _ => Part::Step,
        };
        self.leaves.iter().map(part).collect()
    }

    /// The leaf of a field that is one, with its number.
    pub fn only_leaf(&self, name: &str) -> Option<(usize, &Leaf)> {
        let field = &self.fields[self.position(name)?];
        match (field.tree.root(), &field.tree.rules[..]) {
            (Node::Leaf(_), [rule]) => Some((field.first, &rule.leaf)),
            _ => None,
        }
    }

    /// Checks the value of each field, in their order, and calls `store` with a source for each leaf, and with
    /// how many rows there are.
    pub fn with_sources<T>(
        &self,
        py: Python<'_>,
        values: &[Bound<'_, PyAny>],
        many: bool,
        store: impl FnOnce(&[Source], usize) -> PyResult<T>,
    ) -> PyResult<T> {
        // Taken out, not borrowed: converting a value runs Python, which may come here by itself.
        let mut sources = SOURCES.take();
        let rows = self.gather(py, values, many, &mut sources);
        let result = rows.and_then(|rows| store(&sources, rows));
        sources.clear();
        SOURCES.set(sources);
        result
    }

    fn gather(
        &self,
        py: Python<'_>,
        values: &[Bound<'_, PyAny>],
        many: bool,
        sources: &mut Vec<Source>,
    ) -> PyResult<usize> {
        let mut rows = Many::default();
        for (field, value) in self.fields.iter().zip(values) {
            let begin = sources.len();
            let result = if many {
                field.gather(value, &mut rows, true, sources)
            } else {
                field.gather(value, &mut One, false, sources)
            };
            result?;
            sources[begin..].iter_mut().for_each(|source| source.leaf += field.first);
        }
        // Converting one value may have run Python code that changed another.
        self.recheck(py, sources)?;
        Ok(rows.rows.unwrap_or(1))
    }

    /// Sources of rows that were taken out of a buffer: an array for each leaf; and how many rows there are.
    pub fn saved_sources(
        &self,
        py: Python<'_>,
        rows: &[Bound<'_, PyAny>],
    ) -> PyResult<(Vec<Source>, usize)> {
        if rows.len() != self.leaf_count() {
            let (got, expected) = (rows.len(), self.leaf_count());
            let text = format!("expected {expected} arrays of rows, got {got}");
            return Err(replay_error(py, text));
        }
        let mut shapes = Many::default();
        let sources = rows.iter().enumerate().map(|(leaf, array)| {
            // A state has the dtypes of its buffer, whatever the buffer casts.
            let strict = LeafRule::from_leaf(py, self.rule(leaf).leaf.clone())?;
            strict.source(leaf, array, &mut shapes)
        });
        let sources = sources.collect::<PyResult<_>>()?;
        Ok((sources, shapes.rows.unwrap_or(0)))
    }

    /// Up to `most` rows, taken out of a buffer: an array for each leaf. `copy` fills a column for each of them, and
    /// says how many rows there are.
    pub fn saved_rows<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        copy: impl FnOnce(&mut [&mut [u8]]) -> PyResult<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let plan = Plan::new(self.column_bytes(most))?;
        let mut memory = Memory::new(py, plan.total)?;
        let mut copied = Ok(0);
        let written = Memory::write(&mut memory, py, 0, plan.total, |bytes| {
            copied = copy(&mut plan.split(bytes));
        });
        assert!(written, "the memory is new");
        let count = copied?;
        let rows = PyList::empty(py);
        for leaf in 0..self.leaf_count() {
            let rule = self.rule(leaf);
            let shape = [&[most], &rule.leaf.shape[..]].concat();
            let array = view(py, &memory, &plan, leaf, rule.descr.bind(py), &shape)?;
            rows.append(array.get_item(PySlice::new(py, 0, count as isize, 1))?)?;
        }
        Ok(rows)
    }

    /// Path, dtype and shape of each leaf.
    pub fn leaf_texts(&self) -> Vec<(String, String, Vec<usize>)> {
        let leaves = (0..self.leaf_count()).map(|leaf| &self.rule(leaf).leaf);
        leaves.map(|leaf| (leaf.path.clone(), leaf.dtype.to_string(), leaf.shape.clone())).collect()
    }

    /// Checks again that no source has changed, after Python code could run.
    pub fn recheck(&self, py: Python<'_>, sources: &[Source]) -> PyResult<()> {
        sources.iter().try_for_each(|source| source.recheck(py, self.rule(source.leaf)))
    }

    /// How many bytes each leaf has in a batch of so many rows.
    fn column_bytes(&self, rows: usize) -> Vec<usize> {
        self.bytes.iter().map(|bytes| bytes.saturating_mul(rows)).collect()
    }

    /// How many bytes a leaf has in a transition.
    pub fn leaf_bytes(&self, leaf: usize) -> usize {
        self.bytes[leaf]
    }

    /// A batch as a dict of its fields and of these beside them, each with `axes` before its own: in the arrays of
    /// `out`, or in memory that is used again. `fill` writes a column for each leaf.
    pub fn batch<'py, T>(
        &self,
        py: Python<'py>,
        arena: &Arena,
        axes: &[usize],
        beside: &[Field],
        out: Option<&Bound<'py, PyAny>>,
        fill: impl FnOnce(&mut [&mut [u8]]) -> PyResult<T>,
    ) -> PyResult<(Bound<'py, PyDict>, T)> {
        if let Some(out) = out {
            let (out, mut targets) = self.targets(out, axes, beside)?;
            // SAFETY: contiguous, writable, and apart, as was checked; they are kept by `targets`, and who
            // reads them in another thread while they are written breaks numpy's own rules.
            let done = fill(&mut unsafe { array::bytes_mut(&mut targets) })?;
            return Ok((out, done));
        }
        let rows = axes.iter().try_fold(1usize, |rows, axis| rows.checked_mul(*axis));
        let rows = rows.unwrap_or(usize::MAX);
        let mut bytes = self.column_bytes(rows);
        let leaves = beside.iter().flat_map(|field| &field.tree.rules);
        bytes.extend(
            leaves.map(|rule| rule.leaf.nbytes().unwrap_or(usize::MAX).saturating_mul(rows)),
        );
        let plan = Plan::new(bytes)?;
        let mut memory = arena.take(py, plan.total)?;
        let mut done = None;
        Memory::write(&mut memory, py, 0, plan.total, |bytes| {
            done = Some(fill(&mut plan.split(bytes)));
        });
        let batch = done.expect("memory from the arena is nobody else's").and_then(|done| {
            let batch = PyDict::new(py);
            let mut shape = Vec::with_capacity(8);
            for field in self.fields.iter().chain(beside) {
                let mut leaf = |leaf: usize| {
                    let rule = &field.tree.rules[leaf];
                    shape.clear();
                    shape.extend_from_slice(axes);
                    shape.extend_from_slice(&rule.leaf.shape);
                    view(py, &memory, &plan, field.first + leaf, rule.descr.bind(py), &shape)
                };
                let value = match field.tree.root() {
                    Node::Leaf(own) => leaf(*own)?,
                    _ => field.tree.build(py, &mut leaf)?,
                };
                batch.set_item(field.name.bind(py), value)?;
            }
            Ok((batch, done))
        });
        arena.give_back(memory);
        batch
    }

    /// The arrays of a batch to be written into: one for each leaf, contiguous, writable, of just the right
    /// dtype and shape, and none over the memory of another.
    fn targets<'py>(
        &self,
        out: &Bound<'py, PyAny>,
        axes: &[usize],
        beside: &[Field],
    ) -> PyResult<(Bound<'py, PyDict>, Vec<Bound<'py, PyAny>>)> {
        let py = out.py();
        let out = out.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err("out must be a dict of arrays, as an earlier sample returned it")
        })?;
        let mut targets = Vec::with_capacity(self.leaf_count() + beside.len());
        for field in self.fields.iter().chain(beside) {
            let value = out
                .get_item(field.name.bind(py))?
                .ok_or_else(|| spec_error(py, format!("out has no entry `{}`", field.text)))?;
            targets.extend(targets_of(&field.tree, &value, axes)?);
        }
        array::refuse_overlaps(&targets).map_err(|text| spec_error(py, text))?;
        Ok((out.clone(), targets))
    }
}

/// The arrays of a tree to be written into, one for each leaf: see [`Form::batch`].
pub fn targets_of<'py>(
    tree: &Tree,
    value: &Bound<'py, PyAny>,
    axes: &[usize],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut found: Vec<Option<Bound<'py, PyAny>>> = vec![None; tree.rules.len()];
    tree.visit(value, &mut |leaf, array| {
        check_target(value.py(), &tree.rules[leaf], array, axes)?;
        found[leaf] = Some(array.clone());
        Ok(())
    })?;
    Ok(found.into_iter().flatten().collect())
}

impl FrameForm {
    fn new(py: Python<'_>, fields: &[Field], stack: Option<usize>) -> PyResult<Self> {
        let of = |name: &str| fields.iter().find(|field| field.text == name);
        let (Some(obs), Some(next)) = (of(OBSERVATIONS[0]), of(OBSERVATIONS[1])) else {
            return Err(spec_error(
                py,
                "next_obs=\"shared\" needs the fields `obs` and `next_obs`",
            ));
        };
        let leaves = |field: &Field| -> Vec<Leaf> {
            let own = |rule: &LeafRule| Leaf { path: String::new(), ..rule.leaf.clone() };
            field.tree.rules.iter().map(own).collect()
        };
        let mut frames = leaves(obs);
        if frames != leaves(next) {
            let text = "next_obs=\"shared\" needs `obs` and `next_obs` to have the same leaves";
            return Err(spec_error(py, text));
        }
        for (frame, rule) in frames.iter_mut().zip(&obs.tree.rules) {
            let Some(stack) = stack else { continue };
            if frame.shape.first() != Some(&stack) {
                let text = format!(
                    "stack={stack} needs observations with {stack} frames on their first axis, got {}",
                    rule.leaf
                );
                return Err(spec_error(py, text));
            }
            frame.shape.remove(0);
        }
        let layout = RowLayout::new(frames.iter().map(Some));
        let layout = layout.map_err(BufferError::from).or_raise(py)?;
        Ok(Self { layout, stack: stack.unwrap_or(1) })
    }
}

/// The widths of observations and actions, if the fields are vectors of 32-bit floats with a reward and two flags.
fn vectors(fields: &[Field]) -> Option<(usize, usize)> {
    if !fields.iter().map(|field| &*field.text).eq(NAMES) {
        return None;
    }
    let leaf = |at: usize| match (fields[at].tree.root(), &fields[at].tree.rules[..]) {
        (Node::Leaf(_), [rule]) => Some((rule.leaf.dtype, &rule.leaf.shape[..])),
        _ => None,
    };
    let vector = |at| match leaf(at)? {
        (Dtype::Float(4), [width]) => Some(*width),
        _ => None,
    };
    let numbers = leaf(2) == Some((Dtype::Float(4), &[]))
        && [3, 4].into_iter().all(|at| leaf(at) == Some((Dtype::Bool, &[])));
    let (obs, act) = (vector(0)?, vector(1)?);
    (numbers && vector(5) == Some(obs)).then_some((obs, act))
}

fn check_target(
    py: Python<'_>,
    rule: &LeafRule,
    target: &Bound<'_, PyAny>,
    axes: &[usize],
) -> PyResult<()> {
    let shape: Vec<usize> = [axes, &rule.leaf.shape[..]].concat();
    let header = Header::of_exact(target);
    let good = header.is_some_and(|header| {
        header.has_dtype(rule.descr.bind(py))
            && header.shape() == shape
            && header.is_c_contiguous()
            && header.is_writeable()
    });
    if good {
        return Ok(());
    }
    let name = display(&rule.leaf.path);
    let got = match header {
        Some(header) => format!(
            "{}{:?}{}",
            header.descr(),
            header.shape(),
            if header.is_writeable() { "" } else { ", read-only" }
        ),
        None => target.get_type().name().map_or("?".into(), |name| name.to_string()),
    };
    let dtype = rule.leaf.dtype;
    let text = format!("out: `{name}`: expected a contiguous writable {dtype}{shape:?}, got {got}");
    Err(spec_error(py, text))
}

impl Field {
    /// One number, which a batch has as its leaf of this number.
    pub fn number(py: Python<'_>, name: &str, dtype: Dtype, first: usize) -> PyResult<Self> {
        let leaf = Leaf { path: name.to_owned(), dtype, shape: Vec::new() };
        let tree = Tree::from_parts(Node::Leaf(0), vec![LeafRule::from_leaf(py, leaf)?]);
        let (text, name) = (name.to_owned(), PyString::intern(py, name).unbind());
        Ok(Self { name, text, tree, first, single: false, converts: false, wide: false })
    }

    fn gather(
        &self,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
        many: bool,
        sources: &mut Vec<Source>,
    ) -> PyResult<()> {
        let begin = sources.len();
        let error = match self.tree.gather(value, shapes, sources) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        sources.truncate(begin);
        let [rule] = &self.tree.rules[..] else { return Err(error) };
        match self.converted(value, rule, many)? {
            Some(array) => self.tree.gather(&array, shapes, sources),
            None => Err(error),
        }
    }

    /// The value in this field's dtype and shape, if it can be had without changing what it means.
    fn converted<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        rule: &LeafRule,
        many: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !self.single || value.is_none() {
            return Ok(None);
        }
        let py = value.py();
        let numpy = py.import("numpy")?;
        let Ok(array) = numpy.call_method1("asarray", (value,)) else { return Ok(None) };
        let Ok(array) = array.cast_into::<numpy::PyUntypedArray>() else { return Ok(None) };
        let descr = rule.descr.bind(py);
        // Python's numbers have no dtype of their own.
        let weak = !value.hasattr("dtype")?;
        let same = array.dtype().is_equiv_to(descr);
        // A flag may come as a number.
        let fits = match rule.leaf.dtype {
            _ if same => true,
            _ if !weak && matches!(rule.cast, Cast::Refused) => false,
            Dtype::Bool if weak || self.converts => b"biuf".contains(&array.dtype().kind()),
            _ if weak || self.wide => {
                numpy.call_method1("can_cast", (array.dtype(), descr, "same_kind"))?.is_truthy()?
            }
            _ => rule.casts(&array.dtype()),
        };
        if !fits {
            return Ok(None);
        }
        let given = array.into_any();
        let array = given.call_method1("astype", (descr,))?;
        // An integer may be too large for a narrower one.
        let whole = matches!(rule.leaf.dtype, Dtype::Int(_) | Dtype::UInt(_));
        if whole && !same && !numpy.call_method1("array_equal", (&given, &array))?.is_truthy()? {
            return Ok(None);
        }
        // One number may stand for a vector of one, and the other way round.
        let lead = usize::from(many);
        let shape = match Header::of(&array) {
            Some(header) => header.shape().to_vec(),
            None => return Ok(None),
        };
        let own = &rule.leaf.shape;
        let inner: usize = shape.iter().skip(lead).product();
        let squeezed = shape.len() >= lead
            && own.iter().product::<usize>() == 1
            && inner == 1
            && shape.len() <= lead + 1;
        if squeezed && shape[lead..] != own[..] {
            let wanted: Vec<usize> = [&shape[..lead], &own[..]].concat();
            return Ok(Some(array.call_method1("reshape", (wanted,))?));
        }
        // Else what was wrong is the shape.
        Ok((weak || self.converts).then_some(array))
    }
}

/// A number of things, of which there must be some.
pub fn positive(py: Python<'_>, name: &str, value: i64) -> PyResult<usize> {
    let number = usize::try_from(value).ok().filter(|number| *number > 0);
    number.ok_or_else(|| replay_error(py, format!("{name} must be at least 1, got {value}")))
}

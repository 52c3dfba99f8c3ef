//! The structure of an example, compiled once: walking samples of it and building batches like it.
//!
//! Dicts, tuples, lists, namedtuples and dataclasses are walked here; every other node is left to
//! optree, which knows what users registered. Leaves are numbered with dict keys sorted, as optree
//! does, so that two examples that differ only in the order of their keys have one spec; batches
//! have their keys in the order of the example.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use crate::error::spec_error;
use crate::leaf::{LeafRule, ShapeRule, Source, display};

/// Deeper examples are refused: they are cycles, or would overflow the stack.
const MAX_DEPTH: usize = 64;

/// A node of an example.
pub enum Node {
    Leaf(usize),
    /// `None`: a node without leaves.
    Empty,
    Dict(Vec<(Py<PyAny>, Node)>),
    Tuple(Vec<Node>),
    List(Vec<Node>),
    /// With the names of its fields.
    NamedTuple(Py<PyType>, Vec<String>, Vec<Node>),
    /// Attribute name, whether the constructor takes it, and the node.
    Dataclass(Py<PyType>, Vec<(Py<PyString>, bool, Node)>),
    /// Metadata, unflatten function and names of the children are as optree gives them.
    Registered {
        class: Py<PyType>,
        metadata: Py<PyAny>,
        unflatten: Py<PyAny>,
        names: Vec<String>,
        children: Vec<Node>,
    },
}

/// An example, compiled.
pub struct Tree {
    /// Path of the root, for error messages: empty but for the part of something larger.
    prefix: String,
    root: Node,
    pub rules: Vec<LeafRule>,
}

impl Tree {
    /// Compiles an example whose leaves have paths below `prefix`.
    pub fn compile(example: &Bound<'_, PyAny>, prefix: &str) -> PyResult<Self> {
        let mut rules = Vec::new();
        let root = compile(example, prefix, 0, &mut |path, leaf| {
            rules.push(LeafRule::from_example(path, leaf)?);
            Ok(rules.len() - 1)
        })?;
        Ok(Self { prefix: prefix.to_owned(), root, rules })
    }

    /// Compiles a tree whose leaves are something else than arrays: `rule` says what each stands for.
    pub fn compile_with(
        value: &Bound<'_, PyAny>,
        rule: &mut dyn FnMut(String, &Bound<'_, PyAny>) -> PyResult<LeafRule>,
    ) -> PyResult<Self> {
        let mut rules = Vec::new();
        let root = compile(value, "", 0, &mut |path, leaf| {
            rules.push(rule(path, leaf)?);
            Ok(rules.len() - 1)
        })?;
        Ok(Self { prefix: String::new(), root, rules })
    }

    /// Calls `visit` with the number and value of each leaf of a tree of this form.
    pub fn visit<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        visit: &mut impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        self.walk(&self.root, value, visit).map_err(|error| error.raise(value.py(), &self.prefix))
    }

    /// A tree whose nodes and leaves are known.
    pub fn from_parts(root: Node, rules: Vec<LeafRule>) -> Self {
        Self { prefix: String::new(), root, rules }
    }

    /// The outermost node.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Checks `value` and appends a source for each leaf.
    #[inline]
    pub fn gather(
        &self,
        value: &Bound<'_, PyAny>,
        shapes: &mut impl ShapeRule,
        sources: &mut Vec<Source>,
    ) -> PyResult<()> {
        self.visit(value, &mut |leaf, value| {
            sources.push(self.rules[leaf].source(leaf, value, shapes)?);
            Ok(())
        })
    }

    /// Builds a tree of what `leaf` returns for each leaf.
    pub fn build<'py>(
        &self,
        py: Python<'py>,
        leaf: &mut impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        build(&self.root, py, leaf)
    }

    /// Builds a batch without memory, so that a tree that can't hold batches is refused before
    /// there is a batch to lose.
    pub fn try_build(&self, py: Python<'_>, rows: usize) -> PyResult<()> {
        let numpy = py.import("numpy")?;
        let built = self.build(py, &mut |leaf| {
            let rule = &self.rules[leaf];
            let zero = numpy.call_method1("zeros", ((), rule.descr.bind(py)))?;
            let shape: Vec<usize> = [&[rows], &rule.leaf.shape[..]].concat();
            numpy.call_method1("broadcast_to", (zero, PyTuple::new(py, shape)?))
        });
        built.map(drop).map_err(|error| {
            let wrapped = spec_error(py, format!("the example's tree can't hold a batch: {error}"));
            wrapped.set_cause(py, Some(error));
            wrapped
        })
    }

    fn walk<'py>(
        &self,
        node: &Node,
        value: &Bound<'py, PyAny>,
        visit: &mut impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<()>,
    ) -> Result<(), WalkError> {
        let py = value.py();
        let wrong = |expected: &str| Err(WalkError::Structure(mismatch(expected, value)));
        match node {
            Node::Leaf(leaf) => return visit(*leaf, value).map_err(WalkError::Raised),
            Node::Empty if value.is_none() => {}
            Node::Empty => return wrong("None"),
            Node::Dict(items) => {
                let Ok(dict) = value.cast::<PyDict>() else { return wrong("a dict") };
                if dict.len() != items.len() {
                    return Err(WalkError::Structure(differing_keys(items, dict)));
                }
                for (key, child) in items {
                    let Some(value) = dict.get_item(key)? else {
                        return Err(WalkError::Structure(differing_keys(items, dict)));
                    };
                    self.walk(child, &value, visit).map_err(|error| error.under(key.bind(py)))?;
                }
            }
            Node::Tuple(children) => {
                let Ok(tuple) = value.cast_exact::<PyTuple>() else { return wrong("a tuple") };
                self.walk_sequence(children, &[], tuple.iter(), value, visit)?;
            }
            Node::List(children) => {
                let Ok(list) = value.cast::<PyList>() else { return wrong("a list") };
                // A list may change while a leaf is converted: its iterator checks each step.
                self.walk_sequence(children, &[], list.iter(), value, visit)?;
            }
            Node::NamedTuple(class, names, children) => {
                if !value.get_type().is(class) {
                    return wrong(&format!("a {}", class.bind(py).name()?));
                }
                let tuple = value.cast::<PyTuple>().map_err(PyErr::from)?;
                self.walk_sequence(children, names, tuple.iter(), value, visit)?;
            }
            Node::Dataclass(class, fields) => {
                if !value.get_type().is(class) {
                    return wrong(&format!("a {}", class.bind(py).name()?));
                }
                for (name, _, child) in fields {
                    let field = value.getattr(name).map_err(|cause| {
                        WalkError::Structure(Mismatch {
                            cause: Some(cause),
                            ..mismatch(&format!("an attribute {name}"), value)
                        })
                    })?;
                    self.walk(child, &field, visit)
                        .map_err(|error| error.under(name.bind(py).as_any()))?;
                }
            }
            Node::Registered { class, metadata, names, children, .. } => {
                if !value.get_type().is(class) {
                    return wrong(&format!("a {}", class.bind(py).name()?));
                }
                let flat = flatten_one_level(value)?;
                if !flat.metadata.eq(metadata)? {
                    return wrong(&format!("a {} like the example's", class.bind(py).name()?));
                }
                self.walk_sequence(children, names, flat.children.into_iter(), value, visit)?;
            }
        }
        Ok(())
    }

    fn walk_sequence<'py>(
        &self,
        children: &[Node],
        names: &[String],
        mut values: impl Iterator<Item = Bound<'py, PyAny>>,
        parent: &Bound<'py, PyAny>,
        visit: &mut impl FnMut(usize, &Bound<'py, PyAny>) -> PyResult<()>,
    ) -> Result<(), WalkError> {
        for (index, child) in children.iter().enumerate() {
            let Some(value) = values.next() else {
                return Err(WalkError::Structure(wrong_length(children.len(), parent)));
            };
            self.walk(child, &value, visit).map_err(|error| {
                error.push(|| names.get(index).cloned().unwrap_or_else(|| index.to_string()))
            })?;
        }
        if values.next().is_some() {
            return Err(WalkError::Structure(wrong_length(children.len(), parent)));
        }
        Ok(())
    }
}

/// Why a walk ended. Paths are put together only here, on the way out of a failure.
enum WalkError {
    Raised(PyErr),
    Structure(Mismatch),
}

struct Mismatch {
    /// From the innermost node outwards.
    path: Vec<String>,
    message: String,
    cause: Option<PyErr>,
}

impl From<PyErr> for WalkError {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl WalkError {
    fn under(self, key: &Bound<'_, PyAny>) -> Self {
        self.push(|| path_part(key))
    }

    fn push(mut self, part: impl FnOnce() -> String) -> Self {
        if let Self::Structure(mismatch) = &mut self {
            mismatch.path.push(part());
        }
        self
    }

    fn raise(self, py: Python<'_>, prefix: &str) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Structure(Mismatch { mut path, message, cause }) => {
                path.extend((!prefix.is_empty()).then(|| prefix.to_owned()));
                path.reverse();
                let path = path.join("/");
                let error = spec_error(py, format!("node `{}`: {message}", display(&path)));
                error.set_cause(py, cause);
                error
            }
        }
    }
}

fn mismatch(expected: &str, value: &Bound<'_, PyAny>) -> Mismatch {
    let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
    Mismatch {
        path: Vec::new(),
        cause: None,
        message: format!("expected {expected}, got a {class}"),
    }
}

fn wrong_length(expected: usize, value: &Bound<'_, PyAny>) -> Mismatch {
    let got = value.len().map_or("another number".into(), |len| len.to_string());
    let class = value.get_type().name().map_or("?".into(), |name| name.to_string());
    let message = format!("expected {expected} children, got a {class} of {got}");
    Mismatch { path: Vec::new(), message, cause: None }
}

fn differing_keys(items: &[(Py<PyAny>, Node)], dict: &Bound<'_, PyDict>) -> Mismatch {
    let py = dict.py();
    let repr = |key: &Bound<'_, PyAny>| key.repr().map_or("?".into(), |text| text.to_string());
    let missing = items
        .iter()
        .filter(|(key, _)| !dict.contains(key).unwrap_or(false))
        .map(|(key, _)| repr(key.bind(py)));
    let known = |key: &Bound<'_, PyAny>| {
        items.iter().any(|(expected, _)| expected.bind(py).eq(key).unwrap_or(false))
    };
    let unexpected = dict.keys().iter().filter(|key| !known(key)).map(|key| repr(&key));
    let (missing, unexpected): (Vec<_>, Vec<_>) = (missing.collect(), unexpected.collect());
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing {}", missing.join(", ")));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected {}", unexpected.join(", ")));
    }
    let message = format!("the keys differ from the example's: {}", parts.join("; "));
    Mismatch { path: Vec::new(), message, cause: None }
}

/// One step of a path. A slash in a key is written `~1`, and a tilde `~0`, as in JSON pointers.
fn path_part(key: &Bound<'_, PyAny>) -> String {
    let text = key.str().map_or("?".into(), |text| text.to_string());
    text.replace('~', "~0").replace('/', "~1")
}

fn join(path: &str, key: &Bound<'_, PyAny>) -> String {
    let part = path_part(key);
    if path.is_empty() { part } else { format!("{path}/{part}") }
}

struct Flat<'py> {
    children: Vec<Bound<'py, PyAny>>,
    entries: Vec<Bound<'py, PyAny>>,
    metadata: Bound<'py, PyAny>,
    unflatten: Bound<'py, PyAny>,
}

fn optree<'py>(py: Python<'py>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("optree")?.getattr(function)
}

fn flatten_one_level<'py>(value: &Bound<'py, PyAny>) -> PyResult<Flat<'py>> {
    static FLATTEN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let flatten = FLATTEN.import(value.py(), "optree", "tree_flatten_one_level")?;
    let flat: Bound<'py, PyTuple> = flatten.call1((value,))?.cast_into()?;
    Ok(Flat {
        children: flat.get_item(0)?.try_iter()?.collect::<PyResult<_>>()?,
        metadata: flat.get_item(1)?,
        entries: flat.get_item(2)?.try_iter()?.collect::<PyResult<_>>()?,
        unflatten: flat.get_item(3)?,
    })
}

/// What a leaf of this path is numbered.
type Number<'a> = dyn FnMut(String, &Bound<'_, PyAny>) -> PyResult<usize> + 'a;

fn compile(
    value: &Bound<'_, PyAny>,
    path: &str,
    depth: usize,
    number: &mut Number<'_>,
) -> PyResult<Node> {
    let py = value.py();
    if depth > MAX_DEPTH {
        let message = format!("the example is nested deeper than {MAX_DEPTH} levels at `{path}`");
        return Err(spec_error(py, message));
    }
    let mut child = |key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>| {
        compile(value, &join(path, key), depth + 1, number)
    };
    if value.is_none() {
        return Ok(Node::Empty);
    }
    if let Ok(dict) = value.cast_exact::<PyDict>() {
        return compile_dict(dict, &mut child);
    }
    let mut children = |values: Vec<Bound<'_, PyAny>>, keys: Vec<Bound<'_, PyAny>>| {
        keys.iter().zip(values).map(|(key, value)| child(key, &value)).collect::<PyResult<Vec<_>>>()
    };
    let indices = |len: usize| -> PyResult<Vec<_>> {
        (0..len).map(|index| Ok(index.into_pyobject(py)?.into_any())).collect()
    };
    if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return Ok(Node::Tuple(children(tuple.iter().collect(), indices(tuple.len())?)?));
    }
    if let Ok(list) = value.cast_exact::<PyList>() {
        return Ok(Node::List(children(list.iter().collect(), indices(list.len())?)?));
    }
    let class = value.get_type();
    if optree(py, "is_namedtuple")?.call1((value,))?.is_truthy()? {
        let tuple = value.cast::<PyTuple>()?;
        let keys: Vec<_> = class.getattr("_fields")?.try_iter()?.collect::<PyResult<_>>()?;
        let names = keys.iter().map(path_part).collect();
        let nodes = children(tuple.iter().collect(), keys)?;
        return Ok(Node::NamedTuple(class.unbind(), names, nodes));
    }
    if !optree(py, "tree_is_leaf")?.call1((value,))?.is_truthy()? {
        let flat = flatten_one_level(value)?;
        return Ok(Node::Registered {
            class: class.unbind(),
            metadata: flat.metadata.unbind(),
            unflatten: flat.unflatten.unbind(),
            names: flat.entries.iter().map(path_part).collect(),
            children: children(flat.children, flat.entries)?,
        });
    }
    if class.hasattr("__dataclass_fields__")? {
        let fields = py.import("dataclasses")?.call_method1("fields", (value,))?;
        let mut nodes = Vec::new();
        for field in fields.try_iter()? {
            let field = field?;
            let name = field.getattr("name")?.cast_into::<PyString>()?;
            let node = child(name.as_any(), &value.getattr(&name)?)?;
            nodes.push((name.unbind(), field.getattr("init")?.is_truthy()?, node));
        }
        return Ok(Node::Dataclass(class.unbind(), nodes));
    }
    Ok(Node::Leaf(number(path.to_owned(), value)?))
}

fn compile_dict<'py>(
    dict: &Bound<'py, PyDict>,
    child: &mut impl FnMut(&Bound<'_, PyAny>, &Bound<'_, PyAny>) -> PyResult<Node>,
) -> PyResult<Node> {
    let py = dict.py();
    let keys: Vec<_> = dict.keys().iter().collect();
    let sorted = dict.keys();
    match sorted.sort() {
        Ok(()) => {}
        // Keys that do not compare keep the order of the example.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {}
        Err(error) => return Err(error),
    }
    // By the address of their key, which both lists of keys keep: there may be a hundred thousand.
    let mut nodes: HashMap<usize, Node> = HashMap::with_capacity(keys.len());
    for key in sorted.iter() {
        let Some(value) = dict.get_item(&key)? else { continue };
        let node = child(&key, &value)?;
        nodes.insert(key.as_ptr() as usize, node);
    }
    let mut items = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(node) = nodes.remove(&(key.as_ptr() as usize)) {
            items.push((key.unbind(), node));
        }
    }
    Ok(Node::Dict(items))
}

fn build<'py>(
    node: &Node,
    py: Python<'py>,
    leaf: &mut impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut all = |children: &[Node]| {
        children.iter().map(|child| build(child, py, leaf)).collect::<PyResult<Vec<_>>>()
    };
    Ok(match node {
        Node::Leaf(index) => leaf(*index)?,
        Node::Empty => py.None().into_bound(py),
        Node::Dict(items) => {
            let dict = PyDict::new(py);
            for (key, child) in items {
                dict.set_item(key, build(child, py, leaf)?)?;
            }
            dict.into_any()
        }
        Node::Tuple(children) => PyTuple::new(py, all(children)?)?.into_any(),
        Node::List(children) => PyList::new(py, all(children)?)?.into_any(),
        Node::NamedTuple(class, _, children) => {
            class.bind(py).call_method1("_make", (all(children)?,))?
        }
        Node::Dataclass(class, fields) => {
            let arguments = PyDict::new(py);
            let mut others = Vec::new();
            for (name, in_init, child) in fields {
                let value = build(child, py, leaf)?;
                if *in_init {
                    arguments.set_item(name, value)?;
                } else {
                    others.push((name, value));
                }
            }
            let object = class.bind(py).call((), Some(&arguments))?;
            let set = py.get_type::<PyAny>().getattr("__setattr__")?;
            for (name, value) in others {
                // Also where the dataclass is frozen.
                set.call1((&object, name, value))?;
            }
            object
        }
        Node::Registered { metadata, unflatten, children, .. } => {
            unflatten.bind(py).call1((metadata, PyList::new(py, all(children)?)?))?
        }
    })
}

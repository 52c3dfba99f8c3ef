//! The form of a tree as text: what a client without an example builds its batches from.
//!
//! JSON, one value for each node: the number of a leaf, `null` for `None`, and for the others an object
//! whose only key says what it is: `{"dict": [[key, node], …]}`, `{"tuple": [node, …]}`,
//! `{"list": [node, …]}`, `{"namedtuple": [name, [field, …], [node, …]]}`, and the same for a
//! `"dataclass"`. Classes do not travel: a reader makes one of the same name and fields.
//! What optree knows by registration becomes a dict of its entries.

use echoic_replay::Leaf;
use echoic_replay::chunk::ColumnKind;
use echoic_replay::trajectory::{Column, Signature};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyType};
use serde_json::{Value, json};

use crate::error::spec_error;
use crate::leaf::LeafRule;
use crate::tree::{Node, Tree};

/// As in a tree's own examples.
const MAX_DEPTH: usize = 64;

/// The text of a tree.
pub fn write(py: Python<'_>, tree: &Tree) -> PyResult<String> {
    Ok(node_to_json(py, tree.root())?.to_string())
}

/// The form of items like a tree, whose leaves are one step without an axis of time where they are `squeezed`.
pub fn signature(
    py: Python<'_>,
    tree: &Tree,
    squeezed: impl Iterator<Item = bool>,
) -> PyResult<Signature> {
    let columns = tree.rules.iter().zip(squeezed).map(|(rule, squeezed)| Column {
        path: rule.leaf.path.clone(),
        kind: ColumnKind::from(&rule.leaf),
        squeezed,
    });
    Ok(Signature { columns: columns.collect(), structure: write(py, tree)? })
}

fn node_to_json(py: Python<'_>, node: &Node) -> PyResult<Value> {
    let all = |nodes: &[Node]| -> PyResult<Vec<Value>> {
        nodes.iter().map(|node| node_to_json(py, node)).collect()
    };
    Ok(match node {
        Node::Leaf(index) => json!(index),
        Node::Empty => Value::Null,
        Node::Dict(items) => {
            let items = items.iter().map(|(key, node)| {
                let key = key.bind(py);
                let key = match (key.extract::<i64>(), key.cast::<PyString>()) {
                    (Ok(number), _) => json!(number),
                    (_, Ok(text)) => json!(text.to_cow()?),
                    _ => json!(key.str()?.to_cow()?),
                };
                Ok(json!([key, node_to_json(py, node)?]))
            });
            json!({ "dict": items.collect::<PyResult<Vec<_>>>()? })
        }
        Node::Tuple(nodes) => json!({ "tuple": all(nodes)? }),
        Node::List(nodes) => json!({ "list": all(nodes)? }),
        Node::NamedTuple(class, names, nodes) => {
            json!({ "namedtuple": [class_name(py, class)?, names, all(nodes)?] })
        }
        Node::Dataclass(class, fields) => {
            let names = fields.iter().map(|(name, ..)| Ok(name.bind(py).to_cow()?.into_owned()));
            let nodes = fields.iter().map(|(_, _, node)| node_to_json(py, node));
            let names = names.collect::<PyResult<Vec<String>>>()?;
            json!({ "dataclass": [class_name(py, class)?, names, nodes.collect::<PyResult<Vec<_>>>()?] })
        }
        Node::Registered { names, children, .. } => {
            let items = names.iter().zip(children);
            let items = items.map(|(name, node)| Ok(json!([name, node_to_json(py, node)?])));
            json!({ "dict": items.collect::<PyResult<Vec<_>>>()? })
        }
    })
}

fn class_name(py: Python<'_>, class: &Py<PyType>) -> PyResult<String> {
    Ok(class.bind(py).name()?.to_string())
}

/// The tree of a text and its leaves.
pub fn read(py: Python<'_>, text: &str, leaves: Vec<Leaf>) -> PyResult<Tree> {
    let refused =
        |what: &str| spec_error(py, format!("the structure of a tree is damaged: {what}"));
    let json: Value = serde_json::from_str(text).map_err(|error| refused(&error.to_string()))?;
    let mut next = 0;
    let root = Reader { py, next: &mut next }.node(&json, 0).map_err(|error| match error {
        Failed::Damaged(what) => refused(what),
        Failed::Raised(error) => error,
    })?;
    if next != leaves.len() {
        return Err(refused("it has another number of leaves"));
    }
    let rules = leaves.into_iter().map(|leaf| LeafRule::from_leaf(py, leaf));
    Ok(Tree::from_parts(root, rules.collect::<PyResult<_>>()?))
}

enum Failed {
    Damaged(&'static str),
    Raised(PyErr),
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

struct Reader<'a, 'py> {
    py: Python<'py>,
    /// How many leaves were seen; each number must be there once.
    next: &'a mut usize,
}

impl Reader<'_, '_> {
    fn node(&mut self, json: &Value, depth: usize) -> Result<Node, Failed> {
        if depth > MAX_DEPTH {
            return Err(Failed::Damaged("it is nested too deeply"));
        }
        let (kind, content) = match json {
            Value::Null => return Ok(Node::Empty),
            Value::Number(number) => {
                let index = number.as_u64().and_then(|index| usize::try_from(index).ok());
                *self.next += 1;
                return index.map(Node::Leaf).ok_or(Failed::Damaged("a leaf has no number"));
            }
            Value::Object(object) if object.len() == 1 => {
                object.iter().next().ok_or(Failed::Damaged("a node is empty"))?
            }
            _ => return Err(Failed::Damaged("a node is of no known kind")),
        };
        let parts = content.as_array().ok_or(Failed::Damaged("a node has no list"))?;
        match (kind.as_str(), parts.as_slice()) {
            ("dict", items) => {
                let items = items.iter().map(|item| match item.as_array().map(Vec::as_slice) {
                    Some([key, node]) => Ok((self.key(key)?, self.node(node, depth + 1)?)),
                    _ => Err(Failed::Damaged("a dict has an item that is no pair")),
                });
                Ok(Node::Dict(items.collect::<Result<_, _>>()?))
            }
            ("tuple", nodes) => Ok(Node::Tuple(self.nodes(nodes, depth)?)),
            ("list", nodes) => Ok(Node::List(self.nodes(nodes, depth)?)),
            ("namedtuple", [Value::String(name), Value::Array(fields), Value::Array(nodes)]) => {
                let fields = names(fields, nodes.len())?;
                let class = self
                    .py
                    .import("collections")?
                    .call_method1("namedtuple", (name, PyList::new(self.py, &fields)?))?;
                let class = class.cast_into::<PyType>().map_err(PyErr::from)?.unbind();
                Ok(Node::NamedTuple(class, fields, self.nodes(nodes, depth)?))
            }
            ("dataclass", [Value::String(name), Value::Array(fields), Value::Array(nodes)]) => {
                let fields = names(fields, nodes.len())?;
                let class = self
                    .py
                    .import("dataclasses")?
                    .call_method1("make_dataclass", (name, PyList::new(self.py, &fields)?))?;
                let class = class.cast_into::<PyType>().map_err(PyErr::from)?.unbind();
                let (py, nodes) = (self.py, self.nodes(nodes, depth)?);
                let fields = fields.iter().zip(nodes);
                let fields =
                    fields.map(|(name, node)| (PyString::new(py, name).unbind(), true, node));
                Ok(Node::Dataclass(class, fields.collect()))
            }
            _ => Err(Failed::Damaged("a node is of no known kind")),
        }
    }

    fn nodes(&mut self, nodes: &[Value], depth: usize) -> Result<Vec<Node>, Failed> {
        nodes.iter().map(|node| self.node(node, depth + 1)).collect()
    }

    fn key(&self, key: &Value) -> Result<Py<PyAny>, Failed> {
        let object = match (key.as_i64(), key.as_str()) {
            (Some(number), _) => number.into_pyobject(self.py).map_err(PyErr::from)?.into_any(),
            (_, Some(text)) => PyString::new(self.py, text).into_any(),
            _ => return Err(Failed::Damaged("a dict has a key that is no text or number")),
        };
        Ok(object.unbind())
    }
}

fn names(fields: &[Value], expected: usize) -> Result<Vec<String>, Failed> {
    let names: Option<Vec<String>> =
        fields.iter().map(|field| field.as_str().map(str::to_owned)).collect();
    names
        .filter(|names| names.len() == expected)
        .ok_or(Failed::Damaged("the fields of a class are not as many as its nodes"))
}

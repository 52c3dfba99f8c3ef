//! The form of transitions as text, which stands in a file with them.
//!
//! JSON: `{"transitions": 1, "byte_order": "little", "hot_capacity": number, "widths": [number, number] or
//! null, "fields": [[name, structure, [[path, dtype, [axis, …]], …]], …]}`, where a structure is the text
//! that [`crate::structure`] writes.

use std::path::Path;

use echoic_replay::Leaf;
use pyo3::prelude::*;
use serde_json::{Value, json};

use super::form::{Casting, Form};
use crate::error::{spec_error, storage_error};
use crate::structure;
use crate::tree::Tree;

const VERSION: u64 = 1;
const BYTE_ORDER: &str = if cfg!(target_endian = "little") { "little" } else { "big" };

/// The text of a form.
pub fn write(py: Python<'_>, form: &Form, hot_capacity: usize) -> PyResult<String> {
    let fields = form.fields.iter().map(|field| {
        let leaves: Vec<Value> = leaves(&field.tree)
            .map(|leaf| json!([leaf.path, leaf.dtype.to_string(), leaf.shape]))
            .collect();
        Ok(json!([field.text, structure::write(py, &field.tree)?, leaves]))
    });
    let text = json!({
        "transitions": VERSION,
        "byte_order": BYTE_ORDER,
        "hot_capacity": hot_capacity,
        "widths": form.widths.map(|(obs, act)| [obs, act]),
        "fields": fields.collect::<PyResult<Vec<_>>>()?,
    });
    Ok(text.to_string())
}

fn leaves(tree: &Tree) -> impl Iterator<Item = &Leaf> {
    tree.rules.iter().map(|rule| &rule.leaf)
}

/// The form of a text, and how many transitions were in memory.
pub fn read(
    py: Python<'_>,
    text: &str,
    path: &Path,
    casting: Casting,
) -> PyResult<(Form, Option<usize>)> {
    let refused = |what: &str| {
        let path = path.display();
        storage_error(py, format!("{path} is no file of a MmapReplayBuffer: {what}"))
    };
    let json: Value = serde_json::from_str(text)
        .map_err(|error| refused(&format!("what it says of its records is no JSON: {error}")))?;
    match json["transitions"].as_u64() {
        Some(VERSION) => {}
        Some(other) => {
            let what =
                format!("its transitions have version {other}; this release reads {VERSION}");
            return Err(refused(&what));
        }
        None => return Err(refused("its records are no transitions")),
    }
    if json["byte_order"] != BYTE_ORDER {
        let what = format!("its numbers are {}-endian, expected {BYTE_ORDER}", json["byte_order"]);
        return Err(refused(&what));
    }
    let size = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    if let Some([obs, act]) = json["widths"].as_array().map(Vec::as_slice) {
        let (Some(obs), Some(act)) = (size(obs), size(act)) else {
            return Err(refused("a width is no number"));
        };
        return Ok((Form::of_widths(py, obs, act, None, casting)?, size(&json["hot_capacity"])));
    }
    let leaf = |value: &Value| {
        let [Value::String(path), Value::String(dtype), Value::Array(shape)] =
            value.as_array()?.as_slice()
        else {
            return None;
        };
        let shape = shape.iter().map(size).collect::<Option<_>>()?;
        Some(Leaf { path: path.clone(), dtype: dtype.parse().ok()?, shape })
    };
    let fields = json["fields"].as_array().ok_or_else(|| refused("it has no fields"))?;
    let trees = fields.iter().map(|field| {
        let Some([Value::String(name), Value::String(structure), Value::Array(leaves)]) =
            field.as_array().map(Vec::as_slice)
        else {
            return Err(refused("a field is not described"));
        };
        let leaves = leaves.iter().map(leaf).collect::<Option<Vec<_>>>();
        let leaves = leaves.ok_or_else(|| refused("a leaf is not described"))?;
        Ok((name.clone(), structure::read(py, structure, leaves)?))
    });
    let trees = trees.collect::<PyResult<Vec<_>>>()?;
    Ok((Form::new(py, trees, None, None, casting)?, size(&json["hot_capacity"])))
}

/// The form that the caller gave, whose leaves must be those of the file.
pub fn check(py: Python<'_>, given: Form, found: &Form, path: &Path) -> PyResult<Form> {
    let all = |form: &Form| -> Vec<String> {
        let trees = form.fields.iter().map(|field| &field.tree);
        trees.flat_map(leaves).map(Leaf::to_string).collect()
    };
    let (expected, got) = (all(&given), all(found));
    if expected == got {
        return Ok(given);
    }
    let odd = |some: &[String], others: &[String]| {
        let odd: Vec<&str> =
            some.iter().filter(|leaf| !others.contains(leaf)).map(String::as_str).collect();
        if odd.is_empty() { "nothing more".to_owned() } else { odd.join(", ") }
    };
    let (path, expected, got) = (path.display(), odd(&expected, &got), odd(&got, &expected));
    Err(spec_error(py, format!("{path} has other transitions: expected {expected}, found {got}")))
}

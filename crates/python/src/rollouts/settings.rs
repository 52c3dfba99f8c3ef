//! What a rollout table is told, from and to a dict.

use echoic_replay::limiter::Parameters;
use echoic_replay::rollouts::durable::Durability;
use echoic_replay::rollouts::filter::Filter;
use echoic_replay::rollouts::{
    Column, Delivery, Late, OnExpiry, OnStale, Order, RolloutConfig, Schema,
};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::millis;
use crate::dtype;
use crate::error::rollout_error;
use crate::table::Settings;

fn required<'py, T>(dict: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> <T as FromPyObject<'a, 'py>>::Error: Into<PyErr>,
{
    let value = dict.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        pyo3::exceptions::PyTypeError::new_err(format!("{name}: {}", error.value(dict.py())))
    })
}

fn choice<T: Copy>(name: &str, value: &str, all: &[(&str, T)]) -> PyResult<T> {
    let found = all.iter().find(|(other, _)| *other == value).map(|(_, one)| *one);
    found.ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|(name, _)| format!("{name:?}")).collect();
        PyValueError::new_err(format!("{name} must be {}, got {value:?}", known.join(" or ")))
    })
}

const STALE: [(&str, OnStale); 4] = [
    ("drop", OnStale::Drop),
    ("wait", OnStale::Wait),
    ("keep", OnStale::Keep),
    ("mask", OnStale::Mask),
];
const DELIVERY: [(&str, Delivery); 2] =
    [("at_least_once", Delivery::AtLeastOnce), ("at_most_once", Delivery::AtMostOnce)];
const EXPIRY: [(&str, OnExpiry); 2] =
    [("reject", OnExpiry::Reject), ("suspend", OnExpiry::Suspend)];

fn name_of<T: Copy + PartialEq>(value: T, all: &[(&'static str, T)]) -> &'static str {
    all.iter().find(|(_, other)| *other == value).map_or("", |(name, _)| name)
}

/// What a change must survive before its caller is told.
pub fn durability(name: &str) -> PyResult<Durability> {
    let all =
        [("none", Durability::None), ("async", Durability::Async), ("sync", Durability::Sync)];
    choice("durability", name, &all)
}

fn order(name: &str, window: Option<u32>) -> PyResult<Order> {
    let order = match name {
        "ready" => Order::Ready,
        "submission" => Order::Submission,
        "window" => Order::Window(window.ok_or_else(|| {
            PyValueError::new_err("order 'window' needs window: how many groups it looks at")
        })?),
        "freshest" => Order::Freshest,
        "oldest" => Order::Oldest,
        "weighted" => Order::Weighted,
        other => {
            let text = format!(
                "order must be 'ready', 'submission', 'window', 'freshest', 'oldest' or 'weighted', \
                 got {other:?}"
            );
            return Err(PyValueError::new_err(text));
        }
    };
    match (order, window) {
        (Order::Window(_), _) | (_, None) => Ok(order),
        _ => Err(PyValueError::new_err("window needs order='window'")),
    }
}

fn columns(dict: &Bound<'_, PyDict>, name: &str) -> PyResult<Vec<Column>> {
    let named: Vec<(String, Bound<'_, PyArrayDescr>)> = required(dict, name)?;
    let column = |(name, descr): (String, Bound<'_, PyArrayDescr>)| {
        let dtype = dtype::from_numpy(&descr.base()).map_err(|text| {
            crate::error::spec_error(dict.py(), format!("column {name:?}: {text}"))
        })?;
        Ok(Column { name, dtype, shape: descr.shape() })
    };
    named.into_iter().map(column).collect()
}

/// The settings of a dict that the facade makes.
pub fn config(py: Python<'_>, dict: &Bound<'_, PyDict>) -> PyResult<RolloutConfig> {
    let (columns, fields) = (columns(dict, "columns")?, columns(dict, "fields")?);
    let mut late = Late::default();
    for name in required::<Vec<String>>(dict, "late")? {
        let place = |all: &[Column]| all.iter().take(64).position(|column| column.name == name);
        match (place(&columns), place(&fields)) {
            (Some(at), _) => late.columns |= 1 << at,
            (None, Some(at)) => late.fields |= 1 << at,
            (None, None) => {
                let text = format!("late must be names of columns and fields, got {name:?}");
                return Err(rollout_error(py, text));
            }
        }
    }
    let schema = Schema { columns, fields, mask: None, late };
    let mask: Option<String> = required(dict, "mask")?;
    let mask = mask.map(|mask| {
        let found = schema.columns.iter().position(|column| column.name == mask);
        found.ok_or_else(|| {
            rollout_error(py, format!("mask must be the name of a column, got {mask:?}"))
        })
    });
    let schema = Schema { mask: mask.transpose()?, ..schema };
    let filter: Option<String> = required(dict, "filter")?;
    let filter = filter.map(|text| Filter::parse(&text)).transpose();
    let filter = filter.map_err(|error| rollout_error(py, format!("filter: {error}")))?;
    let seconds = |name: &str| -> PyResult<Option<u64>> {
        let value: Option<f64> = required(dict, name)?;
        value.map(|value| millis(name, value)).transpose()
    };
    let limiter: Option<Settings> = required(dict, "limiter")?;
    let limiter = limiter.map(|limiter| limiter.limiter(py)).transpose()?;
    let on_stale: String = required(dict, "on_stale")?;
    let delivery: String = required(dict, "delivery")?;
    let on_expiry: String = required(dict, "on_expiry")?;
    let named: String = required(dict, "order")?;
    let max_uses: Option<u32> = required(dict, "max_uses")?;
    if max_uses == Some(0) {
        let text = "max_uses must be at least 1, or None for no limit, got 0";
        return Err(PyValueError::new_err(text));
    }
    Ok(RolloutConfig {
        name: required(dict, "name")?,
        schema,
        group_size: required(dict, "group_size")?,
        redundancy: required(dict, "redundancy")?,
        group_deadline_ms: seconds("group_deadline")?,
        min_group_size: required(dict, "min_group_size")?,
        batch_groups: required(dict, "batch_groups")?,
        batches_per_version: required(dict, "batches_per_version")?,
        max_lag: required(dict, "max_lag")?,
        pipeline_depth: required(dict, "pipeline_depth")?,
        auto_tune: required(dict, "auto_tune")?,
        max_running: required(dict, "max_running")?,
        capacity: required(dict, "capacity")?,
        max_tokens: required(dict, "max_tokens")?,
        max_blob_bytes: required(dict, "max_blob_bytes")?,
        order: order(&named, required(dict, "window")?)?,
        on_stale: choice("on_stale", &on_stale, &STALE)?,
        target_lag: required(dict, "target_lag")?,
        max_mean_lag: required(dict, "max_mean_lag")?,
        max_uses: max_uses.unwrap_or(0),
        delivery: choice("delivery", &delivery, &DELIVERY)?,
        reservation_ttl_ms: seconds("reservation_ttl")?.unwrap_or(u64::MAX >> 16),
        on_expiry: choice("on_expiry", &on_expiry, &EXPIRY)?,
        filter,
        limiter: limiter.map(|limiter| *limiter.parameters()),
        seed: required(dict, "seed")?,
    })
}

/// Settings as a dict that [`config`] understands.
pub fn dict<'py>(py: Python<'py>, config: &RolloutConfig) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let named = |columns: &[Column]| -> PyResult<Vec<(String, Py<PyArrayDescr>)>> {
        let one = |column: &Column| {
            let descr = dtype::to_numpy(py, column.dtype)?;
            let descr = match column.shape.is_empty() {
                true => descr,
                false => {
                    let shape = PyTuple::new(py, &column.shape)?;
                    py.import("numpy")?
                        .call_method1("dtype", ((descr, shape),))?
                        .cast_into()?
                        .unbind()
                }
            };
            Ok((column.name.clone(), descr))
        };
        columns.iter().map(one).collect()
    };
    let (order, window) = match config.order {
        Order::Ready => ("ready", None),
        Order::Submission => ("submission", None),
        Order::Window(window) => ("window", Some(window)),
        Order::Freshest => ("freshest", None),
        Order::Oldest => ("oldest", None),
        Order::Weighted => ("weighted", None),
    };
    let seconds = |millis: u64| millis as f64 / 1e3;
    let schema = &config.schema;
    dict.set_item("name", &config.name)?;
    dict.set_item("columns", named(&schema.columns)?)?;
    dict.set_item("fields", named(&schema.fields)?)?;
    let mask = schema.mask.and_then(|mask| schema.columns.get(mask));
    dict.set_item("mask", mask.map(|column| &column.name))?;
    let names = |columns: &[Column], late: u64| -> Vec<String> {
        let late = columns.iter().enumerate().filter(|(at, _)| late >> at & 1 == 1);
        late.map(|(_, column)| column.name.clone()).collect()
    };
    let mut late = names(&schema.columns, schema.late.columns);
    late.append(&mut names(&schema.fields, schema.late.fields));
    dict.set_item("late", late)?;
    dict.set_item("group_size", config.group_size)?;
    dict.set_item("redundancy", config.redundancy)?;
    dict.set_item("group_deadline", config.group_deadline_ms.map(seconds))?;
    dict.set_item("min_group_size", config.min_group_size)?;
    dict.set_item("batch_groups", config.batch_groups)?;
    dict.set_item("batches_per_version", config.batches_per_version)?;
    dict.set_item("max_lag", config.max_lag)?;
    dict.set_item("pipeline_depth", config.pipeline_depth)?;
    dict.set_item("auto_tune", config.auto_tune)?;
    dict.set_item("max_running", config.max_running)?;
    dict.set_item("capacity", config.capacity)?;
    dict.set_item("max_tokens", config.max_tokens)?;
    dict.set_item("max_blob_bytes", config.max_blob_bytes)?;
    dict.set_item("order", order)?;
    dict.set_item("window", window)?;
    dict.set_item("on_stale", name_of(config.on_stale, &STALE))?;
    dict.set_item("target_lag", config.target_lag)?;
    dict.set_item("max_mean_lag", config.max_mean_lag)?;
    dict.set_item("max_uses", (config.max_uses > 0).then_some(config.max_uses))?;
    dict.set_item("delivery", name_of(config.delivery, &DELIVERY))?;
    dict.set_item("reservation_ttl", seconds(config.reservation_ttl_ms))?;
    dict.set_item("on_expiry", name_of(config.on_expiry, &EXPIRY))?;
    dict.set_item("filter", config.filter.as_ref().map(ToString::to_string))?;
    let limiter = config.limiter.map(|parameters| {
        let Parameters { min_size, samples_per_insert, min_diff, max_diff } = parameters;
        ("raw", [min_size as f64, samples_per_insert, min_diff, max_diff])
    });
    dict.set_item("limiter", limiter)?;
    dict.set_item("seed", config.seed)?;
    Ok(dict)
}

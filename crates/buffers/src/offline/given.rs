//! Columns as they are given, by their names, before they are a data set.
//!
//! Names are paths: `obs` and what is below it are observations, `next_obs` the ones that steps led to, and
//! `rewards`, `terminated` and `truncated` have one element for each step.

use std::ops::Range;
use std::sync::Arc;

use super::column::{Axis, Column};
use super::episodes::Episodes;
use super::normal::{Float, Normal};
use super::{Dataset, Output, Settings, Value};
use crate::error::Error;

/// See the [module](self).
#[derive(Debug)]
pub struct Given {
    columns: Vec<Column>,
    /// What batches have of them.
    values: Vec<Value>,
}

/// An observation of a data set.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) name: String,
    /// The number of its value.
    pub(super) value: usize,
    /// The type of its elements, if it has a mean.
    pub(super) float: Option<Float>,
    /// How it is normalised.
    pub(super) normal: Option<Arc<Normal>>,
}

impl Given {
    /// These columns, of which nothing is in a batch yet.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, values: Vec::new() }
    }

    /// Whether a column is a file that is mapped.
    pub fn on_disk(&self) -> bool {
        self.columns.iter().any(|column| column.on_disk)
    }

    /// The addresses of all columns.
    pub fn addresses(&self) -> Vec<Range<usize>> {
        let range = |column: &Column| {
            let bytes = (*column.bytes).as_ref();
            bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len()
        };
        self.columns.iter().map(range).collect()
    }

    /// What a part of a batch is: the column of this name, or what the name stands for.
    ///
    /// # Errors
    ///
    /// When it is neither.
    pub fn output(&mut self, name: &str) -> Result<Output, Error> {
        match name {
            "returns_to_go" => return Ok(Output::ReturnsToGo),
            "timesteps" => return Ok(Output::Timestep),
            "mask" => return Ok(Output::Mask),
            _ => {}
        }
        if let Some(column) = self.find(name) {
            return Ok(Output::Value(self.number(Value { column, next: false })));
        }
        let own = name.strip_prefix("next_").and_then(|name| self.find(name));
        let unknown = || Error::Argument(format!("leaf `{name}`: there is no such column"));
        let column = own.ok_or_else(unknown)?;
        Ok(Output::Value(self.number(Value { column, next: true })))
    }

    /// The data set of the columns, which are copied or stay where they are. Where next observations are no
    /// columns, there is one more observation for each episode.
    ///
    /// # Errors
    ///
    /// [`Error`] when a column is missing or has not a row for each step, or an element can't be what it is.
    pub fn dataset(mut self, copied: bool, normalize: bool, gamma: f64) -> Result<Dataset, Error> {
        if self.columns.iter().any(|column| is_part_of(&column.name, "next_obs")) {
            if let Some(value) = self.values.iter().find(|value| value.next) {
                let column = format!("next_{}", self.columns[value.column].name);
                return Err(Error::missing(&column));
            }
        } else {
            let columns = self.columns.iter_mut();
            let observations = columns.filter(|column| is_part_of(&column.name, "obs"));
            observations.for_each(|column| column.axis = Axis::Observations);
        }
        let (terminated, truncated) = (self.named("terminated")?, self.named("truncated")?);
        let column = self.named("rewards")?;
        let dtype = self.columns[column].dtype;
        let float = Float::of(dtype).ok_or_else(|| {
            let text = format!("leaf `rewards`: expected float32 or float64, got {dtype}");
            Error::Argument(text)
        })?;
        let rewards = (self.number(Value { column, next: false }), float);
        let bytes = |column: usize| (*self.columns[column].bytes).as_ref();
        let episodes = Episodes::new(bytes(terminated), bytes(truncated))?;
        let observations = self.observations(&episodes, normalize)?;
        let settings = Settings { copied, rewards, gamma, pairs: self.pairs() };
        let dataset = Dataset::new(episodes, self.columns, &self.values, settings)?;
        Ok(Dataset { observations, ..dataset })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    fn named(&self, name: &str) -> Result<usize, Error> {
        self.find(name).ok_or_else(|| Error::missing(name))
    }

    /// The number of a value, which is noted if it is new.
    fn number(&mut self, value: Value) -> usize {
        self.values.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        })
    }

    /// All observations, measured if they are to be normalised.
    fn observations(
        &mut self,
        episodes: &Episodes,
        normalize: bool,
    ) -> Result<Vec<Observation>, Error> {
        let mut observations = Vec::new();
        for column in 0..self.columns.len() {
            let Column { name, dtype, .. } = &self.columns[column];
            if !is_part_of(name, "obs") {
                continue;
            }
            let (name, float) = (name.clone(), Float::of(*dtype));
            let measured = float.filter(|_| normalize);
            let normal = measured.map(|float| self.columns[column].measure(float, episodes));
            let normal = normal.transpose()?.map(Arc::new);
            let next = self.find(&format!("next_{name}"));
            for column in [Some(column), next].into_iter().flatten() {
                self.columns[column].normal.clone_from(&normal);
            }
            let value = self.number(Value { column, next: false });
            observations.push(Observation { name, value, float, normal });
        }
        Ok(observations)
    }

    /// Values that are an observation and the next one, each of a column of its own.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let value = |column: usize| self.values.iter().position(|value| value.column == column);
        let pairs = self.columns.iter().enumerate().filter_map(|(own, column)| {
            let next = is_part_of(&column.name, "obs").then(|| format!("next_{}", column.name))?;
            Some((value(own)?, value(self.find(&next)?)?))
        });
        pairs.collect()
    }
}

/// Whether a column is at this name, or below it.
fn is_part_of(path: &str, name: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

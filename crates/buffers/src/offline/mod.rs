//! A data set of steps that does not change: drawn from by step, or by stretches of an episode.
//!
//! - [`Dataset`]: columns, and how rows of them become a batch. [`given`]: columns by name, before they are one.
//! - [`mod@column`]: what is given for each step. [`part`]: rows as they lie in memory, and copies of many.
//! - [`episodes`]: where episodes begin and end, and what they returned. [`normal`]: mean 0 and spread 1.
//!
//! Columns are kept as they were given, or copied: values of a few hundred bytes then lie side by side, so
//! that one step is one or two lines of memory, and longer ones by column. An observation that is also
//! the next observation of the step before it is stored once, where it is long.
//!
//! # Invariants
//!
//! 1. Nothing of a data set changes once it is made, so any number of threads may read it.
//! 2. A step's observation is row `step + episode` of an axis of observations, since each episode has one
//!    more of them than it has steps.

pub mod column;
pub mod episodes;
pub mod given;
pub mod normal;
pub mod part;

use std::sync::{Arc, OnceLock};

use echoic_memory::slab::Field;
use echoic_replay::rng::Rng;
use smallvec::SmallVec;

use crate::error::Error;

use column::{Axis, Column};
use episodes::Episodes;
use given::Observation;
use normal::{Float, Normal};
use part::{NOWHERE, Part};

/// Longer values are not put side by side with others.
const LONG: usize = 512;

/// One thing that a batch has of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A value that was asked for when the data set was made.
    Value(usize),
    /// The discounted sum of rewards to the end of the episode, of the rewards' type.
    ReturnsToGo,
    /// How many steps of the episode came before, in 8 bytes.
    Timestep,
    /// Whether there is a step: a byte.
    Mask,
}

/// What a step has of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The number of the column.
    pub column: usize,
    /// The row after the step's own, of a column with an axis of observations.
    pub next: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Dataset {
    episodes: Episodes,
    parts: Vec<Part>,
    places: Vec<ColumnLocation>,
    rewards: (usize, Float),
    returns: Vec<f64>,
    gamma: f64,
    observations: Vec<Observation>,
    /// In the bytes of the rewards' type. Made when they are first asked for.
    returns_to_go: OnceLock<Vec<u8>>,
}

/// Where a value lies.
#[derive(Debug, Clone)]
struct ColumnLocation {
    part: usize,
    field: Field,
    rows: Rows,
    /// To be normalised when it is read: the bytes are not ours.
    normal: Option<Arc<Normal>>,
}

/// Which row of a part is that of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Step,
    Observation,
    Next,
}

/// What a data set is to be made of.
pub struct Settings {
    /// Copies the columns, which otherwise stay where they are.
    pub copied: bool,
    /// Which value is the reward, and its type.
    pub rewards: (usize, Float),
    /// The discount of returns-to-go.
    pub gamma: f64,
    /// Values that are an observation and the next observation.
    pub pairs: Vec<(usize, usize)>,
}

impl Dataset {
    /// A data set that has these values for each step.
    ///
    /// # Errors
    ///
    /// [`Error`] when there are no steps, a column has too few rows, or a reward is not finite.
    ///
    /// # Panics
    ///
    /// When a value is of a column that there is not.
    pub fn new(
        episodes: Episodes,
        columns: Vec<Column>,
        values: &[Value],
        settings: Settings,
    ) -> Result<Self, Error> {
        if episodes.steps() == 0 {
            return Err(Error::Argument("the data set has no steps".into()));
        }
        for column in &columns {
            column.check(&episodes)?;
        }
        let (parts, places) = if settings.copied {
            copied(&episodes, &columns, values, &settings.pairs)?
        } else {
            borrowed(&episodes, columns, values)?
        };
        let (rewards, gamma) = (settings.rewards, settings.gamma);
        let mut dataset = Self {
            episodes,
            parts,
            places,
            rewards,
            returns: Vec::new(),
            gamma,
            observations: Vec::new(),
            returns_to_go: OnceLock::new(),
        };
        let steps = 0..dataset.len();
        let rewards = steps.map(|step| (step, dataset.reward(step)));
        if let Some((step, value)) = rewards.into_iter().find(|(_, value)| !value.is_finite()) {
            let got = format!("got {value} at step {step}");
            return Err(Error::Argument(format!("`rewards`: expected finite numbers, {got}")));
        }
        dataset.returns = dataset.episodes.returns(&|step| dataset.reward(step));
        Ok(dataset)
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.episodes.steps()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where they begin and end.
    pub fn episodes(&self) -> &Episodes {
        &self.episodes
    }

    /// What each episode returned, undiscounted.
    pub fn returns(&self) -> &[f64] {
        &self.returns
    }

    /// How many bytes of memory it has of its own.
    pub fn own_bytes(&self) -> usize {
        self.parts.iter().map(Part::own_bytes).sum()
    }

    /// Steps drawn one by one, each as likely as any other, whatever was drawn before: the numbers
    /// `rng.below(len)`.
    pub fn draw(&self, rng: &mut Rng, count: usize) -> Vec<usize> {
        let steps = self.len() as u64;
        (0..count).map(|_| rng.below(steps) as usize).collect()
    }

    /// Stretches of `length` steps, each from a step drawn as by [`Dataset::draw`] to at most the end of its
    /// episode. What is missing is [`NOWHERE`]: behind the steps, or `before` them.
    pub fn draw_windows(
        &self,
        rng: &mut Rng,
        count: usize,
        length: usize,
        before: bool,
    ) -> Vec<usize> {
        let mut steps = Vec::with_capacity(count * length);
        for first in self.draw(rng, count) {
            let end = self.episodes.range(self.episodes.of(first)).end;
            let there = length.min(end - first);
            let missing = std::iter::repeat_n(NOWHERE, length - there);
            if before {
                steps.extend(missing);
                steps.extend(first..first + there);
            } else {
                steps.extend(first..first + there);
                steps.extend(missing);
            }
        }
        steps
    }

    /// How many bytes a step has of this.
    ///
    /// # Panics
    ///
    /// When there is no such value.
    pub fn bytes_of(&self, output: Output) -> usize {
        match output {
            Output::Value(value) => self.places[value].field.bytes,
            Output::ReturnsToGo => self.rewards.1.bytes(),
            Output::Timestep => 8,
            Output::Mask => 1,
        }
    }

    /// Copies what these steps have into columns; zeros for what is [`NOWHERE`].
    ///
    /// # Panics
    ///
    /// When there is no such step or value, or a column is not as long as all its values.
    pub fn gather(&self, steps: &[usize], outputs: &[Output], columns: &mut [&mut [u8]]) {
        assert_eq!(outputs.len(), columns.len(), "a column for each output");
        for (number, part) in self.parts.iter().enumerate() {
            for rows in [Rows::Step, Rows::Observation, Rows::Next] {
                let (mut fields, mut targets) =
                    (SmallVec::<[_; 8]>::new(), SmallVec::<[_; 8]>::new());
                for (output, column) in outputs.iter().zip(columns.iter_mut()) {
                    let Output::Value(value) = output else { continue };
                    let place = &self.places[*value];
                    if place.part == number && place.rows == rows {
                        fields.push(place.field);
                        targets.push(&mut **column);
                    }
                }
                match rows {
                    _ if fields.is_empty() => {}
                    Rows::Step => part.gather(steps, &fields, &mut targets),
                    Rows::Observation | Rows::Next => {
                        let rows = self.observations(steps, rows == Rows::Next);
                        part.gather(&rows, &fields, &mut targets);
                    }
                }
            }
        }
        for (output, column) in outputs.iter().zip(columns.iter_mut()) {
            match output {
                Output::Value(value) => self.normalise(*value, steps, column),
                Output::ReturnsToGo => self.copy_returns(steps, column),
                Output::Timestep => self.write_timesteps(steps, column),
                Output::Mask => {
                    let there = steps.iter().map(|step| u8::from(*step != NOWHERE));
                    column.iter_mut().zip(there).for_each(|(to, there)| *to = there);
                }
            }
        }
    }

    /// Mean and spread of each observation over all steps; `None` for those that are not of floats.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when there are numbers that are not finite.
    pub fn moments(&self) -> Result<Vec<Option<Arc<Normal>>>, Error> {
        let known = self.observations.iter().map(|observation| match observation {
            Observation { normal: Some(normal), .. } => Ok(Some(Arc::clone(normal))),
            Observation { name, value, float: Some(float), .. } => {
                self.measure(name, *value, *float).map(Arc::new).map(Some)
            }
            _ => Ok(None),
        });
        known.collect()
    }

    fn measure(&self, name: &str, value: usize, float: Float) -> Result<Normal, Error> {
        let place = &self.places[value];
        let part = &self.parts[place.part];
        let rows = self.episodes.ranges().enumerate().flat_map(|(episode, steps)| {
            let skipped = match place.rows {
                Rows::Step => 0,
                Rows::Observation => episode,
                Rows::Next => episode + 1,
            };
            steps.map(move |step| part.field(step + skipped, place.field))
        });
        Normal::of(name, float, place.field.bytes / float.bytes(), rows)
    }

    /// Whether [`Output::ReturnsToGo`] was asked for before: the first time takes a pass over all steps.
    pub fn has_returns_to_go(&self) -> bool {
        self.returns_to_go.get().is_some()
    }

    fn reward(&self, step: usize) -> f64 {
        let (value, float) = self.rewards;
        let ColumnLocation { part, field, .. } = &self.places[value];
        float.at(self.parts[*part].field(step, *field), 0)
    }

    /// The rows of an axis of observations.
    fn observations(&self, steps: &[usize], next: bool) -> Vec<usize> {
        let row = |step: &usize| match *step {
            NOWHERE => NOWHERE,
            step => step + self.episodes.of(step) + usize::from(next),
        };
        steps.iter().map(row).collect()
    }

    /// Values of borrowed columns are normalised when they are read.
    fn normalise(&self, value: usize, steps: &[usize], column: &mut [u8]) {
        let ColumnLocation { field, normal: Some(normal), .. } = &self.places[value] else {
            return;
        };
        if field.bytes > 0 {
            for (step, row) in steps.iter().zip(column.chunks_exact_mut(field.bytes)) {
                if *step != NOWHERE {
                    normal.apply(row);
                }
            }
        }
    }

    fn copy_returns(&self, steps: &[usize], column: &mut [u8]) {
        let float = self.rewards.1;
        let all = self.returns_to_go.get_or_init(|| {
            let sums = self.episodes.returns_to_go(&|step| self.reward(step), self.gamma);
            match float {
                Float::Single => sums.iter().flat_map(|sum| (*sum as f32).to_ne_bytes()).collect(),
                Float::Double => sums.iter().flat_map(|sum| sum.to_ne_bytes()).collect(),
            }
        });
        match float {
            Float::Single => copy_numbers::<4>(all, steps, column),
            Float::Double => copy_numbers::<8>(all, steps, column),
        }
    }

    fn write_timesteps(&self, steps: &[usize], column: &mut [u8]) {
        let mut episode = 0..0;
        for (step, to) in steps.iter().zip(column.as_chunks_mut().0) {
            let timestep = if *step == NOWHERE {
                0
            } else {
                if !episode.contains(step) {
                    episode = self.episodes.range(self.episodes.of(*step));
                }
                (step - episode.start) as i64
            };
            *to = timestep.to_ne_bytes();
        }
    }
}

/// Copies these of some numbers.
fn copy_numbers<const BYTES: usize>(all: &[u8], steps: &[usize], column: &mut [u8]) {
    let (all, _) = all.as_chunks::<BYTES>();
    for (step, to) in steps.iter().zip(column.as_chunks_mut::<BYTES>().0) {
        *to = if *step == NOWHERE { [0; BYTES] } else { all[*step] };
    }
}

/// Columns that stay where they are.
fn borrowed(
    episodes: &Episodes,
    columns: Vec<Column>,
    values: &[Value],
) -> Result<(Vec<Part>, Vec<ColumnLocation>), Error> {
    let places = values.iter().map(|value| {
        let column = &columns[value.column];
        let field = Field { offset: 0, bytes: column.row_bytes };
        ColumnLocation {
            part: value.column,
            field,
            rows: rows_of(column, value),
            normal: column.normal.clone(),
        }
    });
    let places = places.collect();
    let parts = columns.into_iter().map(|column| column.into_part(episodes));
    Ok((parts.collect::<Result<_, _>>()?, places))
}

fn rows_of(column: &Column, value: &Value) -> Rows {
    match (column.axis, value.next) {
        (Axis::Steps, _) => Rows::Step,
        (Axis::Observations, false) => Rows::Observation,
        (Axis::Observations, true) => Rows::Next,
    }
}

/// Columns that are copied: the short values of a step side by side.
fn copied(
    episodes: &Episodes,
    columns: &[Column],
    values: &[Value],
    pairs: &[(usize, usize)],
) -> Result<(Vec<Part>, Vec<ColumnLocation>), Error> {
    let (mut parts, mut places): (Vec<Part>, Vec<Option<ColumnLocation>>) =
        (Vec::new(), Vec::new());
    let is_long = |value: &Value| columns[value.column].row_bytes > LONG;
    places.resize(values.len(), None);
    for (first, next) in pairs {
        let [one, other] = [first, next].map(|value| values[*value]);
        if is_long(&one)
            && column::is_shifted(&columns[one.column], &columns[other.column], episodes)
        {
            let part = column::joined(&columns[one.column], &columns[other.column], episodes)?;
            for (value, rows) in [(first, Rows::Observation), (next, Rows::Next)] {
                let field = Field { offset: 0, bytes: columns[one.column].row_bytes };
                places[*value] =
                    Some(ColumnLocation { part: parts.len(), field, rows, normal: None });
            }
            parts.push(part);
        }
    }
    for number in 0..values.len() {
        let value = values[number];
        if places[number].is_some() || !is_long(&value) {
            continue;
        }
        // A column of observations is copied once, for both values that there are of it.
        let same = |other: &usize| values[*other].column == value.column;
        let known = (0..number).find(same).and_then(|other| places[other].as_ref());
        let part = known.map_or(parts.len(), |place| place.part);
        let column = &columns[value.column];
        if part == parts.len() {
            parts.push(column.copied(episodes)?);
        }
        let field = Field { offset: 0, bytes: column.row_bytes };
        places[number] =
            Some(ColumnLocation { part, field, rows: rows_of(column, &value), normal: None });
    }
    let short: Vec<usize> = (0..values.len()).filter(|number| places[*number].is_none()).collect();
    let mut offset = 0;
    for number in &short {
        let bytes = columns[values[*number].column].row_bytes;
        let field = Field { offset, bytes };
        offset += bytes;
        let part = parts.len();
        places[*number] = Some(ColumnLocation { part, field, rows: Rows::Step, normal: None });
    }
    if !short.is_empty() {
        let fields = short.iter().zip(short.iter().filter_map(|number| places[*number].as_ref()));
        let fields: Vec<_> = fields.map(|(number, place)| (values[*number], place.field)).collect();
        parts.push(column::side_by_side(episodes, columns, &fields, offset)?);
    }
    Ok((parts, places.into_iter().flatten().collect()))
}

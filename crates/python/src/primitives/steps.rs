//! Arguments of functions on steps in time: their shapes, layouts and ends.

use echoic_primitives::rollout::Truncation;
use echoic_primitives::{Error, Layout, Real, Rollout};
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use smallvec::SmallVec;

use super::input::{
    FlagInput, Input, Number, Precision, Whole, count, in_precision, same_shape, text_of,
    wrong_shape,
};
use super::kind::Kind;
use super::output::{Output, try_filled};
use crate::error::argument_error;

/// Two results.
pub type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// How steps lie in the arrays, and which of them were cut off: what all functions take.
#[derive(Default)]
pub struct Options<'a, 'py> {
    pub truncated: Option<&'a Bound<'py, PyAny>>,
    pub final_values: Option<&'a Bound<'py, PyAny>>,
    pub time_axis: Option<i64>,
    pub offsets: Option<&'a Bound<'py, PyAny>>,
    /// Steps of each sequence, where sequences follow each other in flat arrays.
    pub n_steps: Option<i64>,
}

/// What is worth what after the last step of each sequence.
enum Last<'py> {
    All(f64),
    Each(Input<'py>),
}

/// How the steps lie.
enum Order {
    TimeMajor,
    SequenceMajor,
    Flat { steps: usize },
    Ragged(Vec<usize>),
}

/// Checked arguments.
pub struct Steps<'py> {
    py: Python<'py>,
    leading: &'static str,
    rewards: Input<'py>,
    values: Option<Input<'py>>,
    last: Last<'py>,
    terminated: FlagInput<'py>,
    truncation: Option<(FlagInput<'py>, Input<'py>)>,
    order: Order,
    kind: Kind,
}

/// Arguments by name, for messages that name them as the function's caller does.
pub type Named<'a, 'py> = (&'static str, &'a Bound<'py, PyAny>);

impl<'py> Steps<'py> {
    /// Checks arguments; `force` is the precision if not the rewards' own.
    #[inline]
    pub fn new(
        (leading, rewards): Named<'_, 'py>,
        values: Option<Named<'_, 'py>>,
        (ends, dones): Named<'_, 'py>,
        last: Named<'_, 'py>,
        options: &Options<'_, 'py>,
        force: Option<Precision>,
    ) -> PyResult<Self> {
        let py = rewards.py();
        let (rewards, kind) = match force {
            Some(precision) => (Input::following(leading, rewards, precision)?, Kind::of(rewards)?),
            None => Input::leading(leading, rewards)?,
        };
        let precision = rewards.precision();
        let order = order(py, leading, rewards.shape(), options)?;
        let same = |name, shape: &[usize]| same_shape(py, name, shape, leading, rewards.shape());
        let values = match values {
            Some((name, object)) => {
                let values = Input::following(name, object, precision)?;
                same(name, values.shape())?;
                Some(values)
            }
            None => None,
        };
        let terminated = FlagInput::new(ends, dones)?;
        if let Some(shape) = terminated.shape() {
            same(ends, shape)?;
        }
        let truncation = match (options.truncated, options.final_values) {
            (Some(truncated), Some(finals)) => {
                let truncated = FlagInput::new("truncated", truncated)?;
                if let Some(shape) = truncated.shape() {
                    same("truncated", shape)?;
                }
                let finals = Input::following("final_values", finals, precision)?;
                same("final_values", finals.shape())?;
                Some((truncated, finals))
            }
            (None, None) => None,
            (Some(_), None) => {
                let text = "`truncated` needs `final_values`: what the last observation of each \
                            truncated step is worth, from which its return goes on";
                return Err(argument_error(py, text));
            }
            (None, Some(_)) => {
                let text = "`final_values` needs `truncated`, which says where they count";
                return Err(argument_error(py, text));
            }
        };
        let mut steps = Self {
            py,
            leading,
            rewards,
            values,
            last: Last::All(0.0),
            terminated,
            truncation,
            order,
            kind,
        };
        steps.last = steps.last_values(last)?;
        Ok(steps)
    }

    /// Another argument with a number for each step.
    #[inline]
    pub fn also(&self, (name, object): Named<'_, 'py>) -> PyResult<Input<'py>> {
        let input = Input::following(name, object, self.precision())?;
        same_shape(self.py, name, input.shape(), self.leading, self.rewards.shape())?;
        Ok(input)
    }

    /// In which numbers to compute.
    #[inline]
    pub fn precision(&self) -> Precision {
        self.rewards.precision()
    }

    /// An array with a number for each step, which `work` fills.
    #[inline]
    pub fn one<T: Number>(
        &self,
        work: impl FnOnce(&Rollout<'_, T>, &mut [T]) -> Result<(), Error> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let last = self.last();
        let (rollout, shape) = (self.rollout(&last), self.rewards.shape());
        try_filled(self.py, shape, self.kind, self.rewards.len(), |out| work(&rollout, out))
    }

    /// Two of them.
    #[inline]
    pub fn two<T: Number>(
        &self,
        work: impl FnOnce(&Rollout<'_, T>, &mut [T], &mut [T]) -> Result<(), Error> + Send,
    ) -> PyResult<Pair<'py>> {
        let last = self.last();
        let (rollout, shape) = (self.rollout(&last), self.rewards.shape());
        let mut second = Output::new(self.py, shape, self.kind)?;
        let other = second.numbers();
        let work = |out: &mut [T]| work(&rollout, out, other);
        let first = try_filled(self.py, shape, self.kind, self.rewards.len(), work)?;
        Ok((first, second.finish(self.kind)?))
    }

    /// The last values in this precision.
    #[inline]
    fn last<T: Number>(&self) -> SmallVec<[T; 8]> {
        match &self.last {
            Last::All(number) => {
                SmallVec::from_elem(T::from_f64(*number), self.layout().sequences())
            }
            Last::Each(numbers) => SmallVec::from_slice(numbers.numbers()),
        }
    }

    /// The arguments as Rust has them.
    #[inline]
    fn rollout<'a, T: Number>(&'a self, last_values: &'a [T]) -> Rollout<'a, T> {
        Rollout {
            layout: self.layout(),
            rewards: self.rewards.numbers(),
            values: self.values.as_ref().map(Input::numbers),
            last_values,
            terminated: self.terminated.flags(),
            truncation: self.truncation.as_ref().map(|(truncated, finals)| Truncation {
                truncated: truncated.flags(),
                final_values: finals.numbers(),
            }),
        }
    }

    #[inline]
    fn layout(&self) -> Layout<'_> {
        match (&self.order, self.rewards.shape()) {
            (Order::Ragged(offsets), _) => Layout::Ragged { offsets },
            (Order::TimeMajor, &[steps, sequences]) => Layout::TimeMajor { steps, sequences },
            (Order::SequenceMajor, &[sequences, steps]) => {
                Layout::SequenceMajor { sequences, steps }
            }
            (&Order::Flat { steps }, _) => {
                Layout::SequenceMajor { sequences: self.rewards.len() / steps, steps }
            }
            _ => Layout::one(self.rewards.len()),
        }
    }

    #[inline]
    fn last_values(&self, (name, object): Named<'_, 'py>) -> PyResult<Last<'py>> {
        if let Ok(number) = object.cast::<PyFloat>() {
            return Ok(Last::All(number.extract()?));
        }
        let numbers = Input::following(name, object, self.precision())?;
        let single = self.rewards.shape().len() == 1 && matches!(self.order, Order::SequenceMajor);
        match *numbers.shape() {
            [] => {}
            // A value network gives one value as an array of one.
            [1] if single => {}
            [len] if !single && len == self.layout().sequences() => {}
            _ => {
                let expected = if single {
                    "one number".into()
                } else {
                    let sequences = self.layout().sequences();
                    format!("one number, or one for each of {sequences} sequences")
                };
                return Err(wrong_shape(self.py, name, numbers.shape(), &expected));
            }
        }
        if numbers.shape().is_empty() {
            let number = in_precision!(self.precision(), T => numbers.numbers::<T>()[0].to_f64());
            return Ok(Last::All(number));
        }
        Ok(Last::Each(numbers))
    }
}

#[inline]
fn order(
    py: Python<'_>,
    name: &str,
    shape: &[usize],
    options: &Options<'_, '_>,
) -> PyResult<Order> {
    let fail = |text: String| Err(argument_error(py, text));
    match (shape.len(), options) {
        (_, Options { offsets: Some(_), .. }) => ragged(py, name, shape, options),
        (_, &Options { n_steps: Some(steps), .. }) => flat(py, name, shape, steps),
        (1, Options { time_axis: None | Some(0 | -1), .. })
        | (2, Options { time_axis: Some(1 | -1), .. }) => Ok(Order::SequenceMajor),
        (2, Options { time_axis: Some(0 | -2), .. }) => Ok(Order::TimeMajor),
        (2, Options { time_axis: None, .. }) => fail(format!(
            "`{name}` has shape {}: say which axis is time, time_axis=0 for (T, N) or time_axis=1 \
             for (N, T)",
            text_of(shape)
        )),
        (1 | 2, Options { time_axis: Some(axis), .. }) => {
            fail(format!("`{name}` has shape {}, so there is no time_axis={axis}", text_of(shape)))
        }
        _ => fail(format!("`{name}` has shape {}, expected 1-D or 2-D", text_of(shape))),
    }
}

#[cold]
fn ragged(
    py: Python<'_>,
    name: &str,
    shape: &[usize],
    options: &Options<'_, '_>,
) -> PyResult<Order> {
    let fail = |text: String| Err(argument_error(py, text));
    let (&[len], Some(ends), None) = (shape, options.offsets, options.time_axis) else {
        let text = text_of(shape);
        return fail(format!(
            "`offsets` is for 1-D arrays and no time_axis, but `{name}` has shape {text} and \
             time_axis is {}",
            options.time_axis.map_or("None".into(), |axis| axis.to_string())
        ));
    };
    let offsets = Whole::in_one_axis("offsets", ends)?;
    let offsets = offsets.numbers().iter().enumerate().map(|(at, offset)| {
        usize::try_from(*offset).map_err(|_| {
            let text = format!("`offsets`[{at}] is {offset}, but offsets are at least 0");
            argument_error(py, text)
        })
    });
    let offsets: Vec<usize> = offsets.collect::<PyResult<_>>()?;
    match (offsets.first(), offsets.last()) {
        (Some(0), Some(&last)) if last == len => Ok(Order::Ragged(offsets)),
        (Some(first), Some(last)) => fail(format!(
            "`offsets` goes from {first} to {last}, expected 0 to {len}, the length of `{name}`"
        )),
        _ => fail(format!("`offsets` is empty, expected 0 to {len}, the length of `{name}`")),
    }
}

#[inline]
fn flat(py: Python<'_>, name: &str, shape: &[usize], steps: i64) -> PyResult<Order> {
    let fail = |text: String| Err(argument_error(py, text));
    let &[len] = shape else {
        return fail(format!("`{name}` has shape {}, expected 1-D", text_of(shape)));
    };
    let steps = count(py, "n_steps", steps, 1)?;
    if len.is_multiple_of(steps) {
        return Ok(Order::Flat { steps });
    }
    fail(format!("`{name}` has {len} elements, no multiple of n_steps={steps}"))
}

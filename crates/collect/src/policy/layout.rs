//! Where each parameter is among the flat weights.

use std::ops::Range;

use crate::error::Error;

/// The parameters of an actor and a critic, each of two hidden layers and one of outputs.
///
/// The order is the `log_std` of continuous actions, then the actor's first, second and third layer,
/// then the critic's; of each layer the matrix, a row for each output, and then the biases. That is the
/// order in which a `torch.nn.Module` lists these parameters: its own, and then those of its layers.
///
/// ```
/// use echoic_collect::policy::Layout;
///
/// let layout = Layout { observation: 4, hidden: 64, outputs: 2, continuous: false };
/// assert_eq!(layout.len(), Some(9155));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How many numbers an observation has.
    pub observation: usize,
    /// How wide the hidden layers are.
    pub hidden: usize,
    /// How many outputs the actor has.
    pub outputs: usize,
    /// Whether they are means of normal distributions, and not logits.
    pub continuous: bool,
}

/// Where a layer's parameters are.
#[derive(Debug, Clone)]
pub struct Layer {
    /// How many numbers go in.
    pub inputs: usize,
    /// How many come out.
    pub outputs: usize,
    /// The matrix, a row for each output.
    pub matrix: Range<usize>,
    /// A number for each output.
    pub biases: Range<usize>,
}

impl Layout {
    /// How many parameters there are; `None` when that is beyond counting.
    #[expect(clippy::len_without_is_empty, reason = "a network always has parameters")]
    pub fn len(&self) -> Option<usize> {
        let Self { observation, hidden, outputs, continuous } = *self;
        let network = |outputs: usize| {
            let layer = |inputs: usize, outputs: usize| inputs.checked_add(1)?.checked_mul(outputs);
            let [first, second] = [layer(observation, hidden)?, layer(hidden, hidden)?];
            first.checked_add(second)?.checked_add(layer(hidden, outputs)?)
        };
        let head = if continuous { outputs } else { 0 };
        network(outputs)?.checked_add(head)?.checked_add(network(1)?)
    }

    /// Where `log_std` is, the layers of the actor, and those of the critic.
    ///
    /// # Panics
    ///
    /// When there are more parameters than can be counted.
    pub fn parts(&self) -> (Range<usize>, [Layer; 3], [Layer; 3]) {
        let mut end = 0;
        let mut next = |len: usize| {
            let start = end;
            end += len;
            start..end
        };
        let log_std = next(if self.continuous { self.outputs } else { 0 });
        let mut layer = |inputs: usize, outputs: usize| {
            let (matrix, biases) = (next(inputs * outputs), next(outputs));
            Layer { inputs, outputs, matrix, biases }
        };
        let mut network = |outputs: usize| {
            [
                layer(self.observation, self.hidden),
                layer(self.hidden, self.hidden),
                layer(self.hidden, outputs),
            ]
        };
        (log_std, network(self.outputs), network(1))
    }

    /// Whether these are weights of this layout.
    ///
    /// # Errors
    ///
    /// When there are too few or too many, or one is not finite.
    pub fn check(&self, weights: &[f32]) -> Result<(), Error> {
        let expected = self.len().ok_or(Error::Memory("the weights"))?;
        if weights.len() != expected {
            return Err(Error::length("weights", expected, weights.len()));
        }
        match weights.iter().position(|weight| !weight.is_finite()) {
            Some(index) => {
                let value = weights[index].into();
                Err(Error::NotFinite { what: "weights", index, value })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_are_all_that_there_is() {
        for continuous in [false, true] {
            let layout = Layout { observation: 3, hidden: 5, outputs: 2, continuous };
            let (log_std, actor, critic) = layout.parts();
            let layers = actor.into_iter().chain(critic);
            let ranges = layers.flat_map(|layer| [layer.matrix, layer.biases]);
            let ranges = std::iter::once(log_std).chain(ranges);
            let mut end = 0;
            for range in ranges {
                assert_eq!(range.start, end);
                end = range.end;
            }
            assert_eq!(Some(end), layout.len());
        }
    }

    #[test]
    fn more_weights_than_can_be_counted_are_an_error() {
        let hidden = usize::MAX / 2;
        let layout = Layout { observation: 4, hidden, outputs: 2, continuous: false };
        assert_eq!(layout.check(&[]), Err(Error::Memory("the weights")));
    }
}

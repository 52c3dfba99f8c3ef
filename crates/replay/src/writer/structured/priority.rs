//! The priority of an automatic item.

use super::error::StructuredError;

/// A number, or a function of the steps of one of the item's columns, which must hold numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Priority {
    /// This one.
    Constant(f64),
    /// As computed from a column of the item.
    Column {
        /// Which of the pattern's leaves.
        leaf: usize,
        /// How many numbers become one.
        reduce: Reduce,
        /// Take the numbers without their signs, as is usual for errors of a value function.
        absolute: bool,
    },
}

/// How many numbers become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduce {
    /// The largest.
    Max,
    /// Their mean.
    Mean,
    /// The one of the last step.
    Last,
    /// `eta * max + (1 - eta) * mean`, the priority of sequences of Kapturowski et al., "Recurrent
    /// Experience Replay in Distributed Reinforcement Learning" (2019).
    Mixed {
        /// The part of the maximum, from 0 to 1.
        eta: f64,
    },
}

impl Reduce {
    /// The result for at least one number. One NaN makes it a NaN, so that the item is refused.
    pub(super) fn apply(self, values: &[f64]) -> f64 {
        let max = || {
            // The maximum of the standard library passes over a NaN.
            let nan = values.iter().any(|value| value.is_nan());
            if nan { f64::NAN } else { values.iter().copied().fold(f64::NEG_INFINITY, f64::max) }
        };
        let mean = || values.iter().sum::<f64>() / values.len() as f64;
        match self {
            Self::Max => max(),
            Self::Mean => mean(),
            Self::Last => values.last().copied().unwrap_or(f64::NAN),
            Self::Mixed { eta } => eta * max() + (1.0 - eta) * mean(),
        }
    }
}

impl Priority {
    /// Which leaf it looks at.
    pub(super) fn leaf(&self) -> Option<usize> {
        match self {
            Self::Constant(_) => None,
            Self::Column { leaf, .. } => Some(*leaf),
        }
    }

    /// Refuses what can't be computed.
    pub(super) fn check(&self, leaves: usize) -> Result<(), StructuredError> {
        match *self {
            Self::Constant(value) if !value.is_finite() || value < 0.0 => {
                Err(StructuredError::Priority(value))
            }
            Self::Column { leaf, .. } if leaf >= leaves => {
                Err(StructuredError::PriorityLeaf { leaf, leaves })
            }
            Self::Column { reduce: Reduce::Mixed { eta }, .. } if !(0.0..=1.0).contains(&eta) => {
                Err(StructuredError::Mixed(eta))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reduced() {
        let values = [3.0, 1.0, 2.0];
        let got = [Reduce::Max, Reduce::Mean, Reduce::Last, Reduce::Mixed { eta: 0.9 }]
            .map(|reduce| reduce.apply(&values));
        assert_eq!(got, [3.0, 2.0, 2.0, 0.9 * 3.0 + (1.0 - 0.9) * 2.0]);
    }

    #[test]
    fn a_nan_is_not_lost() {
        for values in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
            for reduce in [Reduce::Max, Reduce::Mean, Reduce::Mixed { eta: 0.5 }] {
                assert!(reduce.apply(&values).is_nan(), "{reduce:?} {values:?}");
            }
        }
    }
}

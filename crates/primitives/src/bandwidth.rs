//! The cost of reading a sequence with attention, and which goes first when bandwidth is scarce.
//!
//! A sequence of `t` tokens has `t (t + 1) / 2` pairs of a token and one that it attends to. With a
//! scale of `2 * layers * kv_heads * head_dim * bytes`, the cost is the number of bytes of keys and values
//! that decoding it token by token reads. What a cache had of its beginning costs nothing again.
//!
//! Pairs are counted in whole numbers and become `f64` once, so costs are the nearest numbers to the exact
//! ones however long the sequences are.

use crate::error::Error;

/// Pairs of a token and one that it attends to, among the tokens that were not reused. A beginning
/// longer than the sequence is all of it.
///
/// ```
/// use echoic_primitives::bandwidth::pairs;
///
/// assert_eq!((pairs(10, 0), pairs(10, 5), pairs(10, 11)), (55, 40, 0));
/// ```
#[inline]
pub fn pairs(tokens: u64, reused: u64) -> u128 {
    let (tokens, reused) = (u128::from(tokens), u128::from(reused.min(tokens)));
    // One of the factors is even, and their product is below 2^129 / 2: both fit if it is halved first.
    let (fresh, sum) = (tokens - reused, tokens + reused + 1);
    if fresh.is_multiple_of(2) { fresh / 2 * sum } else { fresh * (sum / 2) }
}

/// The cost of a sequence of which a cache had the first `reused` tokens.
#[inline]
pub fn cost(tokens: u64, reused: u64, scale: f64) -> f64 {
    pairs(tokens, reused) as f64 * scale
}

/// The cost of each sequence; without `reused`, nothing was.
///
/// # Errors
///
/// When lengths differ, or a number is negative.
pub fn costs(
    tokens: &[i64],
    reused: Option<&[i64]>,
    scale: f64,
    out: &mut [f64],
) -> Result<(), Error> {
    Error::unless_length("seq_lengths", tokens, out.len())?;
    let count = |name, numbers: &[i64], index: usize| {
        u64::try_from(numbers[index]).map_err(|_| Error::Negative { name, index })
    };
    if let Some(reused) = reused {
        Error::unless_length("reuse_lengths", reused, out.len())?;
        for (at, out) in out.iter_mut().enumerate() {
            let reused = count("reuse_lengths", reused, at)?;
            *out = cost(count("seq_lengths", tokens, at)?, reused, scale);
        }
    } else {
        for (at, out) in out.iter_mut().enumerate() {
            *out = cost(count("seq_lengths", tokens, at)?, 0, scale);
        }
    }
    Ok(())
}

/// How much each term counts in the denominator of [`priorities`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of the cost.
    pub bandwidth: f64,
    /// Of the seconds waited.
    pub queue: f64,
    /// Added to both; above zero, so that nothing is divided by zero.
    pub epsilon: f64,
}

/// `reward / (w_b cost + w_q wait + epsilon)` of each request; without costs, they are zero.
///
/// # Errors
///
/// When lengths differ, a cost or a wait is negative, or a number is not finite. What was written of
/// `out` until then is of no use.
pub fn priorities(
    rewards: &[f64],
    costs: Option<&[f64]>,
    waits: &[f64],
    weights: Weights,
    out: &mut [f64],
) -> Result<(), Error> {
    Error::unless_length("rewards", rewards, out.len())?;
    Error::unless_length("queue_times", waits, out.len())?;
    Error::unless_finite("rewards", rewards)?;
    unless_amounts("queue_times", waits)?;
    if let Some(costs) = costs {
        Error::unless_length("bandwidth_costs", costs, out.len())?;
        unless_amounts("bandwidth_costs", costs)?;
    }
    for (at, out) in out.iter_mut().enumerate() {
        let cost = costs.map_or(0.0, |costs| costs[at]);
        *out =
            rewards[at] / (weights.bandwidth * cost + weights.queue * waits[at] + weights.epsilon);
    }
    Ok(())
}

/// What was learned by what it cost: the rewards by the cost of acting and the cost of learning. Zero where
/// nothing was spent.
#[inline]
pub fn efficiency(reward: f64, rollout_cost: f64, learner_cost: f64) -> f64 {
    let spent = rollout_cost + learner_cost;
    if spent <= 1e-12 { 0.0 } else { reward / spent }
}

/// An error unless all numbers are finite, and none is negative.
fn unless_amounts(name: &'static str, numbers: &[f64]) -> Result<(), Error> {
    Error::unless_finite(name, numbers)?;
    match numbers.iter().position(|number| *number < 0.0) {
        Some(index) => Err(Error::Negative { name, index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_exact_where_single_precision_ends() {
        for tokens in [5793u64, 100_001, 131_072, 94_906_265] {
            assert_eq!(cost(tokens, 0, 1.0) as u64, tokens * (tokens + 1) / 2);
        }
        assert_eq!(cost(94_906_265, 94_906_264, 1.0), 94_906_265.0);
        // The largest count overflows nothing.
        assert_eq!(pairs(u64::MAX, 0), u128::from(u64::MAX) << 63);
    }

    #[test]
    fn what_was_reused_and_what_was_not_are_the_whole() {
        for tokens in 0..40u64 {
            for reused in 0..=tokens {
                let direct: u128 = (reused + 1..=tokens).map(u128::from).sum();
                assert_eq!(pairs(tokens, reused), direct);
                assert_eq!(pairs(tokens, reused) + pairs(reused, 0), pairs(tokens, 0));
            }
        }
    }

    #[test]
    fn a_negative_amount_names_its_place() {
        let mut out = [0.0; 2];
        let error = costs(&[3, -1], None, 1.0, &mut out).unwrap_err();
        assert_eq!(error, Error::Negative { name: "seq_lengths", index: 1 });
        let weights = Weights { bandwidth: 1.0, queue: 1.0, epsilon: 1e-6 };
        let error =
            priorities(&[1.0; 2], Some(&[0.0, -2.0]), &[0.0; 2], weights, &mut out).unwrap_err();
        assert_eq!(error, Error::Negative { name: "bandwidth_costs", index: 1 });
    }
}

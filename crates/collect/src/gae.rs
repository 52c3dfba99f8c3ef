//! Advantages of steps under a policy: generalised advantage estimation (Schulman et al., 2016).
//!
//! `δ_t = r_t + γ·v'_t − v_t` and `A_t = δ_t + γ·λ·A_{t+1}`, where `v'_t` is the value of what the step
//! led to: nothing where the task ended, and `A` does not reach over the end of an episode of either
//! kind. What a step led to where an episode was cut off is not the next observation, so its value is
//! given apart.

/// Values and flags of some steps of some environments, those of a step together.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    /// What each step gave.
    pub rewards: &'a [f32],
    /// The value of what each step saw.
    pub values: &'a [f32],
    /// Where the task ended.
    pub terminated: &'a [bool],
    /// Where the time was over; `cut_values` has the values of what was seen last, in order.
    pub truncated: &'a [bool],
    /// See `truncated`. Where the task ended in the same step, its number counts for nothing.
    pub cut_values: &'a [f32],
    /// The value of what each environment shows after the last step.
    pub last_values: &'a [f32],
}

/// Writes the advantages.
///
/// # Panics
///
/// When lengths do not fit: there are as many environments as last values.
pub fn advantages(steps: Steps<'_>, gamma: f32, lambda: f32, advantages: &mut [f32]) {
    let count = steps.last_values.len();
    let mut cut_values = steps.cut_values.iter().rev();
    // The advantages and values of the step after, which is the one that was computed before.
    let mut later = vec![0.0; count];
    let mut next = steps.last_values.to_vec();
    for start in (0..advantages.len()).step_by(count).rev() {
        // Cut values are in order, so the environments of a step go backwards too.
        for env in (0..count).rev() {
            let at = start + env;
            let value = steps.values[at];
            let cut = steps.truncated[at];
            let ahead = if cut { cut_values.next().copied().unwrap_or(0.0) } else { next[env] };
            let going = if steps.terminated[at] { 0.0 } else { gamma };
            let delta = steps.rewards[at] + going * ahead - value;
            let rest = if cut { 0.0 } else { going * lambda * later[env] };
            advantages[at] = delta + rest;
            later[env] = advantages[at];
            next[env] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hand_computed() {
        let steps = Steps {
            rewards: &[1.0, 2.0, 3.0],
            values: &[10.0, 20.0, 30.0],
            terminated: &[false; 3],
            truncated: &[false, true, false],
            cut_values: &[40.0],
            last_values: &[50.0],
        };
        let mut got = [0.0; 3];
        advantages(steps, 0.5, 0.5, &mut got);
        // 3 + 25 − 30; 2 + 20 − 20 (cut); 1 + 10 − 10 + 0.25 · 2.
        assert_eq!(got, [1.5, 2.0, -2.0]);
    }

    proptest! {
        /// The definition: the sum of λ-weighted errors up to the end of the episode.
        #[test]
        fn agrees_with_the_definition(
            count in 1usize..4,
            ends in prop::collection::vec(0u8..6, 4..40),
            gamma in 0.0f32..1.0,
            lambda in 0.0f32..1.0,
        ) {
            let len = ends.len() / count * count;
            let number = |at: usize, salt: usize| ((at * 7 + salt * 13) % 11) as f32 / 5.0 - 1.0;
            let rewards: Vec<f32> = (0..len).map(|at| number(at, 1)).collect();
            let values: Vec<f32> = (0..len).map(|at| number(at, 2)).collect();
            let terminated: Vec<bool> = ends[..len].iter().map(|end| *end == 0).collect();
            let truncated: Vec<bool> = ends[..len].iter().map(|end| *end == 1).collect();
            let cuts = truncated.iter().filter(|cut| **cut).count();
            let cut_values: Vec<f32> = (0..cuts).map(|at| number(at, 3)).collect();
            let last_values: Vec<f32> = (0..count).map(|at| number(at, 4)).collect();
            let mut got = vec![0.0; len];
            let steps = Steps {
                rewards: &rewards,
                values: &values,
                terminated: &terminated,
                truncated: &truncated,
                cut_values: &cut_values,
                last_values: &last_values,
            };
            advantages(steps, gamma, lambda, &mut got);
            for (at, got) in got.into_iter().enumerate() {
                let (mut sum, mut weight) = (0.0, 1.0);
                for now in (at..len).step_by(count) {
                    let ahead = if terminated[now] {
                        0.0
                    } else if truncated[now] {
                        cut_values[truncated[..now].iter().filter(|cut| **cut).count()]
                    } else if now + count < len {
                        values[now + count]
                    } else {
                        last_values[now % count]
                    };
                    sum += weight * (rewards[now] + gamma * ahead - values[now]);
                    weight *= gamma * lambda;
                    if terminated[now] || truncated[now] {
                        break;
                    }
                }
                prop_assert!((got - sum).abs() < 1e-4, "{at}: {got} against {sum}");
            }
        }
    }
}

//! Some steps of all environments under a policy.
//!
//! A [`Rollout`] is plain memory that is filled again and again; a [`Worker`] has the environments, the
//! policy and the random stream of its actions, and fills rollouts one after the other without a gap.
//! Environments begin their next episode in the same step, so every row is a transition that happened.
//! Where an episode was cut off, the value of the observation that it ended with stands for what would
//! have come; that observation itself is in no row.

use std::sync::atomic::{AtomicBool, Ordering};

use echoic_primitives::gae::gae;
use echoic_primitives::{Flags, Truncation};
use echoic_replay::rng::Rng;

use crate::env::{Actions, Space};
use crate::error::Error;
use crate::policy::{Layout, Policy, head};
use crate::vector::{Autoreset, Envs, Outcome, open};

/// Tells the stream of actions from those of environments, which are near their seed.
const STREAM: u64 = 0x6163_7469_6f6e_7300;

/// What is collected, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The environment's name.
    pub env: String,
    /// How many copies of it there are.
    pub envs: usize,
    /// How many steps of each make a rollout.
    pub steps: usize,
    /// The discount of rewards.
    pub gamma: f32,
    /// The weight of longer estimates of advantages against shorter ones.
    pub lambda: f32,
    /// The environments have the streams of this seed and those that follow; weights and actions have
    /// others that it tells too.
    pub seed: u64,
}

/// The actions of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// One number each.
    Discrete(Vec<i64>),
    /// As many numbers each as an action has, as they were drawn: an environment may take the bound.
    Continuous(Vec<f32>),
}

/// Steps of all environments: those of a step are together, in the order of the environments.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// How many steps there are of each environment.
    pub steps: usize,
    /// How many environments there are.
    pub envs: usize,
    /// What each step saw.
    pub observations: Vec<f32>,
    /// What it did.
    pub actions: Taken,
    /// What that gave.
    pub rewards: Vec<f32>,
    /// Whether the task ended.
    pub terminated: Vec<bool>,
    /// Whether the time was over.
    pub truncated: Vec<bool>,
    /// 1 where either is so, and 0 elsewhere.
    pub dones: Vec<f32>,
    /// The logarithm of the probability, or of the density, of each action.
    pub log_probs: Vec<f32>,
    /// The value of each observation.
    pub values: Vec<f32>,
    /// See [`gae`](echoic_primitives::gae).
    pub advantages: Vec<f32>,
    /// The advantages and the values together.
    pub returns: Vec<f32>,
    /// The value of what each environment shows after the last step.
    pub last_values: Vec<f32>,
    /// The sums of rewards of the episodes that ended, in the order in which they did.
    pub episode_returns: Vec<f32>,
    /// Their lengths.
    pub episode_lengths: Vec<i64>,
    /// How often new weights had come when it began.
    pub version: u64,
    /// What was seen where the time was over, in order.
    cut: Vec<f32>,
    /// What that was worth: in order, and where it was seen.
    cut_values: Vec<f32>,
    final_values: Vec<f32>,
}

fn zeros<T: Clone + Default>(lens: &[usize]) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let len = lens.iter().try_fold(1usize, |product, len| product.checked_mul(*len));
    len.and_then(|len| zeros.try_reserve_exact(len).ok().map(|()| zeros.resize(len, T::default())))
        .ok_or(Error::Memory("a rollout"))?;
    Ok(zeros)
}

impl Rollout {
    fn new(steps: usize, envs: usize, observation: usize, actions: Space) -> Result<Self, Error> {
        let numbers = || zeros::<f32>(&[steps, envs]);
        let taken = match actions {
            Space::Discrete(_) => Taken::Discrete(zeros(&[steps, envs])?),
            Space::Box { len, .. } => Taken::Continuous(zeros(&[steps, envs, len])?),
        };
        Ok(Self {
            steps,
            envs,
            observations: zeros(&[steps, envs, observation])?,
            actions: taken,
            rewards: numbers()?,
            terminated: zeros(&[steps, envs])?,
            truncated: zeros(&[steps, envs])?,
            dones: numbers()?,
            log_probs: numbers()?,
            values: numbers()?,
            advantages: numbers()?,
            returns: numbers()?,
            last_values: zeros(&[envs])?,
            episode_returns: Vec::new(),
            episode_lengths: Vec::new(),
            version: 0,
            cut: Vec::new(),
            cut_values: Vec::new(),
            final_values: numbers()?,
        })
    }
}

/// Collects rollouts, one after the other.
pub struct Worker {
    plan: Plan,
    envs: Box<dyn Envs>,
    policy: Box<dyn Policy>,
    rng: Rng,
    /// What each environment shows now.
    now: Vec<f32>,
    outputs: Vec<f32>,
    rewards: Vec<f64>,
    finals: Vec<f32>,
    /// Sums of rewards and numbers of steps of the episodes that go on.
    running: Vec<(f64, i64)>,
}

impl Worker {
    /// The parameters that a policy has for an environment.
    ///
    /// # Errors
    ///
    /// When there is no such environment, or it has other dimensions.
    pub fn layout(
        env: &str,
        observation: usize,
        actions: usize,
        hidden: usize,
    ) -> Result<Layout, Error> {
        let envs = open(env, 1, Autoreset::SameStep, None)?;
        let info = envs.info();
        let expected = (info.observation.len(), info.actions.outputs());
        if expected != (observation, actions) {
            return Err(Error::Dimensions {
                id: info.id,
                observation: expected.0,
                actions: expected.1,
                got_observation: observation,
                got_actions: actions,
            });
        }
        let continuous = matches!(info.actions, Space::Box { .. });
        Ok(Layout { observation, hidden, outputs: actions, continuous })
    }

    /// Begins episodes in all environments.
    ///
    /// # Errors
    ///
    /// When a number of the plan is out of its range.
    pub fn new(plan: Plan, policy: Box<dyn Policy>) -> Result<Self, Error> {
        for (name, got) in [("gamma", plan.gamma), ("lam", plan.lambda)] {
            if !(0.0..=1.0).contains(&got) {
                return Err(Error::Fraction { name, got: got.into() });
            }
        }
        if plan.envs == 0 {
            return Err(Error::Zero("n_envs"));
        }
        if plan.steps == 0 {
            return Err(Error::Zero("n_steps"));
        }
        let mut envs = open(&plan.env, plan.envs, Autoreset::SameStep, None)?;
        for env in 0..plan.envs {
            envs.seed(env, plan.seed.wrapping_add(env as u64));
        }
        envs.reset(None, None)?;
        let (seen, outputs) = (envs.info().observation.len(), envs.info().actions.outputs());
        let mut now = zeros(&[plan.envs, seen])?;
        envs.observe(&mut now)?;
        Ok(Self {
            rng: Rng::new(plan.seed ^ STREAM),
            now,
            outputs: zeros(&[plan.envs, outputs])?,
            rewards: zeros(&[plan.envs])?,
            finals: Vec::new(),
            running: zeros(&[plan.envs])?,
            envs,
            policy,
            plan,
        })
    }

    /// Memory for a rollout.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn room(&self) -> Result<Rollout, Error> {
        let info = self.envs.info();
        Rollout::new(self.plan.steps, self.plan.envs, info.observation.len(), info.actions)
    }

    /// Has the policy take new weights.
    ///
    /// # Errors
    ///
    /// As for [`Policy::load`].
    pub fn load(&mut self, weights: &[f32]) -> Result<(), Error> {
        self.policy.load(weights)
    }

    /// Fills a rollout; false when `stop` was set meanwhile, and the rollout is of no use.
    ///
    /// # Errors
    ///
    /// When the policy wants an action that there is not, as one does whose numbers have overflowed.
    ///
    /// # Panics
    ///
    /// When the rollout is from another worker.
    pub fn collect(&mut self, rollout: &mut Rollout, stop: &AtomicBool) -> Result<bool, Error> {
        let seen = self.envs.info().observation.len();
        rollout.episode_returns.clear();
        rollout.episode_lengths.clear();
        rollout.cut.clear();
        for step in 0..self.plan.steps {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.step(rollout, step, seen)?;
        }
        let Self { policy, plan, .. } = self;
        policy.values(&self.now, &mut rollout.last_values);
        rollout.cut_values.resize(rollout.cut.len() / seen, 0.0);
        policy.values(&rollout.cut, &mut rollout.cut_values);
        let cut = rollout.truncated.iter().zip(&mut rollout.final_values).filter(|(cut, _)| **cut);
        for ((_, to), value) in cut.zip(&rollout.cut_values) {
            *to = *value;
        }
        let steps = echoic_primitives::Rollout {
            layout: echoic_primitives::Layout::TimeMajor {
                steps: plan.steps,
                sequences: plan.envs,
            },
            rewards: &rollout.rewards,
            values: Some(&rollout.values),
            last_values: &rollout.last_values,
            terminated: Flags::Bools(&rollout.terminated),
            truncation: Some(Truncation {
                truncated: Flags::Bools(&rollout.truncated),
                final_values: &rollout.final_values,
            }),
        };
        let (advantages, returns) = (&mut rollout.advantages, &mut rollout.returns);
        gae(&steps, plan.gamma, plan.lambda, Some(advantages), Some(returns))
            .expect("a rollout's parts have one length");
        Ok(true)
    }

    fn step(&mut self, rollout: &mut Rollout, step: usize, seen: usize) -> Result<(), Error> {
        let count = self.plan.envs;
        let rows = step * count..(step + 1) * count;
        rollout.observations[rows.start * seen..rows.end * seen].copy_from_slice(&self.now);
        self.policy.evaluate(&self.now, &mut self.outputs, &mut rollout.values[rows.clone()]);
        let log_probs = &mut rollout.log_probs[rows.clone()];
        let width = self.outputs.len() / count;
        let outputs = self.outputs.chunks_exact(width).zip(log_probs);
        let actions = match &mut rollout.actions {
            Taken::Discrete(actions) => {
                let actions = &mut actions[rows.clone()];
                for (action, (logits, log_prob)) in actions.iter_mut().zip(outputs) {
                    let (chosen, probability) = head::categorical(&mut self.rng, logits);
                    (*action, *log_prob) = (chosen as i64, probability);
                }
                Actions::Discrete(actions)
            }
            Taken::Continuous(actions) => {
                let actions = &mut actions[rows.start * width..rows.end * width];
                let log_std = self.policy.log_std();
                for (action, (means, log_prob)) in actions.chunks_exact_mut(width).zip(outputs) {
                    *log_prob = head::gaussian(&mut self.rng, means, log_std, action);
                }
                Actions::Continuous(actions)
            }
        };
        let outcome = Outcome {
            observations: &mut self.now,
            rewards: &mut self.rewards,
            terminated: &mut rollout.terminated[rows.clone()],
            truncated: &mut rollout.truncated[rows.clone()],
            finals: &mut self.finals,
        };
        self.envs.step(actions, outcome)?;
        let mut finals = self.finals.chunks_exact(seen);
        for (env, at) in rows.enumerate() {
            let (terminated, truncated) = (rollout.terminated[at], rollout.truncated[at]);
            rollout.rewards[at] = self.rewards[env] as f32;
            rollout.dones[at] = f32::from(terminated || truncated);
            let (sum, steps) = &mut self.running[env];
            *sum += self.rewards[env];
            *steps += 1;
            if terminated || truncated {
                rollout.episode_returns.push(*sum as f32);
                rollout.episode_lengths.push(*steps);
                (*sum, *steps) = (0.0, 0);
                let last = finals.next().unwrap_or_default();
                if truncated {
                    rollout.cut.extend_from_slice(last);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ActorCritic;

    fn worker(env: &str, envs: usize, steps: usize) -> (Worker, ActorCritic) {
        let info = open(env, 1, Autoreset::SameStep, None).unwrap().info();
        let (seen, outputs) = (info.observation.len(), info.actions.outputs());
        let layout = Worker::layout(env, seen, outputs, 8).unwrap();
        let policy = ActorCritic::new(layout, 11).unwrap();
        let (env, gamma, lambda, seed) = (env.into(), 0.9, 0.8, 11);
        let plan = Plan { env, envs, steps, gamma, lambda, seed };
        (Worker::new(plan, Box::new(policy.clone())).unwrap(), policy)
    }

    fn collected(worker: &mut Worker) -> Rollout {
        let mut rollout = worker.room().unwrap();
        assert_eq!(worker.collect(&mut rollout, &AtomicBool::new(false)), Ok(true));
        rollout
    }

    #[test]
    fn the_same_seed_gives_the_same_rollouts() {
        for env in crate::env::IDS {
            let (mut one, mut other) = (worker(env, 3, 50).0, worker(env, 3, 50).0);
            let first = collected(&mut one);
            assert_eq!(first, collected(&mut other));
            let second = collected(&mut one);
            assert_ne!(first, second);
            assert_eq!(second, collected(&mut other));
        }
    }

    #[test]
    fn where_an_episode_is_cut_off_the_value_of_its_end_stands_for_the_rest() {
        let (mut worker, mut policy) = worker("Pendulum-v1", 2, 201);
        let rollout = collected(&mut worker);
        let ends: Vec<_> = (0..402).filter(|at| rollout.truncated[*at]).collect();
        assert_eq!(ends, [398, 399]);
        let mut values = [0.0; 2];
        policy.values(&rollout.cut, &mut values);
        for (at, value) in ends.into_iter().zip(values) {
            let expected = rollout.rewards[at] + 0.9 * value - rollout.values[at];
            assert!(value != 0.0 && (rollout.advantages[at] - expected).abs() < 1e-5);
        }
        assert_eq!(rollout.episode_lengths, [200, 200]);
    }

    #[test]
    fn a_rollout_goes_on_where_the_last_one_ended() {
        let (mut long, mut short) =
            (worker("CartPole-v1", 2, 60).0, worker("CartPole-v1", 2, 30).0);
        let whole = collected(&mut long);
        let (first, second) = (collected(&mut short), collected(&mut short));
        let halves = [first.observations, second.observations].concat();
        assert_eq!(whole.observations, halves);
        let returns = [first.episode_returns, second.episode_returns].concat();
        assert_eq!(whole.episode_returns, returns);
        let total: i64 = whole.episode_lengths.iter().sum();
        assert!(total > 0 && total <= 120);
    }

    #[test]
    fn weights_that_overflow_end_in_an_error_and_not_in_a_panic() {
        let (mut worker, policy) = worker("Pendulum-v1", 2, 5);
        let len = Worker::layout("Pendulum-v1", 3, 1, 8).unwrap().len().unwrap();
        worker.load(&vec![f32::MAX; len]).unwrap();
        let mut rollout = worker.room().unwrap();
        // Whatever comes of it, it comes back.
        let _either = worker.collect(&mut rollout, &AtomicBool::new(false));
        drop(policy);
    }

    #[test]
    fn dimensions_of_another_environment_are_refused_with_both() {
        let error = Worker::layout("CartPole-v1", 5, 3, 8).unwrap_err().to_string();
        for part in ["obs_dim=4", "n_actions=2", "obs_dim=5", "n_actions=3"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

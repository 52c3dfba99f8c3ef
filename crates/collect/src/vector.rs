//! Many copies of one environment, stepped together.
//!
//! Each copy has its own random stream, so what it does depends on its seed and its actions alone, and
//! not on how many others there are. An episode ends by itself (terminated), or after this many steps
//! (truncated); what happens then is the [`Autoreset`]'s. Modes and their order of events are those of
//! Gymnasium 1.
//!
//! # Invariants
//!
//! 1. A call that fails has changed nothing.
//! 2. A stream moves only when its environment begins an episode, by one draw for each number of the
//!    state that has a range.

use echoic_replay::rng::Rng;

use crate::env::{Acrobot, Action, Actions, CartPole, Environment, Info, MountainCar, Pendulum};
use crate::error::Error;

/// When an environment whose episode is over begins the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Autoreset {
    /// In the step after, which takes no action and gives no reward.
    #[default]
    NextStep,
    /// In the same step, which also tells the observation that the episode ended with.
    SameStep,
    /// When it is told to.
    Disabled,
}

/// Where an environment is in its episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unset,
    Running,
    Ended,
}

/// What a step of all environments gives, to be written.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// An observation each, one after the other.
    pub observations: &'a mut [f32],
    /// A reward each.
    pub rewards: &'a mut [f64],
    /// Whether the task itself ended.
    pub terminated: &'a mut [bool],
    /// Whether the time was over.
    pub truncated: &'a mut [bool],
    /// With [`Autoreset::SameStep`], the last observations of episodes that ended, in order.
    pub finals: &'a mut Vec<f32>,
}

/// Environments of some kind.
pub trait Envs: Send {
    /// What is known about each.
    fn info(&self) -> &'static Info;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none, which no constructor allows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has one environment draw from the stream of a seed.
    ///
    /// # Panics
    ///
    /// When there is no such environment.
    fn seed(&mut self, env: usize, seed: u64);

    /// Begins an episode in those environments that `which` has true for, or in all; the state's
    /// numbers are drawn from `start`, or from where the environment has them drawn from.
    ///
    /// # Errors
    ///
    /// When the lengths do not fit, or a range has no numbers.
    fn reset(&mut self, which: Option<&[bool]>, start: Option<&[(f64, f64)]>) -> Result<(), Error>;

    /// Writes what can be seen of every environment.
    ///
    /// # Errors
    ///
    /// When the length does not fit.
    fn observe(&self, observations: &mut [f32]) -> Result<(), Error>;

    /// Goes on by a step.
    ///
    /// # Errors
    ///
    /// When there is an action too few or too many, or one that there is not, or an environment has no
    /// episode to go on with.
    fn step(&mut self, actions: Actions<'_>, outcome: Outcome<'_>) -> Result<(), Error>;

    /// The states, one after the other.
    fn states(&self) -> Vec<f64>;

    /// Begins episodes with these states, of those environments that `which` has true for, or of all.
    ///
    /// # Errors
    ///
    /// When the lengths do not fit, or a number is not finite.
    fn set_states(&mut self, which: Option<&[bool]>, states: &[f64]) -> Result<(), Error>;
}

/// Copies of the environment of this name. `limit` is after how many steps an episode is cut off, in
/// place of the environment's own number. Their seeds are 0, 1, 2 and so on.
///
/// # Errors
///
/// When there is no such environment, or a number is zero.
///
/// ```
/// use echoic_collect::env::Actions;
/// use echoic_collect::vector::{Autoreset, Outcome, open};
///
/// let mut envs = open("CartPole-v1", 2, Autoreset::NextStep, None)?;
/// envs.reset(None, None)?;
/// let (mut observations, mut rewards) = ([0.0; 8], [0.0; 2]);
/// let (mut terminated, mut truncated) = ([false; 2], [false; 2]);
/// envs.step(
///     Actions::Discrete(&[0, 1]),
///     Outcome {
///         observations: &mut observations,
///         rewards: &mut rewards,
///         terminated: &mut terminated,
///         truncated: &mut truncated,
///         finals: &mut Vec::new(),
///     },
/// )?;
/// assert_eq!(rewards, [1.0, 1.0]);
/// # Ok::<(), echoic_collect::Error>(())
/// ```
pub fn open(
    id: &str,
    count: usize,
    autoreset: Autoreset,
    limit: Option<u32>,
) -> Result<Box<dyn Envs>, Error> {
    fn copies<E: Environment>(
        count: usize,
        autoreset: Autoreset,
        limit: Option<u32>,
    ) -> Result<Box<dyn Envs>, Error> {
        Ok(Box::new(Copies::<E>::new(count, autoreset, limit)?))
    }
    let of = match id {
        _ if id == CartPole::INFO.id => copies::<CartPole>,
        _ if id == Pendulum::INFO.id => copies::<Pendulum>,
        _ if id == MountainCar::INFO.id => copies::<MountainCar>,
        _ if id == Acrobot::INFO.id => copies::<Acrobot>,
        _ => return Err(Error::UnknownEnvironment(id.into())),
    };
    of(count, autoreset, limit)
}

/// One environment with what it needs beside its state.
struct Copy<E: Environment> {
    state: E::State,
    stream: Rng,
    elapsed: u32,
    phase: Phase,
}

impl<E: Environment> Copy<E> {
    fn begin(&mut self, start: &[(f64, f64)]) {
        for (value, &(low, high)) in self.state.as_mut().iter_mut().zip(start) {
            // A number without a range takes no draw, so that it can be given one without moving others.
            *value = if low < high { low + (high - low) * self.stream.unit() } else { low };
        }
        E::begin(&mut self.state);
        self.run();
    }

    fn run(&mut self) {
        self.elapsed = 0;
        self.phase = Phase::Running;
    }
}

struct Copies<E: Environment> {
    copies: Vec<Copy<E>>,
    autoreset: Autoreset,
    limit: u32,
}

impl<E: Environment> Copies<E> {
    const SEEN: usize = E::INFO.observation.len();
    const NUMBERS: usize = E::INFO.start.len();

    fn new(count: usize, autoreset: Autoreset, limit: Option<u32>) -> Result<Self, Error> {
        let limit = limit.unwrap_or(E::INFO.limit);
        if count == 0 {
            return Err(Error::Zero("the number of environments"));
        }
        if limit == 0 {
            return Err(Error::Zero("the number of steps of an episode"));
        }
        let mut copies = Vec::new();
        copies.try_reserve_exact(count).map_err(|_| Error::Memory("the environments"))?;
        copies.extend((0..count as u64).map(|seed| Copy {
            state: E::State::default(),
            stream: Rng::new(seed),
            elapsed: 0,
            phase: Phase::Unset,
        }));
        Ok(Self { copies, autoreset, limit })
    }

    /// Those copies that `which` has true for, with their places.
    fn chosen(
        &mut self,
        which: Option<&[bool]>,
    ) -> Result<impl Iterator<Item = (usize, &mut Copy<E>)>, Error> {
        if let Some(which) = which {
            fits("the mask of environments", self.copies.len(), which.len())?;
        }
        let chosen = move |at: usize| which.is_none_or(|which| which[at]);
        Ok(self.copies.iter_mut().enumerate().filter(move |(at, _)| chosen(*at)))
    }
}

fn fits(what: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::length(what, expected, got)) }
}

impl<E: Environment> Envs for Copies<E> {
    fn info(&self) -> &'static Info {
        const { &E::INFO }
    }

    fn len(&self) -> usize {
        self.copies.len()
    }

    fn seed(&mut self, env: usize, seed: u64) {
        self.copies[env].stream = Rng::new(seed);
    }

    fn reset(&mut self, which: Option<&[bool]>, start: Option<&[(f64, f64)]>) -> Result<(), Error> {
        let start = start.unwrap_or(E::INFO.start);
        fits("the ranges of a start", Self::NUMBERS, start.len())?;
        for (index, &(low, high)) in start.iter().enumerate() {
            if let Some(value) = [low, high].into_iter().find(|value| !value.is_finite()) {
                return Err(Error::NotFinite { what: "the ranges of a start", index, value });
            }
            if low > high {
                let (expected, got) = ("low <= high".into(), format!("low={low} and high={high}"));
                return Err(Error::Shape { what: "the ranges of a start", expected, got });
            }
        }
        self.chosen(which)?.for_each(|(_, copy)| copy.begin(start));
        Ok(())
    }

    fn observe(&self, observations: &mut [f32]) -> Result<(), Error> {
        fits("observations", self.copies.len() * Self::SEEN, observations.len())?;
        for (copy, seen) in self.copies.iter().zip(observations.chunks_exact_mut(Self::SEEN)) {
            E::observe(&copy.state, seen);
        }
        Ok(())
    }

    fn step(&mut self, actions: Actions<'_>, outcome: Outcome<'_>) -> Result<(), Error> {
        let Outcome { observations, rewards, terminated, truncated, finals } = outcome;
        let count = self.copies.len();
        let Some(actions) = E::Action::of(actions) else {
            let (expected, got) = match actions {
                Actions::Discrete(_) => ("numbers with a fraction", "integers"),
                Actions::Continuous(_) => ("integers", "numbers with a fraction"),
            };
            let [expected, got] = [expected, got].map(String::from);
            return Err(Error::Shape { what: "actions", expected, got });
        };
        // No action of ours has several numbers; one that did would be a type of `Action` by itself.
        fits("actions", count, actions.len())?;
        fits("observations", count * Self::SEEN, observations.len())?;
        fits("rewards", count, rewards.len())?;
        fits("terminated", count, terminated.len())?;
        fits("truncated", count, truncated.len())?;
        for (env, (copy, action)) in self.copies.iter().zip(actions).enumerate() {
            match (copy.phase, self.autoreset) {
                (Phase::Running, _) => {}
                // Its action counts for nothing, but has to be one.
                (Phase::Ended, Autoreset::NextStep) => {}
                _ => return Err(Error::ResetNeeded(env)),
            }
            if !action.is_in(E::INFO.actions) {
                let expected = match E::INFO.actions {
                    crate::env::Space::Discrete(end) => format!("an integer from 0 to {}", end - 1),
                    crate::env::Space::Box { .. } => "a number".into(),
                };
                return Err(Error::Action { env, expected, got: action.text() });
            }
        }
        finals.clear();
        let seen = observations.chunks_exact_mut(Self::SEEN);
        let flags = terminated.iter_mut().zip(truncated);
        let outs = seen.zip(rewards).zip(flags);
        for ((copy, action), ((seen, reward), (terminated, truncated))) in
            self.copies.iter_mut().zip(actions).zip(outs)
        {
            if copy.phase == Phase::Ended {
                copy.begin(E::INFO.start);
                (*reward, *terminated, *truncated) = (0.0, false, false);
                E::observe(&copy.state, seen);
                continue;
            }
            let step = E::step(&mut copy.state, *action);
            copy.elapsed += 1;
            *reward = step.reward;
            *terminated = step.terminated;
            *truncated = copy.elapsed >= self.limit;
            if *terminated || *truncated {
                copy.phase = Phase::Ended;
                if self.autoreset == Autoreset::SameStep {
                    let start = finals.len();
                    finals.resize(start + Self::SEEN, 0.0);
                    E::observe(&copy.state, &mut finals[start..]);
                    copy.begin(E::INFO.start);
                }
            }
            E::observe(&copy.state, seen);
        }
        Ok(())
    }

    fn states(&self) -> Vec<f64> {
        self.copies.iter().flat_map(|copy| copy.state.as_ref()).copied().collect()
    }

    fn set_states(&mut self, which: Option<&[bool]>, states: &[f64]) -> Result<(), Error> {
        fits("states", self.copies.len() * Self::NUMBERS, states.len())?;
        if let Some(index) = states.iter().position(|value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "states", index, value: states[index] });
        }
        for (at, copy) in self.chosen(which)? {
            let from = &states[at * Self::NUMBERS..][..Self::NUMBERS];
            copy.state.as_mut().copy_from_slice(from);
            copy.run();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seen {
        observations: Vec<f32>,
        rewards: Vec<f64>,
        terminated: Vec<bool>,
        truncated: Vec<bool>,
        finals: Vec<f32>,
    }

    fn step(envs: &mut dyn Envs, actions: Actions<'_>) -> Result<Seen, Error> {
        let (count, width) = (envs.len(), envs.info().observation.len());
        let mut seen = Seen {
            observations: vec![0.0; count * width],
            rewards: vec![0.0; count],
            terminated: vec![false; count],
            truncated: vec![false; count],
            finals: Vec::new(),
        };
        envs.step(
            actions,
            Outcome {
                observations: &mut seen.observations,
                rewards: &mut seen.rewards,
                terminated: &mut seen.terminated,
                truncated: &mut seen.truncated,
                finals: &mut seen.finals,
            },
        )?;
        Ok(seen)
    }

    fn open_cars(count: usize, autoreset: Autoreset, limit: u32) -> Box<dyn Envs> {
        let mut envs = open("MountainCar-v0", count, autoreset, Some(limit)).unwrap();
        envs.reset(None, None).unwrap();
        envs
    }

    const REST: Actions<'static> = Actions::Discrete(&[1]);

    #[test]
    fn an_episode_is_cut_off_at_its_limit_and_not_terminated() {
        let mut envs = open_cars(1, Autoreset::Disabled, 3);
        for _ in 0..2 {
            let seen = step(&mut *envs, REST).unwrap();
            assert!(!seen.truncated[0] && !seen.terminated[0]);
        }
        let seen = step(&mut *envs, REST).unwrap();
        assert!(seen.truncated[0] && !seen.terminated[0]);
        assert_eq!(step(&mut *envs, REST).err(), Some(Error::ResetNeeded(0)));
    }

    #[test]
    fn the_next_step_begins_an_episode_without_a_reward() {
        let mut envs = open_cars(1, Autoreset::NextStep, 1);
        assert!(step(&mut *envs, REST).unwrap().truncated[0]);
        let seen = step(&mut *envs, REST).unwrap();
        assert_eq!((seen.rewards[0], seen.truncated[0], seen.observations[1]), (0.0, false, 0.0));
    }

    #[test]
    fn the_same_step_tells_the_end_and_the_beginning() {
        let mut envs = open_cars(1, Autoreset::SameStep, 1);
        let mut alike = open_cars(1, Autoreset::Disabled, 1);
        let (seen, end) = (step(&mut *envs, REST).unwrap(), step(&mut *alike, REST).unwrap());
        assert_eq!(seen.finals, end.observations);
        assert_eq!((seen.observations[1], seen.truncated[0]), (0.0, true));
        assert_ne!(seen.observations, seen.finals);
    }

    #[test]
    fn nothing_is_stepped_before_a_reset_or_with_an_action_that_there_is_not() {
        let mut envs = open("MountainCar-v0", 2, Autoreset::NextStep, None).unwrap();
        let rest = Actions::Discrete(&[1, 1]);
        assert_eq!(step(&mut *envs, rest).err(), Some(Error::ResetNeeded(0)));
        envs.reset(None, None).unwrap();
        let before = envs.states();
        for wrong in [3, -1, i64::MAX] {
            let error = step(&mut *envs, Actions::Discrete(&[1, wrong])).err().unwrap();
            assert!(matches!(error, Error::Action { env: 1, .. }), "{error}");
        }
        assert!(step(&mut *envs, REST).is_err());
        assert!(step(&mut *envs, Actions::Continuous(&[1.0, 1.0])).is_err());
        assert_eq!(envs.states(), before);
    }

    #[test]
    fn an_environment_does_not_depend_on_its_neighbours() {
        let mut alone = open("CartPole-v1", 1, Autoreset::SameStep, None).unwrap();
        let mut among = open("CartPole-v1", 3, Autoreset::SameStep, None).unwrap();
        alone.seed(0, 9);
        (0..3).for_each(|at| among.seed(at, 7 + at as u64));
        alone.reset(None, None).unwrap();
        among.reset(None, None).unwrap();
        for turn in 0..300 {
            let action = turn % 2;
            let one = step(&mut *alone, Actions::Discrete(&[action])).unwrap();
            let three = step(&mut *among, Actions::Discrete(&[1, 0, action])).unwrap();
            assert_eq!(one.observations, three.observations[8..]);
        }
    }

    #[test]
    fn a_mask_resets_those_that_it_names() {
        let mut envs = open_cars(2, Autoreset::Disabled, 1);
        step(&mut *envs, Actions::Discrete(&[0, 2])).unwrap();
        let before = envs.states();
        envs.reset(Some(&[false, true]), Some(&[(0.1, 0.1), (0.0, 0.0)])).unwrap();
        assert_eq!(envs.states(), [before[0], before[1], 0.1, 0.0]);
        let rest = Actions::Discrete(&[1, 1]);
        assert_eq!(step(&mut *envs, rest).err(), Some(Error::ResetNeeded(0)));
    }

    #[test]
    fn starts_fill_their_range_evenly() {
        let mut envs = open("CartPole-v1", 4000, Autoreset::NextStep, None).unwrap();
        envs.reset(None, None).unwrap();
        let states = envs.states();
        assert!(states.iter().all(|value| (-0.05..0.05).contains(value)));
        let below = states.iter().filter(|value| **value < -0.025).count();
        // Six standard deviations of 16 000 draws with a chance of a quarter are 329.
        assert!(below.abs_diff(4000) < 329, "{below}");
    }

    #[test]
    fn zero_environments_and_unknown_ones_are_refused() {
        assert!(matches!(open("CartPole-v1", 0, Autoreset::NextStep, None), Err(Error::Zero(_))));
        let Err(error) = open("Pong", 1, Autoreset::NextStep, None) else { panic!("opened") };
        assert!(error.to_string().contains("Acrobot-v1"), "{error}");
    }
}

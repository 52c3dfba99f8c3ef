//! The dynamics of classic control tasks, as those of Gymnasium have them.
//!
//! An [`Environment`] is a few functions of a small state in double precision; it keeps nothing, draws
//! nothing and counts nothing. Time limits, random starts and what happens at an episode's end are
//! [`crate::vector`]'s.
//!
//! Sums and products are in the order of Gymnasium's own, so the two differ by what the sine and cosine
//! of numpy and of the system differ, at most in the last bit.

mod acrobot;
mod cart_pole;
mod mountain_car;
mod pendulum;

pub use acrobot::Acrobot;
pub use cart_pole::CartPole;
pub use mountain_car::MountainCar;
pub use pendulum::Pendulum;

/// The names of all environments.
pub const IDS: [&str; 4] =
    [CartPole::INFO.id, Pendulum::INFO.id, MountainCar::INFO.id, Acrobot::INFO.id];

/// What an environment may be told to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Space {
    /// One of this many actions, counted from 0.
    Discrete(usize),
    /// So many numbers between two bounds. What is beyond them counts as the bound.
    Box {
        /// How many numbers an action has.
        len: usize,
        /// The least that each may be.
        low: f32,
        /// The most that each may be.
        high: f32,
    },
}

impl Space {
    /// How many actions there are, or how many numbers one has: what a policy's head has to give.
    pub fn outputs(self) -> usize {
        match self {
            Self::Discrete(count) => count,
            Self::Box { len, .. } => len,
        }
    }

    /// How many numbers one action is stored as.
    pub fn width(self) -> usize {
        match self {
            Self::Discrete(_) => 1,
            Self::Box { len, .. } => len,
        }
    }
}

/// What is known about an environment before it runs.
#[derive(Debug, PartialEq)]
pub struct Info {
    /// Its name in Gymnasium.
    pub id: &'static str,
    /// The least and the most that each number of an observation can be.
    pub observation: &'static [(f32, f32)],
    /// What it may be told to do.
    pub actions: Space,
    /// Where each number of the state is drawn from when an episode begins, evenly.
    pub start: &'static [(f64, f64)],
    /// After how many steps an episode is cut off.
    pub limit: u32,
}

/// What a step gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The reward.
    pub reward: f64,
    /// Whether the task itself has ended.
    pub terminated: bool,
}

/// The dynamics of one task.
pub trait Environment: Send + Sync + 'static {
    /// The state, which is all that there is.
    type State: AsRef<[f64]> + AsMut<[f64]> + Clone + Default + Send + Sync;
    /// One action, or the only number of one.
    type Action: Action;
    /// What is known about it.
    const INFO: Info;

    /// Goes on by one step.
    fn step(state: &mut Self::State, action: Self::Action) -> Step;

    /// Writes what can be seen of a state.
    fn observe(state: &Self::State, observation: &mut [f32]);

    /// Puts a state that was just drawn into the form of one.
    fn begin(_state: &mut Self::State) {}
}

/// Actions of all environments of a vector.
#[derive(Debug, Clone, Copy)]
pub enum Actions<'a> {
    /// A number each.
    Discrete(&'a [i64]),
    /// So many numbers each, those of an environment together.
    Continuous(&'a [f32]),
}

/// A type of actions.
pub trait Action: Copy {
    /// The actions, if they are of this type.
    fn of(actions: Actions<'_>) -> Option<&[Self]>;

    /// Whether the space has the action.
    fn is_in(self, space: Space) -> bool;

    /// The action as text, for an error.
    fn text(self) -> String;
}

impl Action for i64 {
    fn of(actions: Actions<'_>) -> Option<&[Self]> {
        if let Actions::Discrete(actions) = actions { Some(actions) } else { None }
    }

    fn is_in(self, space: Space) -> bool {
        matches!(space, Space::Discrete(count) if usize::try_from(self).is_ok_and(|at| at < count))
    }

    fn text(self) -> String {
        self.to_string()
    }
}

impl Action for f32 {
    fn of(actions: Actions<'_>) -> Option<&[Self]> {
        if let Actions::Continuous(actions) = actions { Some(actions) } else { None }
    }

    fn is_in(self, space: Space) -> bool {
        matches!(space, Space::Box { .. }) && !self.is_nan()
    }

    fn text(self) -> String {
        self.to_string()
    }
}

/// `angle` less whole turns, from -π to below π.
fn wrapped(angle: f64) -> f64 {
    use std::f64::consts::PI;
    (angle + PI).rem_euclid(2.0 * PI) - PI
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    #[test]
    fn angles_wrap_to_the_same_direction() {
        for turns in -3..=3 {
            let got = wrapped(0.25 + f64::from(turns) * 2.0 * PI);
            assert!((got - 0.25).abs() < 1e-12, "{turns} turns: {got}");
        }
        assert_eq!(wrapped(PI), -PI);
    }

    #[test]
    fn a_pole_pushed_one_way_falls_the_other_way_within_ten_steps() {
        let mut state = [0.0; 4];
        let steps = (1..50).find(|_| CartPole::step(&mut state, 1).terminated);
        assert!(steps.is_some_and(|steps| (8..=10).contains(&steps)), "{steps:?}");
        assert!(state[0] > 0.0 && state[2] < 0.0);
    }

    #[test]
    fn a_car_that_swings_reaches_the_goal_and_one_that_pushes_does_not() {
        let run = |choose: fn(f64) -> i64| {
            let mut state = [-0.5, 0.0];
            (0..200).any(|_| {
                let action = choose(state[1]);
                MountainCar::step(&mut state, action).terminated
            })
        };
        assert!(run(|velocity| if velocity < 0.0 { 0 } else { 2 }));
        assert!(!run(|_| 2));
    }

    #[test]
    fn a_pendulum_that_stands_still_costs_nothing() {
        let mut state = [0.0, 0.0];
        let step = Pendulum::step(&mut state, 0.0);
        assert_eq!((step.reward, step.terminated, state), (0.0, false, [0.0, 0.0]));
    }

    #[test]
    fn an_acrobot_at_rest_hangs_and_an_upright_one_has_arrived() {
        let mut state = [0.0; 4];
        assert_eq!(Acrobot::step(&mut state, 1), Step { reward: -1.0, terminated: false });
        assert!(state.iter().all(|value| value.abs() < 1e-12), "{state:?}");
        let mut state = [PI - 0.01, 0.0, 0.0, 0.0];
        assert_eq!(Acrobot::step(&mut state, 1), Step { reward: 0.0, terminated: true });
    }
}

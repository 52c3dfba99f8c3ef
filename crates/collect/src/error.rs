//! What can go wrong between a caller, environments and a policy.

use crate::env::IDS;

/// Why something was refused, or did not come.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such environment here; others run in Python.
    #[error("there is no native environment `{0}`; there are {all}", all = IDS.join(", "))]
    UnknownEnvironment(String),
    /// The dimensions that the caller expects are not the environment's.
    #[error(
        "{id} has obs_dim={observation} and n_actions={actions}, got obs_dim={got_observation} \
         and n_actions={got_actions}"
    )]
    Dimensions {
        /// The environment.
        id: &'static str,
        /// How many numbers its observations have.
        observation: usize,
        /// How many actions it has, or how many numbers an action has.
        actions: usize,
        /// What the caller said of observations.
        got_observation: usize,
        /// What the caller said of actions.
        got_actions: usize,
    },
    /// A count that must not be zero.
    #[error("{0} must be at least 1, got 0")]
    Zero(&'static str),
    /// A number that must be from 0 to 1.
    #[error("{name} must be from 0 to 1, got {got}")]
    Fraction {
        /// Which one.
        name: &'static str,
        /// What came.
        got: f64,
    },
    /// An array of another length, or of another kind.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// Which array.
        what: &'static str,
        /// What fits.
        expected: String,
        /// What came.
        got: String,
    },
    /// An action that an environment does not have. None was stepped.
    #[error("action of environment {env}: expected {expected}, got {got}")]
    Action {
        /// Whose action.
        env: usize,
        /// What fits.
        expected: String,
        /// What came.
        got: String,
    },
    /// A number that is infinite or not a number. Nothing was changed.
    #[error("{what}: element {index} is {value}; all must be finite")]
    NotFinite {
        /// Which array.
        what: &'static str,
        /// Where in it.
        index: usize,
        /// What is there.
        value: f64,
    },
    /// An environment was to be stepped whose episode is over, or was never begun. None was stepped.
    #[error("environment {0} has no episode to go on with: reset it first")]
    ResetNeeded(usize),
    /// There is no memory for so much.
    #[error("there is no memory for {0}")]
    Memory(&'static str),
    /// The collector was stopped.
    #[error("the collector is stopped")]
    Stopped,
    /// The thread of a collector ended by itself, which it should not.
    #[error("the collector's thread ended: {0}")]
    Thread(String),
    /// No rollout was there in time.
    #[error("timed out: no rollout is complete")]
    TimedOut,
    /// The caller's own callback ended the wait.
    #[error("the wait was interrupted")]
    Interrupted,
}

impl Error {
    /// An array of `got` elements where `expected` were.
    pub(crate) fn length(what: &'static str, expected: usize, got: usize) -> Self {
        let [expected, got] = [expected, got].map(|count| format!("{count} elements"));
        Self::Shape { what, expected, got }
    }
}

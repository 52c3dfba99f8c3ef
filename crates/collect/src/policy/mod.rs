//! What chooses actions, and how good it thinks a state to be.
//!
//! - [`Policy`]: the interface between rollouts and whatever evaluates observations.
//! - [`ActorCritic`]: two small networks, evaluated by [`kernel`] with [`tanh`].
//! - [`Layout`]: where each parameter is among the flat weights, which is what learners write.
//! - [`initial`]: the weights of a seed. [`head`]: from outputs to actions and their probabilities.
//!
//! No library evaluates the networks. Those for large models spend several microseconds on each
//! operation before they compute anything; a layer of 64 for 16 environments takes less than one. Here
//! the environments are the lanes of vector registers, so a layer is multiplications and additions and
//! nothing else, and one environment's result does not depend on how many others there are.

mod actor_critic;
pub mod head;
mod init;
pub mod kernel;
mod layout;
pub mod tanh;

pub use actor_critic::ActorCritic;
pub use init::initial;
pub use layout::Layout;

use crate::error::Error;

/// Evaluates observations.
pub trait Policy: Send {
    /// The outputs of the actor and the value for each observation; all three are rows of the same
    /// order.
    ///
    /// # Panics
    ///
    /// When lengths do not fit.
    fn evaluate(&mut self, observations: &[f32], outputs: &mut [f32], values: &mut [f32]);

    /// The values alone.
    ///
    /// # Panics
    ///
    /// When lengths do not fit.
    fn values(&mut self, observations: &[f32], values: &mut [f32]);

    /// The logarithm of the standard deviation of each number of an action; none where actions are
    /// discrete.
    fn log_std(&self) -> &[f32];

    /// Takes new weights.
    ///
    /// # Errors
    ///
    /// When there are too few or too many, or one is not finite; then the old ones stay.
    fn load(&mut self, weights: &[f32]) -> Result<(), Error>;
}

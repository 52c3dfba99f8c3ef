//! A pendulum to be swung up and held, by a torque too small to lift it at once.
//!
//! Gymnasium's Pendulum-v1. Its torque is a float32, and so are the two terms that it alone makes: the
//! same here, or rewards would differ by more than they have to.

use super::{Environment, Info, Space, Step, wrapped};

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
const SECONDS: f64 = 0.05;
const GRAVITY: f64 = 10.0;

/// Pendulum-v1. The state is the angle from upright and the angular velocity.
#[derive(Debug)]
pub struct Pendulum;

impl Environment for Pendulum {
    type State = [f64; 2];
    type Action = f32;
    const INFO: Info = Info {
        id: "Pendulum-v1",
        observation: &[(-1.0, 1.0), (-1.0, 1.0), (-MAX_SPEED as f32, MAX_SPEED as f32)],
        actions: Space::Box { len: 1, low: -MAX_TORQUE, high: MAX_TORQUE },
        start: &[(-std::f64::consts::PI, std::f64::consts::PI), (-1.0, 1.0)],
        limit: 200,
    };

    #[inline]
    fn step(state: &mut [f64; 2], action: f32) -> Step {
        let [theta, theta_dot] = *state;
        let torque = action.clamp(-MAX_TORQUE, MAX_TORQUE);
        let angle = wrapped(theta);
        let effort = f64::from(0.001 * (torque * torque));
        let cost = angle * angle + 0.1 * (theta_dot * theta_dot) + effort;
        let acceleration = 3.0 * GRAVITY / 2.0 * theta.sin() + f64::from(3.0 * torque);
        let theta_dot = (theta_dot + acceleration * SECONDS).clamp(-MAX_SPEED, MAX_SPEED);
        *state = [theta + theta_dot * SECONDS, theta_dot];
        Step { reward: -cost, terminated: false }
    }

    #[inline]
    fn observe(state: &[f64; 2], observation: &mut [f32]) {
        let (sin, cos) = state[0].sin_cos();
        let seen = [cos as f32, sin as f32, state[1] as f32];
        observation.iter_mut().zip(seen).for_each(|(to, from)| *to = from);
    }
}

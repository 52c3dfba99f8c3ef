//! A pole on a cart, to be kept upright by pushing the cart.
//!
//! Barto, Sutton and Anderson, 1983, as Gymnasium's CartPole-v1 integrates it: Euler steps of 0.02 s.

use super::{Environment, Info, Space, Step};

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half the pole's.
const LENGTH: f64 = 0.5;
const POLE_MOMENT: f64 = POLE_MASS * LENGTH;
const FORCE: f64 = 10.0;
const SECONDS: f64 = 0.02;
/// Where the track ends.
const TRACK: f64 = 2.4;
/// How far the pole may lean: twelve degrees.
const LEAN: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;

/// CartPole-v1. The state is the cart's position and velocity, the pole's angle and angular velocity.
#[derive(Debug)]
pub struct CartPole;

impl Environment for CartPole {
    type State = [f64; 4];
    type Action = i64;
    const INFO: Info = Info {
        id: "CartPole-v1",
        observation: &[
            (-2.0 * TRACK as f32, 2.0 * TRACK as f32),
            (f32::NEG_INFINITY, f32::INFINITY),
            ((-2.0 * LEAN) as f32, (2.0 * LEAN) as f32),
            (f32::NEG_INFINITY, f32::INFINITY),
        ],
        actions: Space::Discrete(2),
        start: &[(-0.05, 0.05); 4],
        limit: 500,
    };

    #[inline]
    fn step(state: &mut [f64; 4], action: i64) -> Step {
        let [x, x_dot, theta, theta_dot] = *state;
        let force = if action == 1 { FORCE } else { -FORCE };
        let (sin, cos) = theta.sin_cos();
        let push = (force + POLE_MOMENT * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * push)
            / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let x_acc = push - POLE_MOMENT * theta_acc * cos / TOTAL_MASS;
        let x = x + SECONDS * x_dot;
        let theta = theta + SECONDS * theta_dot;
        *state = [x, x_dot + SECONDS * x_acc, theta, theta_dot + SECONDS * theta_acc];
        // The step on which the pole falls is rewarded too.
        Step { reward: 1.0, terminated: x.abs() > TRACK || theta.abs() > LEAN }
    }

    #[inline]
    fn observe(state: &[f64; 4], observation: &mut [f32]) {
        observation.iter_mut().zip(state).for_each(|(to, from)| *to = *from as f32);
    }
}

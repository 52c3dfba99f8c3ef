//! Two links of which only the joint between them has a motor, to be swung above a line.
//!
//! Sutton, 1996, with the equations of Sutton and Barto's book, as Gymnasium's Acrobot-v1 integrates
//! them: one Runge-Kutta step of fourth order for 0.2 s. Lengths and masses of both links are 1, their
//! centres of mass in the middle and their moments of inertia 1.

use std::f64::consts::PI;

use super::{Environment, Info, Space, Step};

const GRAVITY: f64 = 9.8;
const SECONDS: f64 = 0.2;
/// From a joint to a link's centre of mass.
const CENTRE: f64 = 0.5;
const MAX_SPEEDS: [f64; 2] = [4.0 * PI, 9.0 * PI];

/// Acrobot-v1. The state is the angle of the first link from hanging, that of the second from the
/// first, and their angular velocities.
#[derive(Debug)]
pub struct Acrobot;

impl Environment for Acrobot {
    type State = [f64; 4];
    type Action = i64;
    const INFO: Info = Info {
        id: "Acrobot-v1",
        observation: &[
            (-1.0, 1.0),
            (-1.0, 1.0),
            (-1.0, 1.0),
            (-1.0, 1.0),
            (-MAX_SPEEDS[0] as f32, MAX_SPEEDS[0] as f32),
            (-MAX_SPEEDS[1] as f32, MAX_SPEEDS[1] as f32),
        ],
        actions: Space::Discrete(3),
        start: &[(-0.1, 0.1); 4],
        limit: 500,
    };

    #[inline]
    fn step(state: &mut [f64; 4], action: i64) -> Step {
        let [theta1, theta2, speed1, speed2] = integrated(state, (action - 1) as f64);
        *state = [
            turned(theta1),
            turned(theta2),
            speed1.clamp(-MAX_SPEEDS[0], MAX_SPEEDS[0]),
            speed2.clamp(-MAX_SPEEDS[1], MAX_SPEEDS[1]),
        ];
        let terminated = -state[0].cos() - (state[1] + state[0]).cos() > 1.0;
        Step { reward: if terminated { 0.0 } else { -1.0 }, terminated }
    }

    #[inline]
    fn observe(state: &[f64; 4], observation: &mut [f32]) {
        let ((sin1, cos1), (sin2, cos2)) = (state[0].sin_cos(), state[1].sin_cos());
        let seen = [cos1, sin1, cos2, sin2, state[2], state[3]];
        observation.iter_mut().zip(seen).for_each(|(to, from)| *to = from as f32);
    }

    /// Gymnasium draws states in double precision and keeps them in single.
    fn begin(state: &mut [f64; 4]) {
        state.iter_mut().for_each(|value| *value = f64::from(*value as f32));
    }
}

/// The state after one Runge-Kutta step.
fn integrated(state: &[f64; 4], torque: f64) -> [f64; 4] {
    let ahead = |slope: &[f64; 4], seconds: f64| -> [f64; 4] {
        std::array::from_fn(|at| state[at] + seconds * slope[at])
    };
    let half = SECONDS / 2.0;
    let k1 = slope(state, torque);
    let k2 = slope(&ahead(&k1, half), torque);
    let k3 = slope(&ahead(&k2, half), torque);
    let k4 = slope(&ahead(&k3, SECONDS), torque);
    std::array::from_fn(|at| {
        state[at] + SECONDS / 6.0 * (k1[at] + 2.0 * k2[at] + 2.0 * k3[at] + k4[at])
    })
}

/// How fast each number of a state changes.
fn slope(state: &[f64; 4], torque: f64) -> [f64; 4] {
    let [theta1, theta2, speed1, speed2] = *state;
    let (sin2, cos2) = theta2.sin_cos();
    let d1 = CENTRE * CENTRE + (1.0 + CENTRE * CENTRE + 2.0 * CENTRE * cos2) + 1.0 + 1.0;
    let d2 = (CENTRE * CENTRE + CENTRE * cos2) + 1.0;
    let phi2 = CENTRE * GRAVITY * (theta1 + theta2 - PI / 2.0).cos();
    let phi1 = -CENTRE * (speed2 * speed2) * sin2 - 2.0 * CENTRE * speed2 * speed1 * sin2
        + (CENTRE + 1.0) * GRAVITY * (theta1 - PI / 2.0).cos()
        + phi2;
    let acceleration2 = (torque + d2 / d1 * phi1 - CENTRE * (speed1 * speed1) * sin2 - phi2)
        / (CENTRE * CENTRE + 1.0 - d2 * d2 / d1);
    let acceleration1 = -(d2 * acceleration2 + phi1) / d1;
    [speed1, speed2, acceleration1, acceleration2]
}

/// An angle less whole turns, from -π to π.
fn turned(mut angle: f64) -> f64 {
    // A step turns a link at most about once, so this is quicker than a remainder, and rounds as
    // Gymnasium does. What a caller has set may be anything.
    if angle.abs() > 100.0 {
        return super::wrapped(angle);
    }
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}

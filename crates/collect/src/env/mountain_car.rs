//! A car in a valley, too weak to drive out without swinging.
//!
//! Moore, 1990, as Gymnasium's MountainCar-v0 has it.

use super::{Environment, Info, Space, Step};

const LEFT: f64 = -1.2;
const RIGHT: f64 = 0.6;
const MAX_SPEED: f64 = 0.07;
const GOAL: f64 = 0.5;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

/// MountainCar-v0. The state is the position and the velocity.
#[derive(Debug)]
pub struct MountainCar;

impl Environment for MountainCar {
    type State = [f64; 2];
    type Action = i64;
    const INFO: Info = Info {
        id: "MountainCar-v0",
        observation: &[(LEFT as f32, RIGHT as f32), (-MAX_SPEED as f32, MAX_SPEED as f32)],
        actions: Space::Discrete(3),
        start: &[(-0.6, -0.4), (0.0, 0.0)],
        limit: 200,
    };

    #[inline]
    fn step(state: &mut [f64; 2], action: i64) -> Step {
        let [position, velocity] = *state;
        let pull = (action - 1) as f64 * FORCE + (3.0 * position).cos() * -GRAVITY;
        let mut velocity = (velocity + pull).clamp(-MAX_SPEED, MAX_SPEED);
        let position = (position + velocity).clamp(LEFT, RIGHT);
        // The wall at the left takes the whole speed.
        if position == LEFT && velocity < 0.0 {
            velocity = 0.0;
        }
        *state = [position, velocity];
        Step { reward: -1.0, terminated: position >= GOAL && velocity >= 0.0 }
    }

    #[inline]
    fn observe(state: &[f64; 2], observation: &mut [f32]) {
        observation.iter_mut().zip(state).for_each(|(to, from)| *to = *from as f32);
    }
}

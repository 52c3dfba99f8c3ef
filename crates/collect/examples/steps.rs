//! Environment steps per second of a collector and of bare environments, on one core.
//!
//! `cargo run --release -p echoic-collect --example steps -- CartPole-v1 16 64`
#![allow(clippy::print_stdout, reason = "an example that prints")]

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use echoic_collect::env::{Actions, Space};
use echoic_collect::policy::{ActorCritic, Policy};
use echoic_collect::rollout::{Plan, Worker};
use echoic_collect::vector::{Autoreset, Outcome, open};

/// The shortest of some repeats, in seconds.
fn shortest(repeats: usize, mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_secs_f64()
    };
    (0..repeats).map(once).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let env = arguments.next().unwrap_or_else(|| "CartPole-v1".into());
    let envs: usize = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let hidden: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let steps = 128;
    let rate = |seconds: f64| (envs * steps) as f64 / seconds / 1e6;

    let mut bare = open(&env, envs, Autoreset::SameStep, None)?;
    let info = bare.info();
    let (seen, outputs) = (info.observation.len(), info.actions.outputs());
    bare.reset(None, None)?;
    let (mut observations, mut rewards) = (vec![0.0; envs * seen], vec![0.0; envs]);
    let (mut terminated, mut truncated) = (vec![false; envs], vec![false; envs]);
    let mut finals = Vec::new();
    let discrete: Vec<i64> = (0..envs as i64).map(|env| env % 2).collect();
    let continuous = vec![0.5; envs];
    let seconds = shortest(200, || {
        for _ in 0..steps {
            let actions = match info.actions {
                Space::Discrete(_) => Actions::Discrete(&discrete),
                Space::Box { .. } => Actions::Continuous(&continuous),
            };
            let outcome = Outcome {
                observations: &mut observations,
                rewards: &mut rewards,
                terminated: &mut terminated,
                truncated: &mut truncated,
                finals: &mut finals,
            };
            bare.step(actions, outcome).expect("the actions are the environment's");
        }
    });
    println!("{env}, {envs} environments: {:.2} million steps/s", rate(seconds));

    let layout = Worker::layout(&env, seen, outputs, hidden)?;
    let mut policy = ActorCritic::new(layout, 1)?;
    let (mut logits, mut values) = (vec![0.0; envs * outputs], vec![0.0; envs]);
    let seconds = shortest(200, || {
        (0..steps).for_each(|_| policy.evaluate(&observations, &mut logits, &mut values));
    });
    println!("policy of {hidden}: {:.2} million observations/s", rate(seconds));

    let plan = Plan { env, envs, steps, gamma: 0.99, lambda: 0.95, seed: 1 };
    let mut worker = Worker::new(plan, Box::new(policy))?;
    let mut rollout = worker.room()?;
    let stop = AtomicBool::new(false);
    let seconds = shortest(200, || {
        worker.collect(&mut rollout, &stop).expect("weights are finite");
    });
    println!("rollouts: {:.2} million steps/s", rate(seconds));
    Ok(())
}

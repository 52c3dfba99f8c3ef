//! Rollout tables behind a listener.
//!
//! - `rollout_session`: one connection's requests: what is answered at once, and what may have to wait.
//! - `wait_queue`: those who wait, of all connections of an event loop.
//! - `delivery`: a share of a batch, laid out where the client looks at it.

mod delivery;
mod rollout_session;
mod wait_queue;

pub(crate) use self::delivery::Delivery;
pub(crate) use self::rollout_session::{RolloutSession, take};
pub(crate) use self::wait_queue::WaitQueue;

use echoic_replay::rollouts::table::CallError;

use super::outbox::Outbox;
use crate::wire::frame::Stall;
use crate::wire::tables::{Answer, FailureCode};

/// Tells a client why a rollout table did not do it.
fn refuse(id: u64, error: CallError, out: &mut Outbox) {
    out.say(|out| Answer::RolloutRefused { id, error }.write(out));
}

/// Tells a client why the listener did not do it.
fn fail(id: u64, code: FailureCode, text: &str, out: &mut Outbox) {
    let answer = Answer::Failed { id, code, stall: Stall::None, text: text.to_owned() };
    out.say(|out| answer.write(out));
}

//! Rollout tables behind a listener.
//!
//! - `rollout_session`: one connection's requests: what is answered at once, and what may have to wait.
//! - `delivery`: a share of a batch, laid out where the client looks at it.

mod delivery;
mod rollout_session;

pub(crate) use self::delivery::Delivery;
pub(crate) use self::rollout_session::{RolloutSession, failure, serve, take};

use echoic_replay::rollouts::table::CallError;

use crate::wire::tables::Answer;
use crate::write_buffer::WriteBuffer;

/// Tells a client why a rollout table did not do it.
fn refuse(id: u64, error: CallError, out: &mut WriteBuffer) {
    out.write(|out| Answer::RolloutRefused { id, error }.write(out));
}

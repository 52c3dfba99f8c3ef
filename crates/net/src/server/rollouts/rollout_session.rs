//! One connection's requests about rollout tables.

use std::sync::Arc;
use std::time::{Duration, Instant};

use echoic_memory::arena::Arena;
use echoic_replay::rollouts::ledger::Change;
use echoic_replay::rollouts::table::CallError;

use super::refuse;
use super::wait_queue::{Waiter, WaitingRequest};
use crate::server::disk_queue::{Held, Receipt};
use crate::server::request_session::{RequestSession, check_area, fail};
use crate::server::services::Services;
use crate::wire::WireError;
use crate::wire::frame::{frame, kind};
use crate::wire::rollouts::{Bulk, Changes, Outcomes, write_list};
use crate::wire::tables::{Answer, FailureCode, MAX_WAITING, Operation};
use crate::write_buffer::{Piece, WriteBuffer};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct RolloutSession {
    /// The client has asked which rollout tables there are.
    pub(crate) is_used: bool,
    /// Those that the event loop has not taken to its wait queue yet.
    pub(super) arrivals: Vec<Waiter>,
    /// Requests that the client gives up, and that may be in the wait queue.
    pub(super) cancels: Vec<u64>,
    /// How many are there and in the wait queue.
    waiters: usize,
    /// One in the wait queue was passed over: it is to be looked at again when the client has read more, or when a batch
    /// for it is gathered.
    pub(crate) passed_over: bool,
    /// The bulk of the next changes of a table, as far as it came in parts: no more than an item may have.
    parts: Option<(u32, Vec<u8>)>,
}

impl RolloutSession {
    /// Keeps something for the wait queue.
    fn admit(
        &mut self,
        id: u64,
        number: u32,
        request: WaitingRequest,
        timeout_ms: Option<u64>,
    ) -> Result<(), WireError> {
        if self.waiters >= MAX_WAITING {
            let (limit, got) = (MAX_WAITING as u64, self.waiters as u64 + 1);
            return Err(WireError::too_large("requests that wait", limit, got));
        }
        self.waiters += 1;
        // Longer than a clock can hold is for ever.
        let deadline =
            timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        self.arrivals.push(Waiter::new(
            id,
            number as usize,
            request,
            deadline,
            timeout_ms == Some(0),
        ));
        Ok(())
    }

    /// Notes that a request is given up.
    pub(crate) fn cancel(&mut self, id: u64) {
        if self.waiters > 0 {
            self.cancels.push(id);
        }
    }

    /// One left the wait queue.
    pub(crate) fn see_off(&mut self) {
        self.waiters = self.waiters.saturating_sub(1);
    }
}

/// Does what is asked, or keeps it for the wait queue.
pub(crate) fn take(
    session: &mut RequestSession,
    id: u64,
    number: u32,
    operation: Operation<'_>,
    services: &Services,
    out: &mut WriteBuffer,
) -> Result<(), WireError> {
    if operation == Operation::RolloutList {
        session.rollouts.is_used = true;
        out.write(|out| {
            frame(out, kind::ROLLOUT_TABLES, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                write_list(out, &services.shared.rollout_configs);
            });
        });
        return Ok(());
    }
    let Some(table) = services.rollout_table(number as usize) else {
        let text = format!("the server has no rollout table number {number}");
        fail(id, FailureCode::Table, &text, out);
        return Ok(());
    };
    match operation {
        Operation::RolloutPart(bytes) => {
            let (of, parts) = session.rollouts.parts.get_or_insert_with(|| (number, Vec::new()));
            if *of != number {
                let (field, got) = ("table of a part", number.into());
                return Err(WireError::meaningless(field, got));
            }
            let (limit, got) =
                (table.config().most_item_bytes(), (parts.len() + bytes.len()) as u64);
            if got > limit {
                return Err(WireError::too_large("bytes of an item", limit, got));
            }
            parts.extend_from_slice(&bytes);
            Ok(())
        }
        Operation::RolloutChanges(mut changes) => {
            if let Some((of, mut parts)) = session.rollouts.parts.take() {
                match &mut changes.bulk {
                    Bulk::Inline(rest) if of == number => {
                        parts.extend_from_slice(rest);
                        *rest = parts.into();
                    }
                    _ => {
                        let (field, got) = ("table of a part", of.into());
                        return Err(WireError::meaningless(field, got));
                    }
                }
            }
            let mut decoded = decode(&changes, session.arena.as_ref(), services)?;
            if let Some(change) = decoded.pop_if(|change| change.side().is_some()) {
                // It is alone, as `decode` has seen.
                return session.rollouts.admit(
                    id,
                    number,
                    WaitingRequest::Change(change),
                    changes.timeout_ms,
                );
            }
            let mut outcomes = Outcomes::with_capacity(decoded.len());
            for change in &decoded {
                outcomes.push(match table.apply(change) {
                    Ok(outcome) => Ok(outcome),
                    Err(CallError::Refused(refusal)) => Err(refusal),
                    Err(error) => {
                        refuse(id, error, out);
                        return Ok(());
                    }
                });
            }
            // What was refused has changed nothing that anybody relies on.
            let is_changed = outcomes.iter().any(Result::is_ok);
            let answer = Piece::of(|out| Answer::RolloutOutcomes { id, outcomes }.write(out));
            let receipt = Receipt::of_rollouts(number as usize, table).filter(|_| is_changed);
            session.answer(id, receipt, Held::Frame(answer), services, out);
            Ok(())
        }
        Operation::RolloutSample(wish) => {
            if let Some(area) = wish.area {
                check_area(area, session.arena.as_ref())?;
            }
            session.rollouts.admit(id, number, WaitingRequest::Sample(wish), wish.timeout_ms)
        }
        Operation::RolloutVersion { above, timeout_ms } => {
            session.rollouts.admit(id, number, WaitingRequest::Version { above }, timeout_ms)
        }
        Operation::RolloutInfo => {
            let info = Box::new(table.info());
            out.write(|out| Answer::RolloutNumbers { id, info }.write(out));
            Ok(())
        }
        Operation::RolloutPause { paused } => {
            table.pause(paused);
            out.write(|out| Answer::Done { id, count: 0 }.write(out));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The changes of a request, with their own memory.
fn decode(
    changes: &Changes<'_>,
    arena: Option<&Arc<Arena>>,
    services: &Services,
) -> Result<Vec<Change>, WireError> {
    let area = match &changes.bulk {
        Bulk::Inline(bytes) => return changes.decode(bytes),
        Bulk::Area(area) => *area,
    };
    check_area(area, arena)?;
    let range = area.start as usize..(area.start + area.len) as usize;
    let Some(claim) = arena.and_then(|arena| arena.claim(range)) else {
        let field = "area that an answer is written to";
        return Err(WireError::meaningless(field, area.start));
    };
    // The client can still write there, and could change what was checked.
    let mut bytes = services.shared.buffer_pool.take(area.len as usize);
    claim.copy_to(&mut bytes);
    changes.decode(&bytes)
}

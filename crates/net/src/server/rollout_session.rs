//! One connection's requests about rollout tables.

use std::sync::Arc;

use echoic_memory::arena::Arena;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::ledger::{Change, ChangeError, Outcome, Want};
use echoic_replay::rollouts::table::CallError;

use super::ServerContext;
use super::delivery::deliver;
use super::disk_queue::{Held, Receipt};
use super::request_session::{RequestSession, check_area, fail};
use super::session::{Stop, Turn};
use super::wait_queue::{BlockedBy, Waiter, WaitingRequest};
use crate::wire::WireError;
use crate::wire::frame::{HEADER_BYTES, MAX_CONTROL, frame, kind};
use crate::wire::rollouts::{Bulk, Changes, Outcomes, write_list};
use crate::wire::tables::{Answer, FailureCode, MAX_BATCH, Operation};
use crate::write_buffer::{Piece, WriteBuffer};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct RolloutSession {
    /// The client has asked which rollout tables there are.
    pub(crate) is_used: bool,
    /// The bulk of the next changes of a table, as far as it came in parts: no more than an item may have.
    parts: Option<(u32, Vec<u8>)>,
}

/// Does what is asked, or has it wait.
pub(crate) fn take(
    session: &mut RequestSession,
    id: u64,
    number: u32,
    operation: Operation<'_>,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if operation == Operation::RolloutList {
        session.rollouts.is_used = true;
        let configs = &turn.shared.rollout_configs;
        turn.out.write(|out| {
            frame(out, kind::ROLLOUT_TABLES, |out| {
                out.extend_from_slice(&id.to_le_bytes());
                write_list(out, configs);
            });
        });
        return Ok(());
    }
    let Some(table) = turn.shared.rollout_table(number as usize) else {
        let text = format!("the server has no rollout table number {number}");
        fail(id, FailureCode::Table, &text, turn.out);
        return Ok(());
    };
    match operation {
        Operation::RolloutPart(bytes) => {
            let (of, parts) = session.rollouts.parts.get_or_insert_with(|| (number, Vec::new()));
            if *of != number {
                let (field, got) = ("table of a part", number.into());
                return Err(WireError::meaningless(field, got).into());
            }
            let (limit, got) =
                (table.config().most_item_bytes(), (parts.len() + bytes.len()) as u64);
            if got > limit {
                return Err(WireError::too_large("bytes of an item", limit, got).into());
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
                        return Err(WireError::meaningless(field, got).into());
                    }
                }
            }
            let mut decoded = decode(&changes, session.arena.as_ref(), turn.shared)?;
            if let Some(change) = decoded.pop_if(|change| change.side().is_some()) {
                // It is alone, as `decode` has seen.
                let request = WaitingRequest::Change(change);
                return session.begin(id, number, request, changes.timeout_ms, turn);
            }
            let mut outcomes = Outcomes::with_capacity(decoded.len());
            for change in &decoded {
                outcomes.push(match table.apply(change) {
                    Ok(outcome) => Ok(outcome),
                    Err(CallError::Refused(refusal)) => Err(refusal),
                    Err(error) => {
                        refuse(id, error, turn.out);
                        return Ok(());
                    }
                });
            }
            // What was refused has changed nothing that a client relies on.
            let is_changed = outcomes.iter().any(Result::is_ok);
            let answer = Piece::of(|out| Answer::RolloutOutcomes { id, outcomes }.write(out));
            let receipt = Receipt::of_rollouts(number as usize, table).filter(|_| is_changed);
            session.answer(id, receipt, Held::Frame(answer), turn);
            Ok(())
        }
        Operation::RolloutSample(wish) => {
            if let Some(area) = wish.area {
                check_area(area, session.arena.as_ref())?;
            }
            session.begin(id, number, WaitingRequest::Share(wish), wish.timeout_ms, turn)
        }
        Operation::RolloutInfo => {
            let info = Box::new(table.info());
            turn.out.write(|out| Answer::RolloutNumbers { id, info }.write(out));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The changes of a request, with their own memory.
fn decode(
    changes: &Changes<'_>,
    arena: Option<&Arc<Arena>>,
    shared: &ServerContext,
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
    let mut bytes = shared.buffer_pool.take(area.len as usize);
    claim.copy_to(&mut bytes);
    changes.decode(&bytes)
}

/// Serves a request, if that is possible now; else why not.
pub(crate) fn serve(
    session: &mut RequestSession,
    waiter: &Waiter,
    turn: &mut Turn<'_>,
) -> Result<(), BlockedBy> {
    let Some(table) = turn.shared.rollout_table(waiter.table) else { return Ok(()) };
    let error = match try_to_serve(session, waiter, table, turn) {
        Ok(()) => return Ok(()),
        Err(CallError::Refused(ChangeError::Blocked(blocked))) => match failure(table) {
            None => return Err(BlockedBy::Rollouts(blocked)),
            Some(error) => error,
        },
        Err(error) => error,
    };
    refuse(waiter.id, error, turn.out);
    Ok(())
}

/// Why a table with a directory writes nothing more, if so.
pub(crate) fn failure(table: &RolloutTable) -> Option<CallError> {
    table.is_durable(table.receipt()?).err()
}

fn try_to_serve(
    session: &mut RequestSession,
    waiter: &Waiter,
    table: &Arc<RolloutTable>,
    turn: &mut Turn<'_>,
) -> Result<(), CallError> {
    let (id, number) = (waiter.id, waiter.table);
    match &waiter.request {
        WaitingRequest::Change(change) => {
            match table.apply(change) {
                Ok(outcome) => match outcome_frame(id, outcome) {
                    Some(frame) => {
                        let receipt = Receipt::of_rollouts(number, table);
                        session.answer(id, receipt, Held::Frame(frame), turn);
                    }
                    None => {
                        let text =
                            "what is there of the group has more bytes than an answer may have";
                        fail(id, FailureCode::TooLarge, text, turn.out);
                    }
                },
                Err(CallError::Refused(refusal)) if !matches!(refusal, ChangeError::Blocked(_)) => {
                    let outcomes = vec![Err(refusal)];
                    turn.out.write(|out| Answer::RolloutOutcomes { id, outcomes }.write(out));
                }
                Err(error) => return Err(error),
            }
            Ok(())
        }
        WaitingRequest::Share(wish) => {
            let want = Want { width: wish.form.width(), ..wish.want };
            if let Outcome::Delivered(share) = table.apply(&Change::Sample(want))? {
                deliver((id, number), table, wish, share, session, turn);
            }
            Ok(())
        }
        WaitingRequest::Items { .. } => Ok(()),
    }
}

/// The outcome of a change that was alone; `None`, if it is too large to be sent.
fn outcome_frame(id: u64, outcome: Outcome) -> Option<Piece> {
    let mut frame = Vec::new();
    Answer::RolloutOutcomes { id, outcomes: vec![Ok(outcome)] }.write(&mut frame);
    let limit = MAX_BATCH as usize + HEADER_BYTES - MAX_CONTROL as usize;
    (frame.len() <= limit).then_some(Piece::Small(frame))
}

/// Tells a client why a rollout table did not do it.
fn refuse(id: u64, error: CallError, out: &mut WriteBuffer) {
    out.write(|out| Answer::RolloutRefused { id, error }.write(out));
}

//! A share of a batch, laid out in the area that is for it, if it fits there, or else in a frame.
//!
//! The area is the question's until it is answered, so it is filled before the answer may have to wait.

use std::sync::Arc;

use echoic_memory::arena::Arena;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::batch::{Layout, LayoutError};
use echoic_replay::rollouts::ledger::{Change, Lease, Share};

use super::disk_queue::{Held, Receipt};
use super::pool::HEAVY;
use super::request_session::{RequestSession, fail};
use super::session::Turn;
use crate::buffer_pool::BufferPool;
use crate::wire::frame::{HEADER_BYTES, Header, frame, kind};
use crate::wire::rollouts::{DeliveryHead, Wish};
use crate::wire::tables::{Area, FailureCode};
use crate::write_buffer::Piece;

/// A share that is laid out, or why it can't be.
#[derive(Debug)]
pub(crate) struct Delivery {
    id: u64,
    /// The number of the table.
    table: usize,
    lease: Lease,
    lease_ms: Option<u64>,
    answer: Result<Piece, (FailureCode, String)>,
}

/// Answers a wish: now, or when the share is laid out elsewhere, if that takes long.
pub(super) fn deliver(
    (id, number): (u64, usize),
    table: &Arc<RolloutTable>,
    wish: &Wish,
    share: Share,
    session: &mut RequestSession,
    turn: &mut Turn<'_>,
) {
    let Share { lease, lease_ms, .. } = share;
    let delivery = move |answer| Delivery { id, table: number, lease, lease_ms, answer };
    let form = wish.form;
    let layout = match Layout::new(&share, table.config(), form) {
        Ok(layout) => layout,
        Err(error) => {
            return delivery(Err(refusal(&error))).send(session, turn);
        }
    };
    let area = wish.area.zip(session.arena.as_ref());
    if layout.bytes() < HEAVY {
        let answer = lay_out(id, &layout, area, &turn.shared.buffer_pool);
        return delivery(answer).send(session, turn);
    }
    let area = area.map(|(area, arena)| (area, Arc::clone(arena)));
    let (table, buffer_pool) = (Arc::clone(table), Arc::clone(&turn.shared.buffer_pool));
    session.lay_out_elsewhere(turn, move || {
        let layout = Layout::new(&share, table.config(), form);
        let answer = layout.map_err(|error| refusal(&error)).and_then(|layout| {
            let area = area.as_ref().map(|(area, arena)| (*area, arena));
            lay_out(id, &layout, area, &buffer_pool)
        });
        delivery(answer)
    });
}

/// Why a share is not delivered in this form.
fn refusal(error: &LayoutError) -> (FailureCode, String) {
    let code = match error {
        LayoutError::TooLarge => FailureCode::TooLarge,
        _ => FailureCode::Value,
    };
    (code, error.to_string())
}

/// Writes a share to where it belongs.
fn lay_out(
    id: u64,
    layout: &Layout<'_>,
    area: Option<(Area, &Arc<Arena>)>,
    buffer_pool: &Arc<BufferPool>,
) -> Result<Piece, (FailureCode, String)> {
    let mut head = Vec::with_capacity(256);
    DeliveryHead::write(&mut head, id, &layout.head());
    let bytes = layout.bytes();
    if let Some((Area { start, len }, arena)) = area
        && bytes as u64 <= len
        && let Some(mut claim) = arena.claim(start as usize..start as usize + bytes)
    {
        layout.write(claim.bytes_mut());
        return Ok(Piece::of(|out| {
            frame(out, kind::ROLLOUT_PLACED, |out| out.extend_from_slice(&head));
        }));
    }
    let (start, end) = DeliveryHead::place(head.len(), bytes)
        .map_err(|error| (FailureCode::TooLarge, error.to_string()))?;
    let mut pooled = buffer_pool.take(HEADER_BYTES + end);
    let (header, payload) = pooled.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&Header { len: end as u32, kind: kind::ROLLOUT_BATCH }.bytes());
    let (told, arrays) = payload.split_at_mut(start);
    let (told, gap) = told.split_at_mut(head.len());
    told.copy_from_slice(&head);
    gap.fill(0);
    layout.write(arrays);
    Ok(Piece::Pooled(pooled))
}

impl Delivery {
    /// Answers. A share that can't be delivered in this form is given back: the owner of a lease may ask for it in another.
    pub(crate) fn send(self, session: &mut RequestSession, turn: &mut Turn<'_>) {
        let Self { id, table: number, lease, lease_ms, answer } = self;
        let Some(table) = turn.shared.rollout_table(number) else { return };
        let (code, text) = match answer {
            Ok(frame) => {
                let receipt = Receipt::of_rollouts(number, table);
                return session.answer(id, receipt, Held::Frame(frame), turn);
            }
            Err(refusal) => refusal,
        };
        let text = match lease_ms {
            // It is ours for a moment still; if not, it is another consumer's already.
            Some(_) if table.apply(&Change::Nack(lease)).is_ok() => text,
            _ => format!("{text}; its groups are used up, as it was sampled without a lease"),
        };
        fail(id, code, &text, turn.out);
    }
}

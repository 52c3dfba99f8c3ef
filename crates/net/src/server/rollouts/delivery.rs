//! A share of a batch, laid out in the area that is for it, if it fits there, or else in a frame.
//!
//! The area is the question's until it is answered, so it is filled at once, also where the answer has to wait.

use std::sync::Arc;

use echoic_memory::arena::Arena;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::batch::{Layout, LayoutError};
use echoic_replay::rollouts::ledger::{Change, Share};

use super::fail;
use super::holding::{Frame, Holding};
use crate::server::outbox::Outbox;
use crate::server::tables::Context;
use crate::wire::frame::{HEADER_BYTES, Header, frame, kind};
use crate::wire::rollouts::{DeliveryHead, Wish};
use crate::wire::tables::{Area, FailureCode};

/// Answers a wish.
pub(super) fn deliver(
    (id, number): (u64, usize),
    table: &RolloutTable,
    wish: &Wish,
    share: &Share,
    (arena, holding): (Option<&Arc<Arena>>, &mut Holding),
    context: &Context<'_>,
    out: &mut Outbox,
) {
    let layout = match Layout::new(share, table.config(), wish.form) {
        Ok(layout) => layout,
        Err(error) => {
            let code = match error {
                LayoutError::TooLarge => FailureCode::TooLarge,
                _ => FailureCode::Value,
            };
            return give_back(id, table, share, code, &error.to_string(), out);
        }
    };
    let mut head = Vec::with_capacity(256);
    DeliveryHead::write(&mut head, id, &layout.head());
    let bytes = layout.bytes();
    if let Some((Area { start, len }, arena)) = wish.area.zip(arena)
        && bytes as u64 <= len
        && let Some(mut claim) = arena.claim(start as usize..start as usize + bytes)
    {
        layout.write(claim.bytes_mut());
        let answer = Frame::of(|out| {
            frame(out, kind::ROLLOUT_PLACED, |out| out.extend_from_slice(&head));
        });
        return holding.answer(id, number, table, answer, out);
    }
    let (start, end) = match DeliveryHead::place(head.len(), bytes) {
        Ok(place) => place,
        Err(error) => {
            let text = error.to_string();
            return give_back(id, table, share, FailureCode::TooLarge, &text, out);
        }
    };
    let mut lent = context.spare.take(HEADER_BYTES + end);
    let (header, payload) = lent.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&Header { len: end as u32, kind: kind::ROLLOUT_BATCH }.bytes());
    let (told, arrays) = payload.split_at_mut(start);
    let (told, gap) = told.split_at_mut(head.len());
    told.copy_from_slice(&head);
    gap.fill(0);
    layout.write(arrays);
    holding.answer(id, number, table, Frame::Large(lent), out);
}

/// Says that a share can't be delivered in this form. Who had a lease may ask for it in another.
fn give_back(
    id: u64,
    table: &RolloutTable,
    share: &Share,
    code: FailureCode,
    text: &str,
    out: &mut Outbox,
) {
    let text = match share.lease_ms {
        // It is ours for a moment still; if not, it is another consumer's already.
        Some(_) if table.apply(&Change::Nack(share.lease)).is_ok() => text.to_owned(),
        _ => format!("{text}; its groups are used up, as it was sampled without a lease"),
    };
    fail(id, code, &text, out);
}

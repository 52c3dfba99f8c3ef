//! What came of changes, or why nothing did.

use std::sync::Arc;

use echoic_replay::codec::Reader;
use echoic_replay::limiter::Reason;
use echoic_replay::rollouts::codec::{Put, put_lease, take_lease};
use echoic_replay::rollouts::config::MAX_GROUP;
use echoic_replay::rollouts::item::{Finish, Item, Run, Segment};
use echoic_replay::rollouts::ledger::{
    Blocked, Fate, Hold, MAX_ADMITTED, Outcome, Permit, Progress, Refusal,
};
use echoic_replay::rollouts::schema::MAX_BLOBS;
use echoic_replay::rollouts::table::CallError;

use super::MAX_CHANGES;
use crate::wire::WireError;
use crate::wire::frame::Stall;

/// What came of each of some changes, in their order.
pub type Outcomes = Vec<Result<Outcome, Refusal>>;

/// The longest text of a refusal.
const MAX_TEXT: usize = 1 << 10;

/// Appends text, cut at a character where it is too long.
fn put_cut(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    out.put_text(text.get(..end).unwrap_or_default());
}

fn meaningless(field: &'static str, got: impl Into<u64>) -> WireError {
    WireError::meaningless(field, got.into())
}

/// Appends outcomes: how many, and each. A share of a batch is sent in another way; here, it is as if there were
/// nothing to say.
pub fn write_outcomes(out: &mut Vec<u8>, outcomes: &[Result<Outcome, Refusal>]) {
    out.put_u32(u32::try_from(outcomes.len()).unwrap_or(u32::MAX));
    for outcome in outcomes {
        match outcome {
            Ok(Outcome::Done | Outcome::Delivered(_)) => out.put_u8(0),
            Ok(Outcome::Admitted(permits)) => {
                out.put_u8(1);
                out.put_u32(u32::try_from(permits.len()).unwrap_or(u32::MAX));
                permits.iter().for_each(|permit| put_permit(out, permit));
            }
            Ok(Outcome::Resumed(permit, items)) => {
                out.put_u8(2);
                put_permit(out, permit);
                out.put_u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
                items.iter().for_each(|item| put_item(out, item));
            }
            Ok(Outcome::Appended(fate)) => {
                out.put_u8(3);
                out.put_u8(fate.number());
            }
            Ok(Outcome::Count(count)) => {
                out.put_u8(4);
                out.put_u64(*count);
            }
            Ok(Outcome::Begun(items)) => {
                out.put_u8(5);
                out.put_u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
                for Progress { segments, is_finished } in items {
                    out.put_u32(*segments);
                    out.put_u8((*is_finished).into());
                }
            }
            Err(refusal) => put_refusal(out, refusal),
        }
    }
}

/// What [`write_outcomes`] wrote.
pub fn read_outcomes(take: &mut Reader<'_>) -> Result<Outcomes, WireError> {
    let count = take.count("number of outcomes", MAX_CHANGES, 1)?;
    let mut outcomes = Vec::with_capacity(count);
    for _ in 0..count {
        outcomes.push(match take.u8("outcome")? {
            0 => Ok(Outcome::Done),
            1 => {
                let count = take.count("number of permits", MAX_ADMITTED, 32)?;
                let permits = (0..count).map(|_| take_permit(take));
                Ok(Outcome::Admitted(permits.collect::<Result<_, _>>()?))
            }
            2 => {
                let permit = take_permit(take)?;
                let count = take.count("number of items", u32::MAX, 9)?;
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(take_item(take)?);
                }
                Ok(Outcome::Resumed(permit, items))
            }
            3 => {
                let number = take.u8("fate of a group")?;
                let fate = Fate::of(number);
                let fate = fate.ok_or_else(|| meaningless("fate of a group", number))?;
                Ok(Outcome::Appended(fate))
            }
            4 => Ok(Outcome::Count(take.u64("count")?)),
            5 => {
                let count = take.count("number of items", MAX_GROUP, 5)?;
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    let segments = take.u32("number of segments")?;
                    items.push(Progress { segments, is_finished: take.flag("end of an item")? });
                }
                Ok(Outcome::Begun(items))
            }
            kind => Err(take_refusal(take, kind)?),
        });
    }
    Ok(outcomes)
}

fn put_permit(out: &mut Vec<u8>, permit: &Permit) {
    let Permit { hold: Hold { group, attempt }, key, version, ttl_ms } = permit;
    out.put_u64(*group);
    out.put_u32(*attempt);
    out.put_text(key);
    out.put_i64(*version);
    out.put_u64(*ttl_ms);
}

fn take_permit(take: &mut Reader<'_>) -> Result<Permit, WireError> {
    let hold = Hold { group: take.u64("group")?, attempt: take.u32("attempt")? };
    let key = take.string("key of a group")?;
    Ok(Permit { hold, key, version: take.i64("version")?, ttl_ms: take.u64("ttl")? })
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put(bytes);
}

fn take_bytes(take: &mut Reader<'_>, field: &'static str) -> Result<Vec<u8>, WireError> {
    let len = take.count(field, u32::MAX, 1)?;
    Ok(take.bytes(field, len)?.to_vec())
}

fn put_item(out: &mut Vec<u8>, item: &Item) {
    let Item { index, segments, finish } = item;
    out.put_u32(*index);
    out.put_u32(u32::try_from(segments.len()).unwrap_or(u32::MAX));
    for segment in segments {
        let Segment { runs, tokens, bytes } = &**segment;
        out.put_u32(*tokens);
        out.put_u32(u32::try_from(runs.len()).unwrap_or(u32::MAX));
        for Run { version, tokens } in runs {
            out.put_i64(*version);
            out.put_u32(*tokens);
        }
        put_bytes(out, bytes);
    }
    out.put_u8(finish.is_some().into());
    let Some(finish) = finish else { return };
    let Finish { fields, blobs } = &**finish;
    put_bytes(out, fields);
    out.put_u32(u32::try_from(blobs.len()).unwrap_or(u32::MAX));
    for (name, bytes) in blobs {
        out.put_text(name);
        put_bytes(out, bytes);
    }
}

fn take_item(take: &mut Reader<'_>) -> Result<Item, WireError> {
    let index = take.u32("place of an item")?;
    let count = take.count("number of segments", u32::MAX, 12)?;
    let mut item = Item { index, ..Item::default() };
    for _ in 0..count {
        let tokens = take.u32("tokens")?;
        let count = take.count("number of versions", u32::MAX, 12)?;
        let mut segment = Segment { tokens, ..Segment::default() };
        for _ in 0..count {
            let version = take.i64("version")?;
            segment.runs.push(Run { version, tokens: take.u32("tokens of a version")? });
        }
        segment.bytes = take_bytes(take, "tokens")?;
        item.segments.push(Arc::new(segment));
    }
    if take.flag("end of an item")? {
        let fields = take_bytes(take, "fields")?;
        let count = take.count("number of blobs", MAX_BLOBS as u32, 8)?;
        let mut blobs = Vec::with_capacity(count);
        for _ in 0..count {
            blobs.push((take.string("name of a blob")?, take_bytes(take, "blob")?));
        }
        item.finish = Some(Arc::new(Finish { fields, blobs }));
    }
    Ok(item)
}

/// The first number of refusals, behind those of outcomes.
const REFUSED: u8 = 32;

fn put_value(out: &mut Vec<u8>, what: &str, expected: &str, got: &str) {
    out.put_u8(REFUSED | 1);
    for text in [what, expected, got] {
        put_cut(out, text);
    }
}

fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    match refusal {
        Refusal::Blocked(blocked) => {
            out.put_u8(REFUSED);
            put_blocked(out, *blocked);
        }
        Refusal::Value { what, expected, got } => {
            put_value(out, what, expected, got);
        }
        Refusal::Fenced { lease, why } => {
            out.put_u8(REFUSED | 2);
            put_lease(out, lease);
            put_cut(out, why);
        }
        Refusal::Unknown(group) => {
            out.put_u8(REFUSED | 3);
            out.put_u64(*group);
        }
        Refusal::TooLong { item, length, width } => {
            out.put_u8(REFUSED | 4);
            [item, length, width].into_iter().for_each(|number| out.put_u32(*number));
        }
        // Refusals may grow; what has no number yet still has words.
        other => {
            put_value(out, "change", "another", &other.to_string());
        }
    }
}

fn take_refusal(take: &mut Reader<'_>, kind: u8) -> Result<Refusal, WireError> {
    Ok(match kind.checked_sub(REFUSED) {
        Some(0) => Refusal::Blocked(take_blocked(take)?),
        Some(1) => {
            let what = take.string("name of a value")?.into();
            let expected = take.string("expected value")?;
            Refusal::Value { what, expected, got: take.string("value that came")? }
        }
        Some(2) => {
            let lease = take_lease(take)?;
            Refusal::Fenced { lease, why: take.string("end of a lease")?.into() }
        }
        Some(3) => Refusal::Unknown(take.u64("group")?),
        Some(4) => {
            let (item, length) = (take.u32("item")?, take.u32("tokens of an item")?);
            Refusal::TooLong { item, length, width: take.u32("width")? }
        }
        _ => return Err(meaningless("outcome", kind)),
    })
}

fn put_blocked(out: &mut Vec<u8>, blocked: Blocked) {
    match blocked {
        Blocked::Running(most) => {
            out.put_u8(0);
            out.put_u32(most);
        }
        Blocked::Full(most) => {
            out.put_u8(1);
            out.put_u32(most);
        }
        Blocked::Ahead { groups, most, version } => {
            out.put_u8(2);
            out.put_u64(groups);
            out.put_u64(most);
            out.put_i64(version);
        }
        Blocked::NoneSuspended => out.put_u8(3),
        Blocked::TooFew { complete, wanted } => {
            out.put_u8(4);
            out.put_u64(complete);
            out.put_u64(wanted);
        }
        Blocked::Incomplete(group) => {
            out.put_u8(5);
            out.put_u64(group);
        }
        Blocked::Shipping { version, needed } => {
            out.put_u8(6);
            out.put_i64(version);
            out.put_i64(needed);
        }
        Blocked::MeanLag => out.put_u8(7),
        Blocked::Leased(leased) => {
            out.put_u8(8);
            out.put_u64(leased);
        }
        Blocked::Limiter(reason) => {
            out.put_u8(9);
            out.put_u8(Stall::from(reason).number());
        }
        Blocked::Paused => out.put_u8(10),
        Blocked::Early { version, target } => {
            out.put_u8(11);
            out.put_i64(version);
            out.put_i64(target);
        }
        Blocked::Unpublished { there, wanted, per_version, version, needed } => {
            out.put_u8(12);
            [there, wanted, per_version].into_iter().for_each(|number| out.put_u64(number));
            out.put_i64(version);
            out.put_i64(needed);
        }
    }
}

fn take_blocked(take: &mut Reader<'_>) -> Result<Blocked, WireError> {
    Ok(match take.u8("what something waits for")? {
        0 => Blocked::Running(take.u32("max_running")?),
        1 => Blocked::Full(take.u32("max_groups")?),
        2 => {
            let (groups, most) = (take.u64("groups")?, take.u64("groups that may be")?);
            Blocked::Ahead { groups, most, version: take.i64("version")? }
        }
        3 => Blocked::NoneSuspended,
        4 => {
            let complete = take.u64("groups that are complete")?;
            Blocked::TooFew { complete, wanted: take.u64("groups that are wanted")? }
        }
        5 => Blocked::Incomplete(take.u64("group")?),
        6 => {
            let version = take.i64("version")?;
            Blocked::Shipping { version, needed: take.i64("version that is needed")? }
        }
        7 => Blocked::MeanLag,
        8 => Blocked::Leased(take.u64("groups that are with consumers")?),
        9 => {
            let number = take.u8("reason of a limiter")?;
            let reason: Option<Reason> = Stall::of(number).reason();
            Blocked::Limiter(reason.ok_or_else(|| meaningless("reason of a limiter", number))?)
        }
        10 => Blocked::Paused,
        11 => {
            let version = take.i64("version")?;
            Blocked::Early { version, target: take.i64("version of a batch")? }
        }
        12 => {
            let (there, wanted) = (take.u64("groups there")?, take.u64("groups that are wanted")?);
            let per_version = take.u64("groups of a version")?;
            let (version, needed) = (take.i64("version")?, take.i64("version that is needed")?);
            Blocked::Unpublished { there, wanted, per_version, version, needed }
        }
        got => return Err(meaningless("what something waits for", got)),
    })
}

/// Appends why a call came to nothing.
pub fn write_error(out: &mut Vec<u8>, error: &CallError) {
    match error {
        CallError::TimedOut(blocked) => {
            out.put_u8(0);
            put_blocked(out, *blocked);
        }
        CallError::Interrupted => out.put_u8(1),
        CallError::Closed => out.put_u8(2),
        CallError::Journal(cause) => {
            out.put_u8(3);
            put_cut(out, cause);
        }
        CallError::Refused(refusal) => put_refusal(out, refusal),
        // As in `put_refusal`.
        other => put_value(out, "change", "another", &other.to_string()),
    }
}

/// What [`write_error`] wrote.
pub fn read_error(take: &mut Reader<'_>) -> Result<CallError, WireError> {
    Ok(match take.u8("error of a call")? {
        0 => CallError::TimedOut(take_blocked(take)?),
        1 => CallError::Interrupted,
        2 => CallError::Closed,
        3 => CallError::Journal(take.string("cause of a failure")?),
        kind => CallError::Refused(take_refusal(take, kind)?),
    })
}

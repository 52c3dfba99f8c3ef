//! The numbers of a rollout table.

use echoic_replay::codec::Reader;
use echoic_replay::rollouts::codec::Put;
use echoic_replay::rollouts::idle::Sides;
use echoic_replay::rollouts::ledger::{Counts, GroupTotals, MAX_SOURCES, Source};
use echoic_replay::rollouts::starvation::Hunger;
use echoic_replay::rollouts::table::RolloutInfo;
use echoic_replay::table::Waits;

use crate::wire::WireError;

/// The most sources: those that are told apart, and all others.
const MOST: u32 = MAX_SOURCES as u32 + 1;

/// Appends them.
pub fn write_info(out: &mut Vec<u8>, info: &RolloutInfo) {
    let RolloutInfo { counts, totals, sources, hunger, time, producers, consumers } = info;
    counts.words().into_iter().for_each(|number| out.put_u64(number));
    let GroupTotals {
        version,
        target,
        depth,
        capacity,
        queued,
        out: with,
        suspended,
        oldest,
        paused,
    } = *totals;
    out.put_i64(version);
    out.put_i64(target);
    out.put_maybe(depth.map(u64::from));
    for number in [capacity, queued, with, suspended] {
        out.put_u64(number);
    }
    out.put_u8(oldest.is_some().into());
    out.put_i64(oldest.unwrap_or(0));
    out.put_u8(paused.into());
    out.put_u32(u32::try_from(sources.len()).unwrap_or(u32::MAX));
    for source in sources {
        out.put_text(&source.name);
        source.words().into_iter().for_each(|number| out.put_u64(number));
        out.put_maybe(source.last_admitted);
    }
    out.put_u32(u32::try_from(hunger.len()).unwrap_or(u32::MAX));
    for Hunger { source, waiting, oldest_ms, passed, longest_ms, is_starving } in hunger {
        out.put_text(source);
        for number in [waiting, oldest_ms, passed, longest_ms] {
            out.put_u64(*number);
        }
        out.put_u8((*is_starving).into());
    }
    out.put_u64(*time);
    for Waits { waiting, limited, nanos, .. } in producers.0.iter().chain(&consumers.0) {
        for number in [waiting, limited, nanos] {
            out.put_u64(*number);
        }
    }
}

/// What [`write_info`] wrote.
pub fn read_info(take: &mut Reader<'_>) -> Result<RolloutInfo, WireError> {
    let counts = take_counts(take)?;
    let (version, target) = (take.i64("version")?, take.i64("target")?);
    let depth = take.maybe("pipeline_depth")?;
    let narrow = |got| {
        let field = "pipeline_depth";
        u32::try_from(got).map_err(|_| WireError::meaningless(field, got))
    };
    let depth = depth.map(narrow).transpose()?;
    let [capacity, queued, out, suspended] = take_numbers(take, "where a table stands")?;
    let (has_oldest, oldest) = (take.flag("whether a group is queued")?, take.i64("oldest")?);
    // What is not there is written in one way only.
    if !has_oldest && oldest != 0 {
        return Err(WireError::meaningless("oldest", oldest as u64));
    }
    let oldest = has_oldest.then_some(oldest);
    let paused = take.flag("whether it is paused")?;
    let totals =
        GroupTotals { version, target, depth, capacity, queued, out, suspended, oldest, paused };
    let count = take.count("number of sources", MOST, 68)?;
    let mut sources = Vec::with_capacity(count);
    for _ in 0..count {
        let mut source = Source { name: take.string("name of a source")?, ..Source::default() };
        for number in source.words_mut() {
            *number = take.u64("numbers of a source")?;
        }
        source.last_admitted = take.maybe("time of a source")?;
        sources.push(source);
    }
    let count = take.count("number of sources that wait", MOST, 37)?;
    let mut hunger = Vec::with_capacity(count);
    for _ in 0..count {
        let source = take.string("name of a source")?;
        let numbers = take_numbers(take, "how a source waits")?;
        let [waiting, oldest_ms, passed, longest_ms] = numbers;
        let is_starving = take.flag("whether a source starves")?;
        hunger.push(Hunger { source, waiting, oldest_ms, passed, longest_ms, is_starving });
    }
    let time = take.u64("time of a table")?;
    let (producers, consumers) = (take_sides(take)?, take_sides(take)?);
    Ok(RolloutInfo { counts, totals, sources, hunger, time, producers, consumers })
}

fn take_numbers<const N: usize>(
    take: &mut Reader<'_>,
    field: &'static str,
) -> Result<[u64; N], WireError> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = take.u64(field)?;
    }
    Ok(numbers)
}

fn take_sides(take: &mut Reader<'_>) -> Result<Sides, WireError> {
    let mut sides = Sides::default();
    for waits in &mut sides.0 {
        let [waiting, limited, nanos] = take_numbers(take, "waits")?;
        *waits = Waits { waiting, limited, nanos, reason: None };
    }
    Ok(sides)
}

fn take_counts(take: &mut Reader<'_>) -> Result<Counts, WireError> {
    let mut counts = Counts::default();
    for count in counts.words_mut() {
        *count = take.u64("counts")?;
    }
    Ok(counts)
}

//! How selectors write down an order of their slots, and how it is checked when it is read.

use super::{Damaged, Entry, Slot};

/// Appends slots, two in a word.
pub(super) fn write_slots(slots: impl Iterator<Item = Slot>, state: &mut Vec<u64>) {
    let mut first = None;
    for slot in slots {
        match first.take() {
            None => first = Some(slot),
            Some(low) => state.push(u64::from(low) | u64::from(slot) << 32),
        }
    }
    state.extend(first.map(u64::from));
}

/// The slots that were written, if they are just those of `entries`, each once.
pub(super) fn read_slots(
    state: &[u64],
    entries: &[(Slot, Entry)],
    damaged: Damaged,
) -> Result<Vec<Slot>, Damaged> {
    let odd = entries.len() % 2 == 1;
    let mut slots = Vec::with_capacity(entries.len() + 1);
    slots.extend(state.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]));
    if odd && slots.pop() != Some(0) {
        return Err(damaged);
    }
    let mut sorted = slots.clone();
    sorted.sort_unstable();
    if sorted != sorted_slots(entries, damaged)? {
        return Err(damaged);
    }
    Ok(slots)
}

/// Refuses entries in which a slot comes twice, or with a priority that no item has.
pub(super) fn check_entries(entries: &[(Slot, Entry)], damaged: Damaged) -> Result<(), Damaged> {
    sorted_slots(entries, damaged).map(|_| ())
}

fn sorted_slots(entries: &[(Slot, Entry)], damaged: Damaged) -> Result<Vec<Slot>, Damaged> {
    let mut sorted: Vec<Slot> = entries.iter().map(|(slot, _)| *slot).collect();
    sorted.sort_unstable();
    let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    let valid = |priority: f64| (0.0..f64::INFINITY).contains(&priority);
    if twice || !entries.iter().all(|(_, entry)| valid(entry.priority)) {
        return Err(damaged);
    }
    Ok(sorted)
}

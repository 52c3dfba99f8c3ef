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
    let mut left = marks(entries, damaged)?;
    if slots.len() != entries.len() {
        return Err(damaged);
    }
    for slot in &slots {
        let (word, bit) = place(*slot);
        let word = left.get_mut(word).filter(|word| **word & bit != 0).ok_or(damaged)?;
        *word &= !bit;
    }
    Ok(slots)
}

/// Refuses entries in which a slot comes twice, or with a priority that no item has.
pub(super) fn check_entries(entries: &[(Slot, Entry)], damaged: Damaged) -> Result<(), Damaged> {
    marks(entries, damaged).map(|_| ())
}

/// One more than the last slot of entries.
pub(super) fn end(entries: &[(Slot, Entry)]) -> usize {
    entries.iter().map(|(slot, _)| *slot as usize + 1).max().unwrap_or(0)
}

/// A bit for each slot of the entries. Sorting them would take longer than all the rest of a restore.
fn marks(entries: &[(Slot, Entry)], damaged: Damaged) -> Result<Vec<u64>, Damaged> {
    let mut marks = vec![0; end(entries).div_ceil(u64::BITS as usize)];
    for (slot, entry) in entries {
        let (word, bit) = place(*slot);
        if marks[word] & bit != 0 || !(0.0..f64::INFINITY).contains(&entry.priority) {
            return Err(damaged);
        }
        marks[word] |= bit;
    }
    Ok(marks)
}

/// The word of a slot, and its bit there.
fn place(slot: Slot) -> (usize, u64) {
    ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS))
}

//! How selectors write down an order of their slots, and how it is checked when it is read.

use super::{Damaged, Entries, Slot};

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
pub(super) fn read_slots<'a>(
    state: &'a [u64],
    entries: &dyn Entries,
    damaged: Damaged,
) -> Result<impl Iterator<Item = Slot> + use<'a>, Damaged> {
    let count = entries.count();
    let over = if count % 2 == 1 { state.last().map_or(0, |word| word >> 32) } else { 0 };
    if state.len() != count.div_ceil(2) || over != 0 {
        return Err(damaged);
    }
    let written = || state.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
    let mut left = marks(entries, damaged)?;
    for slot in written().take(count) {
        let (word, bit) = place(slot);
        let word = left.get_mut(word).filter(|word| **word & bit != 0).ok_or(damaged)?;
        *word &= !bit;
    }
    Ok(written().take(count))
}

/// Refuses entries in which a slot comes twice, or with a priority that no item has.
pub(super) fn check_entries(entries: &dyn Entries, damaged: Damaged) -> Result<(), Damaged> {
    marks(entries, damaged).map(|_| ())
}

/// A bit for each slot of the entries, up to the word of the last, if none comes twice, or with a priority that no item has. Sorting
/// them would take longer than all the rest of a restore.
pub(super) fn marks(entries: &dyn Entries, damaged: Damaged) -> Result<Vec<u64>, Damaged> {
    let mut marks = vec![0_u64; entries.end().div_ceil(u64::BITS as usize)];
    let mut sound = true;
    entries.each(&mut |slot, entry| {
        let (word, bit) = place(slot);
        sound &= marks[word] & bit == 0 && (0.0..f64::INFINITY).contains(&entry.priority);
        marks[word] |= bit;
    });
    let used = marks.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    marks.truncate(used);
    if sound { Ok(marks) } else { Err(damaged) }
}

/// The word of a slot, and its bit there.
fn place(slot: Slot) -> (usize, u64) {
    ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS))
}

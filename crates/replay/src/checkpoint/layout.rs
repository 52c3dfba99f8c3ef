//! The names of files, given and recognised.

/// The directory of the packs in a root.
pub(super) const PACKS: &str = "packs";
/// The manifest of a checkpoint.
pub(super) const MANIFEST: &str = "manifest.json";
/// The manifest before it is complete.
pub(super) const MANIFEST_PART: &str = "manifest.json.part";
/// The list of blobs of a checkpoint.
pub(super) const INDEX: &str = "index.bin";

const CHECKPOINT: &str = "checkpoint-";
const BIN: &str = ".bin";

/// What becomes of a directory in a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryStatus {
    /// A writer is at work, or has died.
    Partial,
    /// All there.
    Complete,
    /// To be removed.
    Old,
}

/// The name of a checkpoint's directory.
pub(super) fn checkpoint(number: u64, state: DirectoryStatus) -> String {
    let end = match state {
        DirectoryStatus::Partial => ".partial",
        DirectoryStatus::Complete => "",
        DirectoryStatus::Old => ".old",
    };
    format!("{CHECKPOINT}{number:010}{end}")
}

/// The number and state of a checkpoint's directory; `None` for other names.
pub(super) fn read_checkpoint(name: &str) -> Option<(u64, DirectoryStatus)> {
    let rest = name.strip_prefix(CHECKPOINT)?;
    let (digits, state) = if let Some(digits) = rest.strip_suffix(".partial") {
        (digits, DirectoryStatus::Partial)
    } else if let Some(digits) = rest.strip_suffix(".old") {
        (digits, DirectoryStatus::Old)
    } else {
        (rest, DirectoryStatus::Complete)
    };
    let number = digits.parse().ok()?;
    // One number has one name.
    (checkpoint(number, state) == name).then_some((number, state))
}

/// The name of a section's file.
pub(super) fn section(number: usize) -> String {
    format!("section-{number:04}{BIN}")
}

/// Whether `name` is one that [`section`] gives.
pub(super) fn is_section(name: &str) -> bool {
    let digits = name.strip_prefix("section-").and_then(|rest| rest.strip_suffix(BIN));
    digits.and_then(|digits| digits.parse().ok()).is_some_and(|number| section(number) == name)
}

/// The name of a pack's file: the `part`th of a checkpoint.
pub(super) fn pack(checkpoint: u64, part: u32) -> String {
    format!("pack-{checkpoint:010}-{part:04}{BIN}")
}

/// Of which checkpoint a pack is; `None` for other names.
pub(super) fn read_pack(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("pack-")?.strip_suffix(BIN)?;
    let (checkpoint, part) = rest.split_once('-')?;
    let (checkpoint, part) = (checkpoint.parse().ok()?, part.parse().ok()?);
    (pack(checkpoint, part) == name).then_some(checkpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_in_their_one_form_only() {
        for state in [DirectoryStatus::Partial, DirectoryStatus::Complete, DirectoryStatus::Old] {
            for number in [0, 7, 9_999_999_999, 10_000_000_000, u64::MAX] {
                let name = checkpoint(number, state);
                assert_eq!(read_checkpoint(&name), Some((number, state)), "{name}");
            }
        }
        for name in ["checkpoint-7", "checkpoint-+000000007", "checkpoint-0000000007.tmp", "notes"]
        {
            assert_eq!(read_checkpoint(name), None, "{name}");
        }
        assert!(is_section(&section(0)) && is_section(&section(12345)));
        assert_eq!(read_pack(&pack(3, 70_000)), Some(3));
        for name in ["../section-0000.bin", "section-00000.bin", "section-+001.bin", "section-.bin"]
        {
            assert!(!is_section(name), "{name}");
        }
        for name in ["pack-0000000003-0000.bin/..", "pack-3-0.bin", "pack-0000000003--001.bin"] {
            assert_eq!(read_pack(name), None, "{name}");
        }
    }
}

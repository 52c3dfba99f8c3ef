//! Stops the world before every change that writers and removal make on disk.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

use super::*;
use crate::Error;
use crate::files::faults::{self, Armed};

/// What a checkpoint was given: a section, and blobs.
type Content = (Vec<u8>, BTreeMap<u128, Vec<u8>>);

fn content(round: u8) -> Content {
    // Some blobs leave, some stay, some are new.
    let blobs = (round..round + 4).map(|id| (id.into(), vec![id; 20 * usize::from(id + 1)]));
    (vec![round; 50], blobs.collect())
}

fn write(root: &Path, (section, blobs): &Content) -> Result<u64, Error> {
    let mut writer = Writer::begin_with(root, Options { pack_bytes: 60, ..Options::default() })?;
    let mut open = writer.section("state")?;
    for (id, bytes) in blobs {
        if !writer.refer(*id)? {
            writer.blob(*id, bytes)?;
        }
        open.write_all(&section[..10]).map_err(|error| error.downcast::<Error>().unwrap())?;
    }
    open.write_all(&section[10 * blobs.len()..])
        .map_err(|error| error.downcast::<Error>().unwrap())?;
    open.finish()?;
    Ok(writer.commit()?.number)
}

fn read(path: &Path) -> Result<Content, Error> {
    let reader = Reader::open(path)?;
    reader.verify(|_| ControlFlow::Continue(()))?;
    let mut section = Vec::new();
    reader.section("state")?.read_to_end(&mut section).unwrap();
    let blobs = reader.blob_ids().into_iter().map(|id| Ok((id, reader.blob(id)?)));
    Ok((section, blobs.collect::<Result<_, Error>>()?))
}

/// Files below a directory.
fn count_files(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { count_files(&path) } else { 1 }).sum()
}

/// Writes and removes until the world stops: numbers that are known to be committed, and the least
/// number that may be left.
fn work(root: &Path, rounds: u8) -> (BTreeMap<u64, u8>, u64) {
    let (mut committed, mut least) = (BTreeMap::new(), 0);
    for round in 0..rounds {
        let Ok(number) = write(root, &content(round)) else { break };
        committed.insert(number, round);
        // A removal that does not finish may have removed.
        least = number.saturating_sub(1);
        if retain(root, 2).is_err() {
            break;
        }
    }
    (committed, least)
}

fn stop_anywhere(after: impl Fn(&Armed)) {
    const ROUNDS: u8 = 5;
    let mut stops = 0;
    loop {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        let armed = faults::arm(parent.path(), stops, ErrorKind::Other);
        let (committed, least) = work(&root, ROUNDS);
        let stopped = armed.is_stopped();
        after(&armed);
        drop(armed);
        let _never = faults::arm(parent.path(), u64::MAX, ErrorKind::Other);
        // All that was committed and not removed is there, and whatever is there can be read.
        let found = list(&root).unwrap_or_default();
        for (number, round) in committed.iter().filter(|(number, _)| **number >= least) {
            let path = &found.iter().find(|found| found.number == *number).unwrap().path;
            assert_eq!(read(path).unwrap(), content(*round), "checkpoint {number} after {stops}");
        }
        for found in found {
            // The last one may be complete although its writer could not say so.
            let round = u8::try_from(found.number - 1).unwrap();
            assert_eq!(read(&found.path).unwrap(), content(round), "{found:?} after {stops}");
        }
        // Life goes on, and nothing of the dead is left.
        let number = write(&root, &content(0)).unwrap();
        retain(&root, 1).unwrap();
        let reader = Reader::open(&root).unwrap();
        assert_eq!(reader.number(), number);
        let needed = reader.manifest().packs.len() + reader.manifest().sections.len();
        // The lock, the manifest and the index.
        assert_eq!(count_files(&root), needed + 3, "after {stops}");
        if !stopped {
            assert_eq!(committed.len(), usize::from(ROUNDS));
            assert!(stops > 100, "the world was stopped too seldom: {stops}");
            return;
        }
        stops += 1;
    }
}

#[test]
fn a_writer_killed_before_any_change_harms_no_checkpoint() {
    stop_anywhere(|_| ());
}

#[test]
fn a_loss_of_power_before_any_change_harms_no_checkpoint() {
    stop_anywhere(Armed::lose_power);
}

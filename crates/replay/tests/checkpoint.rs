//! What a checkpoint gives back, and what it refuses.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use echoic_replay::Error;
use echoic_replay::checkpoint::manifest::seal;
use echoic_replay::checkpoint::{Options, Reader, Retained, Summary, Writer, list, retain};
use proptest::prelude::*;
use tempfile::tempdir;

type Blobs = BTreeMap<u128, Vec<u8>>;

/// Packs as small as these make many of them.
fn small_packs(pack_bytes: u64) -> Options {
    Options { pack_bytes, created: Some(UNIX_EPOCH + Duration::from_millis(1234)) }
}

fn write(root: &Path, options: Options, section: &[u8], blobs: &Blobs) -> Result<Summary, Error> {
    let mut writer = Writer::begin_with(root, options)?;
    let mut state = writer.section("state")?;
    state.write_all(section).unwrap();
    state.finish()?;
    for (id, bytes) in blobs {
        writer.blob(*id, bytes)?;
    }
    writer.commit()
}

fn blobs(ids: std::ops::Range<u8>) -> Blobs {
    ids.map(|id| (id.into(), vec![id; usize::from(id) + 1])).collect()
}

fn section(reader: &Reader, name: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    match reader.section(name)?.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.downcast().unwrap()),
    }
}

/// All that a checkpoint has, verified.
fn read(path: &Path) -> Result<(Vec<u8>, Blobs), Error> {
    let reader = Reader::open(path)?;
    reader.verify(|_| ControlFlow::Continue(()))?;
    let blobs = reader.blob_ids().into_iter().map(|id| Ok((id, reader.blob(id)?)));
    Ok((section(&reader, "state")?, blobs.collect::<Result<_, Error>>()?))
}

/// Every file below a directory.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Replaces text in the manifest of the newest checkpoint, with a good checksum.
fn forge(root: &Path, from: &str, to: &str) {
    let path = list(root).unwrap().pop().unwrap().path.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find("\"manifest\": ").unwrap() + 12;
    let inner = text[start..].trim_end().strip_suffix('}').unwrap().trim_end();
    assert!(inner.contains(from), "{inner}");
    fs::write(path, seal(&inner.replacen(from, to, 1))).unwrap();
}

#[test]
fn sections_of_any_length_come_back() {
    let root = tempdir().unwrap();
    let mut writer = Writer::begin(root.path()).unwrap();
    writer.describe("step", "17");
    // None, less than a block, blocks to the byte, and more.
    let lengths = [0, 1, 256 << 10, (256 << 10) + 1, 1_000_000];
    let bytes = |len: usize| (0..len).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>();
    let mut open: Vec<_> =
        lengths.iter().map(|len| writer.section(&format!("{len} bytes")).unwrap()).collect();
    // At the same time, in pieces.
    for (len, section) in lengths.iter().zip(&mut open) {
        for piece in bytes(*len).chunks(70_000) {
            section.write_all(piece).unwrap();
        }
    }
    for (len, section) in lengths.iter().zip(open) {
        assert_eq!(section.finish().unwrap(), *len as u64);
    }
    let path = writer.commit().unwrap().path;
    for path in [root.path(), &path] {
        let reader = Reader::open(path).unwrap();
        assert_eq!(reader.metadata()["step"], "17");
        assert_eq!(reader.sections().count(), lengths.len());
        for len in lengths {
            assert!(section(&reader, &format!("{len} bytes")).unwrap() == bytes(len), "{len}");
        }
        let error = reader.section("2 bytes").unwrap_err();
        assert!(error.to_string().ends_with("has no section \"2 bytes\""), "{error}");
    }
}

/// Small blobs that follow each other are read together, large ones alone.
#[test]
fn blobs_of_any_length_come_back_in_any_order() {
    let root = tempdir().unwrap();
    let sizes = [0, 1, 1000, 262_112, 262_113, 5, 900_000, 40, 262_144, 70_000, 70_000, 70_000, 0];
    let blobs: Blobs = (0..).zip(sizes).map(|(id, size)| (id, vec![id as u8; size])).collect();
    write(root.path(), Options::default(), b"", &blobs).unwrap();
    let reader = Reader::open(root.path()).unwrap();
    let ids = || 0..sizes.len() as u128;
    let jumping = ids().map(|id| id * 5 % sizes.len() as u128);
    for id in ids().chain(ids().rev()).chain(ids()).chain(jumping) {
        assert!(reader.blob(id).unwrap() == blobs[&id], "blob {id}");
    }
}

#[test]
fn blobs_that_are_there_are_not_written_again() {
    let root = tempdir().unwrap();
    let large = |ids: std::ops::Range<u8>| -> Blobs {
        ids.map(|id| (id.into(), vec![id; 10_000])).collect()
    };
    let first = write(root.path(), Options::default(), b"one", &large(0..10)).unwrap();
    assert_eq!((first.new_blobs, first.blobs), (10, 10));
    assert!(first.written_bytes > 100_000);
    let second = write(root.path(), Options::default(), b"two", &large(3..12)).unwrap();
    assert_eq!((second.new_blobs, second.blobs), (2, 9));
    assert!((20_000..25_000).contains(&second.written_bytes), "{}", second.written_bytes);
    // Also by a reference alone.
    let mut writer = Writer::begin(root.path()).unwrap();
    assert_eq!(writer.base(), Some(second.number));
    assert!(writer.refer(11).unwrap());
    assert!(!writer.refer(2).unwrap(), "the checkpoint before has it no more");
    let third = writer.commit().unwrap();
    assert_eq!((third.new_blobs, third.blobs), (0, 1));
    assert_eq!(read(&first.path).unwrap(), (b"one".to_vec(), large(0..10)));
    assert_eq!(read(&second.path).unwrap(), (b"two".to_vec(), large(3..12)));
    let reader = Reader::open(root.path()).unwrap();
    assert_eq!(reader.blob_ids(), [11]);
    assert!(reader.has_blob(11) && !reader.has_blob(10));
    assert_eq!((reader.blob_bytes(11), reader.blob(11).unwrap()), (Some(10_000), vec![11; 10_000]));
    assert!(matches!(reader.blob(10), Err(Error::Unfit(what)) if what.contains("has no blob")));
}

#[test]
fn one_id_means_one_content() {
    let root = tempdir().unwrap();
    let mut writer = Writer::begin(root.path()).unwrap();
    assert!(writer.blob(7, b"one").unwrap());
    assert!(!writer.blob(7, b"one").unwrap());
    assert!(writer.blob(7, b"two").unwrap_err().to_string().starts_with("blob 00000"));
    writer.commit().unwrap();
    let mut writer = Writer::begin(root.path()).unwrap();
    let error = writer.blob(7, b"three").unwrap_err();
    assert!(error.to_string().contains("3 bytes"), "{error}");
    // The error is the caller's; the checkpoint can go on.
    writer.blob(8, b"three").unwrap();
    assert_eq!(writer.commit().unwrap().blobs, 1);
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let root = tempdir().unwrap();
    write(root.path(), Options::default(), b"state", &blobs(0..3)).unwrap();
    let before = files(root.path());
    let mut writer = Writer::begin(root.path()).unwrap();
    writer.blob(99, &[9; 1000]).unwrap();
    let mut section = writer.section("state").unwrap();
    section.write_all(&[1; 1000]).unwrap();
    let twice = writer.section("state").unwrap_err();
    assert_eq!(twice.to_string(), "the section \"state\" is there already");
    drop(writer);
    section.finish().unwrap();
    assert_eq!(files(root.path()), before);
    assert_eq!(list(root.path()).unwrap().len(), 1);
    // A section that is not finished is not committed by mistake.
    let mut writer = Writer::begin(root.path()).unwrap();
    let section = writer.section("late").unwrap();
    let error = writer.commit().unwrap_err();
    assert_eq!(error.to_string(), "the section \"late\" was begun and not finished");
    drop(section);
    assert_eq!(files(root.path()), before);
}

#[test]
fn one_writes_at_a_time() {
    let root = tempdir().unwrap();
    let writer = Writer::begin(root.path()).unwrap();
    for error in [Writer::begin(root.path()).unwrap_err(), retain(root.path(), 1).unwrap_err()] {
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    }
    drop(writer);
    let empty = Reader::open(root.path()).unwrap_err();
    assert!(empty.to_string().ends_with("has no complete checkpoint"), "{empty}");
    assert_eq!(Writer::begin(root.path()).unwrap().number(), 1);
}

#[test]
fn other_directories_are_refused_and_not_touched() {
    let root = tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), "years of work").unwrap();
    let errors = [
        Writer::begin(root.path()).unwrap_err(),
        Reader::open(root.path()).unwrap_err(),
        list(root.path()).unwrap_err(),
        retain(root.path(), 1).unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(&error, Error::Foreign { found, .. } if found.contains("thesis")),
            "{error}"
        );
    }
    assert_eq!(files(root.path()).len(), 1);
    let error = Reader::open(root.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    fs::write(root.path().join("manifest.json"), "{\"name\": \"a web page\"}").unwrap();
    let error = Reader::open(root.path()).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

#[test]
fn old_checkpoints_go_and_what_others_need_stays() {
    let root = tempdir().unwrap();
    // Each has half of the blobs of the one before, so that their packs are shared.
    for round in 0..4 {
        write(root.path(), small_packs(50), &[round], &blobs(round * 4..round * 4 + 8)).unwrap();
    }
    let note = root.path().join("packs/note.txt");
    let mine = list(root.path()).unwrap()[0].path.join("mine.bin");
    let strange = root.path().join("checkpoint-00");
    for path in [&note, &mine, &strange] {
        fs::write(path, "somebody's").unwrap();
    }
    let done = retain(root.path(), 2).unwrap();
    assert_eq!(done.kept, [3, 4]);
    assert!(done.removed.iter().all(|path| !path.exists()));
    assert!(done.removed.iter().any(|path| path.parent().unwrap().ends_with("packs")));
    for round in 2..4_u8 {
        let path = &list(root.path()).unwrap()[usize::from(round) - 2].path;
        assert_eq!(read(path).unwrap(), (vec![round], blobs(round * 4..round * 4 + 8)));
    }
    // Again, and at least one stays.
    assert_eq!(retain(root.path(), 2).unwrap().removed, Vec::<PathBuf>::new());
    assert_eq!(retain(root.path(), 0).unwrap().kept, [4]);
    let reader = Reader::open(root.path()).unwrap();
    let needed = reader.manifest().packs.iter().map(|pack| pack.file.clone());
    let mut packs: Vec<_> = needed.chain(["note.txt".into()]).collect();
    packs.sort();
    let found = files(&root.path().join("packs"));
    let names = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), packs);
    for path in [note, root.path().join("checkpoint-0000000001.old/mine.bin"), strange] {
        assert_eq!(fs::read_to_string(path).unwrap(), "somebody's");
    }
}

#[test]
fn a_checkpoint_that_is_read_is_not_removed() {
    let root = tempdir().unwrap();
    for round in 0..3 {
        write(root.path(), small_packs(50), &[round], &blobs(round * 9..round * 9 + 9)).unwrap();
    }
    let first = Reader::open(&list(root.path()).unwrap()[0].path).unwrap();
    let done = retain(root.path(), 1).unwrap();
    assert_eq!((done.kept, done.held), (vec![1, 3], vec![1]));
    assert_eq!(section(&first, "state").unwrap(), [0]);
    assert_eq!(first.blob(8).unwrap(), [8; 9]);
    drop(first);
    let Retained { kept, held, .. } = retain(root.path(), 1).unwrap();
    assert_eq!((kept, held), (vec![3], vec![]));
}

#[test]
fn nothing_is_removed_while_a_manifest_can_not_be_read() {
    let root = tempdir().unwrap();
    for round in 0..3 {
        write(root.path(), small_packs(50), &[round], &blobs(0..9)).unwrap();
    }
    forge(root.path(), "\"version\": 2", "\"version\": 3");
    let before = files(root.path());
    assert!(matches!(retain(root.path(), 1), Err(Error::Format { expected: 2, got: 3, .. })));
    assert_eq!(files(root.path()), before);
    // A new one is written all the same, without help of the one that can't be read.
    let mut writer = Writer::begin(root.path()).unwrap();
    assert_eq!((writer.base(), writer.number()), (None, 4));
    assert!(matches!(writer.unreadable(), [Error::Format { .. }]));
    assert!(!writer.refer(0).unwrap());
    writer.blob(0, b"again").unwrap();
    writer.commit().unwrap();
    assert_eq!(Reader::open(root.path()).unwrap().blob(0).unwrap(), b"again");
}

#[test]
fn a_pack_that_is_mostly_waste_is_left() {
    let root = tempdir().unwrap();
    let options = small_packs(1 << 20);
    let large: Blobs = (0..10_u8).map(|id| (id.into(), vec![id; 1000])).collect();
    let few: Blobs = large.clone().into_iter().take(3).collect();
    write(root.path(), options, b"", &large).unwrap();
    // The waste is known when the next one is written.
    write(root.path(), options, b"", &few).unwrap();
    let copied = write(root.path(), options, b"", &few).unwrap();
    assert_eq!(copied.new_blobs, 3);
    let mut writer = Writer::begin_with(root.path(), options).unwrap();
    for id in few.keys() {
        assert!(writer.refer(*id).unwrap());
    }
    assert_eq!(writer.commit().unwrap().new_blobs, 0);
    retain(root.path(), 1).unwrap();
    let sizes =
        files(&root.path().join("packs")).into_iter().map(|path| path.metadata().unwrap().len());
    assert_eq!(sizes.collect::<Vec<_>>(), [16 + 3 * 1032]);
}

#[test]
fn many_small_checkpoints_do_not_make_many_packs() {
    let root = tempdir().unwrap();
    for round in 0..120 {
        write(root.path(), Options::default(), b"", &blobs(0..round)).unwrap();
        retain(root.path(), 1).unwrap();
        let packs = Reader::open(root.path()).unwrap().manifest().packs.len();
        assert!(packs <= 34, "{packs} packs after {round}");
    }
    assert_eq!(read(root.path()).unwrap().1, blobs(0..119));
}

#[test]
fn a_damaged_blob_is_written_again_when_its_pack_is_left() {
    let root = tempdir().unwrap();
    let options = small_packs(1 << 20);
    write(root.path(), options, b"", &blobs(0..10)).unwrap();
    write(root.path(), options, b"", &blobs(0..2)).unwrap();
    let pack = &files(&root.path().join("packs"))[0];
    let mut bytes = fs::read(pack).unwrap();
    bytes[16 + 32] ^= 1;
    fs::write(pack, bytes).unwrap();
    let mut writer = Writer::begin_with(root.path(), options).unwrap();
    assert!(!writer.refer(0).unwrap());
    assert!(writer.refer(1).unwrap());
    assert!(writer.blob(0, &[0]).unwrap());
    writer.section("state").unwrap().finish().unwrap();
    writer.commit().unwrap();
    assert_eq!(read(root.path()).unwrap().1, blobs(0..2));
}

/// Runs `look` with each file of a checkpoint changed by each of `changes`, and says which file it was.
fn with_each_file_changed(
    changes: impl Fn(&[u8]) -> Vec<Option<Vec<u8>>>,
    look: impl Fn(&Path, &Path, Result<(Vec<u8>, Blobs), Error>),
) {
    let root = tempdir().unwrap();
    write(root.path(), small_packs(60), b"the state", &blobs(0..5)).unwrap();
    for path in
        files(root.path()).into_iter().filter(|path| !path.ends_with("echoic-checkpoints.lock"))
    {
        let good = fs::read(&path).unwrap();
        for change in changes(&good) {
            match change {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            look(root.path(), &path, read(root.path()));
        }
        fs::write(&path, good).unwrap();
    }
    assert_eq!(read(root.path()).unwrap(), (b"the state".to_vec(), blobs(0..5)));
}

#[test]
fn every_wrong_byte_is_found_and_the_file_is_named() {
    let flip = |good: &[u8]| {
        let flipped = (0..good.len()).map(|at| {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1 << (at % 8);
            Some(bytes)
        });
        flipped.collect()
    };
    with_each_file_changed(flip, |_, path, result| match result {
        Err(error) => assert!(error.to_string().contains(path.to_str().unwrap()), "{error}"),
        // White space, and digits in upper case, around what the checksum of a manifest covers.
        Ok((section, found)) => {
            assert!(path.ends_with("manifest.json"), "{path:?}");
            assert_eq!((&section[..], found), (&b"the state"[..], blobs(0..5)));
        }
    });
}

#[test]
fn every_file_that_is_missing_or_has_another_length_is_named() {
    let shorten = |good: &[u8]| {
        let longer = Some([good, b"?"].concat());
        (0..good.len()).map(|len| Some(good[..len].to_vec())).chain([longer, None]).collect()
    };
    with_each_file_changed(shorten, |root, path, result| match result {
        Err(Error::Missing { path: found }) => assert_eq!(found, path),
        Err(Error::Unfit(what)) => {
            let (path, got) = (path.display(), path.metadata().unwrap().len());
            let expected = format!("{path} has {got} bytes, the manifest says ");
            assert!(what.starts_with(&expected), "{what}");
            assert_ne!(what, format!("{expected}{got}"));
        }
        Err(error @ Error::Foreign { .. }) => {
            let manifest = path.ends_with("manifest.json");
            assert!(manifest && error.to_string().contains(root.to_str().unwrap()), "{error}");
        }
        // The end of a line behind a manifest.
        Ok(_) => assert!(path.ends_with("manifest.json")),
        other => panic!("{path:?}: {other:?}"),
    });
}

#[test]
fn names_in_a_manifest_lead_nowhere_else() {
    let parent = tempdir().unwrap();
    let secret = parent.path().join("secret");
    fs::write(&secret, [0; 58]).unwrap();
    let secret = secret.to_str().unwrap();
    for (from, to) in [
        ("section-0000.bin", secret),
        ("section-0000.bin", "../../secret"),
        ("section-0000.bin", "section-0000.bin/../../../secret"),
        ("section-0000.bin", "manifest.json"),
        ("section-0000.bin", ""),
        ("pack-0000000001-0000.bin", "../secret"),
        ("pack-0000000001-0000.bin", secret),
        ("pack-0000000001-0000.bin", "pack-0000000001-0001.bin"),
        ("\"file\": \"index.bin\"", "\"file\": \"section-0000.bin\""),
    ] {
        let root = parent.path().join("root");
        write(&root, small_packs(60), b"state", &blobs(0..5)).unwrap();
        forge(&root, from, to);
        let error = read(&root).unwrap_err();
        assert!(matches!(error, Error::Foreign { .. }), "{from} as {to}: {error}");
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let parent = tempdir().unwrap();
    let root = parent.path().join("root");
    write(&root, small_packs(60), b"state", &blobs(0..5)).unwrap();
    for path in files(&root).into_iter().filter(|path| !path.ends_with("echoic-checkpoints.lock")) {
        let moved = parent.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        let error = read(&root).unwrap_err();
        assert!(matches!(error, Error::File(_)), "{path:?}: {error}");
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
    }
    read(&root).unwrap();
}

#[test]
fn a_manifest_of_another_format_says_so() {
    for other in [1, 3] {
        let root = tempdir().unwrap();
        write(root.path(), Options::default(), b"", &blobs(0..1)).unwrap();
        let version = format!("\"version\": {other}, \"novelty\": {{}}");
        forge(root.path(), "\"version\": 2", &version);
        let error = Reader::open(root.path()).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        let what = format!("manifest.json has format {other}; this release reads format 2");
        assert!(error.to_string().ends_with(&what), "{error}");
    }
}

#[test]
fn a_verification_says_how_far_it_is_and_can_be_ended() {
    let root = tempdir().unwrap();
    write(root.path(), small_packs(60), &[7; 700_000], &blobs(0..5)).unwrap();
    let reader = Reader::open(root.path()).unwrap();
    let (mut last, mut calls, mut named) = ((0, 0), 0, Vec::new());
    reader
        .verify(|progress| {
            assert!(progress.done >= last.0 && progress.done <= progress.total);
            last = (progress.done, progress.total);
            named.push(progress.file.file_name().unwrap().to_owned());
            calls += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(last.0, last.1);
    named.dedup();
    assert_eq!(named.len(), 2 + reader.manifest().packs.len());
    for limit in 0..calls {
        let mut left = limit;
        let ended = reader.verify(|_| {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(Error::Interrupted)), "{limit}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Against plain maps: checkpoints of any blobs, written by reference or by content, and removed.
    #[test]
    fn a_root_is_a_list_of_maps(
        rounds in prop::collection::vec(
            (prop::collection::btree_map(0..40_u8, any::<bool>(), 0..30), 1..5_usize), 1..10),
        pack_bytes in 1..5000_u64,
    ) {
        let root = tempdir().unwrap();
        let content = |id: u8| vec![id; usize::from(id) * 20];
        let mut model: Vec<(u64, Blobs)> = Vec::new();
        for (ids, keep) in rounds {
            let mut writer = Writer::begin_with(root.path(), small_packs(pack_bytes)).unwrap();
            let before = model.last().map_or_else(Blobs::new, |(_, blobs)| blobs.clone());
            prop_assert_eq!(writer.base(), model.last().map(|(number, _)| *number));
            let blobs: Blobs = ids.keys().map(|id| (u128::from(*id), content(*id))).collect();
            for (id, by_reference) in &ids {
                let (id, bytes) = (u128::from(*id), content(*id));
                let known = before.contains_key(&id);
                if *by_reference {
                    prop_assert_eq!(writer.refer(id).unwrap(), known);
                }
                let written = writer.blob(id, &bytes).unwrap();
                prop_assert!(written || known);
            }
            writer.section("state").unwrap().finish().unwrap();
            model.push((writer.commit().unwrap().number, blobs));
            let kept = retain(root.path(), keep).unwrap().kept;
            model.drain(..model.len().saturating_sub(keep));
            prop_assert_eq!(kept, model.iter().map(|(number, _)| *number).collect::<Vec<_>>());
            for (found, (number, blobs)) in list(root.path()).unwrap().iter().zip(&model) {
                prop_assert_eq!(found.number, *number);
                let (_, read) = read(&found.path).unwrap();
                prop_assert_eq!(&read, blobs);
            }
        }
    }
}

//! Tables saved and loaded: what comes back, what is refused, and what goes on meanwhile.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use echoic_replay::Error;
use echoic_replay::checkpoint::{Reader, Writer};
use echoic_replay::chunk::{Chunk, ColumnKind, Slice};
use echoic_replay::codec::{self, Encode};
use echoic_replay::encoding::{Encoding, Policy};
use echoic_replay::selectors::SelectorKind;
use echoic_replay::spec::ANY_LENGTH;
use echoic_replay::table::saved::{Head, load, open, save};
use echoic_replay::table::{Form, Obstacle, Table, TableConfig, Tables};
use echoic_replay::trajectory::{Column, Signature, Trajectory};
use echoic_replay::{Dtype, Episode, Leaf, Spec};
use tempfile::TempDir;

const ROW: usize = 64;

fn config(name: &str, form: Form, sampler: SelectorKind) -> TableConfig {
    TableConfig { structure: "0".into(), sampler, ..TableConfig::new(name, form, 500) }
}

fn rows() -> Form {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![ROW / 8] };
    Form::Rows(Spec::new(vec![leaf]).unwrap())
}

fn sequences() -> Form {
    let leaf = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![ANY_LENGTH] };
    Form::Trajectories(Some(Spec::of_trajectories(vec![leaf]).unwrap()))
}

fn tables() -> Tables {
    let prioritized = SelectorKind::Prioritized { exponent: 0.5 };
    let tables = [
        config("rows", rows(), prioritized),
        config("epoch", rows(), SelectorKind::Epoch),
        config("trajectories", sequences(), SelectorKind::Uniform),
    ];
    let tables = tables.into_iter().map(|config| Arc::new(Table::new(config).unwrap()));
    Tables::new(tables.collect()).unwrap()
}

/// A row that says its number eight times, and has it as its priority.
fn put(table: &Arc<Table>, number: u64) -> bool {
    let mut insertion = match table.try_reserve(1) {
        Ok(insertion) => insertion,
        Err(Obstacle::Blocked(_)) => return false,
        Err(Obstacle::Failed(error)) => panic!("{error}"),
    };
    for word in insertion.row_mut(0).chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    insertion.commit(&[number as f64], Some(number)).unwrap();
    true
}

/// Overlapping items of 4 of 8 steps, whose values are the step's number.
fn put_trajectories(table: &Arc<Table>, chunks: u64) {
    let kind = Arc::new(ColumnKind { dtype: Dtype::UInt(8), shape: vec![] });
    let column = Column { path: "x".into(), kind: (*kind).clone(), squeezed: false };
    let signature = Arc::new(Signature { structure: "0".into(), columns: vec![column] });
    for number in 0..chunks {
        let steps = number * 8..number * 8 + 8;
        let bytes: Vec<u8> = steps.flat_map(u64::to_le_bytes).collect();
        // Encoded chunks and others are saved alike.
        let policy = if number.is_multiple_of(2) {
            Policy::Never
        } else {
            Policy::Always(Encoding::DeltaLz4)
        };
        let chunk = Chunk::encode(Arc::clone(&kind), 8, bytes.into(), policy).unwrap();
        assert_eq!(chunk.encoding() == Encoding::Raw, policy == Policy::Never);
        // Three chunks are an episode.
        let chunk = Arc::new(chunk.of_episode(Episode::from_number(1 + number / 3)));
        for offset in 0..4 {
            let slice = Slice { chunk: Arc::clone(&chunk), offset, len: 4 };
            let trajectory = Trajectory::new(Arc::clone(&signature), vec![vec![slice]]).unwrap();
            table.try_insert(&trajectory, 1.0, None).unwrap();
        }
    }
}

fn draw(table: &Arc<Table>, count: usize) -> (Vec<u64>, Vec<f64>, Vec<u8>) {
    let sampled = table.try_sample(count).unwrap();
    let bytes = match sampled.trajectories() {
        [] => ROW,
        _ => 32,
    };
    let mut column = vec![0; bytes * count];
    sampled.gather(&mut [&mut column]);
    (sampled.infos().keys.clone(), sampled.infos().probabilities.clone(), column)
}

#[test]
fn a_loaded_table_goes_on_as_the_saved_one_would_have() {
    let root = tempfile::tempdir().unwrap();
    let first = tables();
    for number in 0..700 {
        assert!(put(&first.all()[0], number));
        assert!(put(&first.all()[1], number));
    }
    put_trajectories(&first.all()[2], 20);
    let keys = first.all()[2].items().keys;
    first.all()[2].delete(&keys[..20]);
    first.all().iter().for_each(|table| drop(draw(table, 40)));
    let some = draw(&first.all()[0], 3).0;
    first.all()[0].update_priorities(&some, &[1000.0, 0.0, 5.0]).unwrap();
    first.all()[0].delete(&some[..1]);
    save(&first, root.path(), &[("why", "test")]).unwrap();

    let looked_at = open(root.path()).unwrap();
    for (one, other) in first.all().iter().zip(looked_at.all()) {
        assert_eq!(one.items().keys, other.items().keys);
        let keys = &one.items().keys[3..9];
        let (one, other) = (one.get(keys), other.get(keys));
        let mut bytes = [[0; 6 * ROW]; 2];
        let len = if one.trajectories().is_empty() { 6 * ROW } else { 6 * 32 };
        one.gather(&mut [&mut bytes[0][..len]]);
        other.gather(&mut [&mut bytes[1][..len]]);
        assert!(bytes[0] == bytes[1] && one.infos().priorities == other.infos().priorities);
    }

    let second = tables();
    put(&second.all()[0], 9999);
    let loaded = load(&second, root.path()).unwrap();
    assert_eq!(loaded.items[1], ("epoch".to_owned(), 500));
    let info = second.all()[2].info();
    assert_eq!((info.episodes, info.deleted_episodes), (6, 1));
    for (one, other) in first.all().iter().zip(second.all()) {
        assert_eq!(one.info(), other.info());
        for number in 0..20 {
            assert!(draw(one, 50) == draw(other, 50), "{} {number}", one.config().name);
            if one.config().name != "trajectories" {
                assert!(put(one, 1000 + number) && put(other, 1000 + number));
            }
        }
    }
}

#[test]
fn chunks_that_were_saved_are_not_saved_again() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables();
    put_trajectories(&tables.all()[2], 50);
    let first = save(&tables, root.path(), &[]).unwrap();
    put_trajectories(&tables.all()[2], 1);
    let second = save(&tables, root.path(), &[]).unwrap();
    assert_eq!((first.new_blobs, second.new_blobs), (50, 1));
    // What was loaded is known to the files too.
    let again = self::tables();
    load(&again, root.path()).unwrap();
    assert_eq!(save(&again, root.path(), &[]).unwrap().new_blobs, 0);
}

#[test]
fn a_checkpoint_of_other_tables_is_refused_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables();
    (0..300).for_each(|number| assert!(put(&saved.all()[0], number)));
    save(&saved, root.path(), &[]).unwrap();
    let wide = Leaf { path: "x".into(), dtype: Dtype::UInt(8), shape: vec![9] };
    let wide = Form::Rows(Spec::new(vec![wide]).unwrap());
    let prioritized = SelectorKind::Prioritized { exponent: 0.5 };
    let small = TableConfig { capacity: 200, ..config("rows", rows(), prioritized) };
    for (config, text) in [
        (config("other", rows(), prioritized), "there is no table \"rows\""),
        (config("rows", wide, prioritized), "rows of x: uint64[9]"),
        (config("rows", rows(), SelectorKind::Uniform), "its sampler is uniform"),
        (small, "the checkpoint has 300 items, capacity is 200"),
    ] {
        let table = Arc::new(Table::new(config).unwrap());
        if table.config().form == rows() {
            assert!(put(&table, 1));
        }
        let before = table.info();
        let tables = Tables::new(vec![Arc::clone(&table)]).unwrap();
        let error = load(&tables, root.path()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(table.info(), before);
    }
}

/// Every byte of every file, changed: either nothing of it is noticed because it does not matter, or the
/// load is refused; never a wrong value or a panic.
#[test]
fn damaged_files_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables();
    (0..5).for_each(|number| assert!(put(&saved.all()[0], number)));
    put_trajectories(&saved.all()[2], 2);
    save(&saved, root.path(), &[]).unwrap();
    let expected = draw(&saved.all()[2], 9);
    let mut files = Vec::new();
    collect(root.path(), &mut files);
    for file in files {
        let good = std::fs::read(&file).unwrap();
        for at in (0..good.len()).step_by(good.len().div_ceil(60).max(1)) {
            let mut bad = good.clone();
            bad[at] ^= 0x55;
            std::fs::write(&file, &bad).unwrap();
            let fresh = tables();
            match load(&fresh, root.path()) {
                Ok(_) => assert_eq!(draw(&fresh.all()[2], 9), expected, "{file:?} at {at}"),
                Err(_) => assert_eq!(fresh.all()[0].info().size, 0, "{file:?} at {at}"),
            }
        }
        std::fs::write(&file, &good).unwrap();
    }
    load(&tables(), root.path()).unwrap();
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

#[test]
fn what_is_saved_under_load_is_one_moment() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += u64::from(put(&tables.all()[0], number));
            }
            number
        });
        let reader = scope.spawn(|| {
            let mut batches = 0;
            while !stop.load(Ordering::Relaxed) {
                if tables.all()[0].can_sample(10) {
                    let (_, _, bytes) = draw(&tables.all()[0], 10);
                    let whole = |row: &[u8]| row.chunks_exact(8).all(|word| word == &row[..8]);
                    assert!(bytes.chunks_exact(ROW).all(whole));
                    batches += 1;
                }
            }
            batches
        });
        for _ in 0..10 {
            save(&tables, root.path(), &[]).unwrap();
            let copy = self::tables();
            load(&copy, root.path()).unwrap();
            let table = &copy.all()[0];
            let (info, size) = (table.info(), table.info().size as u64);
            if size == 0 {
                continue;
            }
            // The items are the last ones inserted before that moment, each with its own bytes.
            let oldest = info.counts.inserts - size;
            let sampled = table.try_sample(2000).unwrap();
            let mut column = vec![0; ROW * 2000];
            sampled.gather(&mut [&mut column]);
            for (index, row) in column.chunks_exact(ROW).enumerate() {
                let number = sampled.infos().versions[index];
                assert!((oldest..info.counts.inserts).contains(&number));
                assert!(row.chunks_exact(8).all(|word| word == number.to_le_bytes()));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 1000 && reader.join().unwrap() > 10);
    });
}

/// Each item is four steps that begin with its number; all that a checkpoint has follow each other.
#[test]
fn trajectories_that_go_while_they_are_saved_are_in_it() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables();
    let table = &tables.all()[2];
    put_trajectories(table, 200);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                put_trajectories(table, 300);
            }
        });
        for _ in 0..5 {
            save(&tables, root.path(), &[]).unwrap();
            let copy = self::tables();
            load(&copy, root.path()).unwrap();
            let keys = copy.all()[2].items().keys;
            let mut column = vec![0; 32 * keys.len()];
            copy.all()[2].get(&keys).gather(&mut [&mut column]);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let mut steps: Vec<u64> =
                column.chunks_exact(32).map(|item| word(&item[..8])).collect();
            assert_eq!(steps.len(), 500);
            // Numbers go from 0 to 2399 and begin again; items start at the first four steps of eight.
            let mut items: Vec<u64> = steps.drain(..).map(|step| step / 8 * 4 + step % 8).collect();
            items.sort_unstable();
            let gaps = items.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            assert!(gaps <= 1, "one run of items, which may begin again: {items:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_insert_under_way_does_not_outlive_a_load() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables();
    assert!(put(&tables.all()[0], 1));
    save(&tables, root.path(), &[]).unwrap();
    let table = &tables.all()[0];
    let dropped = table.try_reserve(2).unwrap();
    let mut committed = table.try_reserve(1).unwrap();
    committed.row_mut(0).fill(7);
    load(&tables, root.path()).unwrap();
    assert!(committed.commit(&[1.0], None).unwrap().is_empty());
    drop(dropped);
    assert_eq!(table.info().size, 1);
    assert!(put(table, 2));
    assert!(matches!(load(&tables, root.path().join("nothing")), Err(Error::File(_))));
}

/// A checkpoint whose sections are changed so, by their names.
fn rewritten(from: &Path, change: impl Fn(&str, &mut Vec<u8>)) -> TempDir {
    let (reader, root) = (Reader::open(from).unwrap(), tempfile::tempdir().unwrap());
    let mut writer = Writer::begin(root.path()).unwrap();
    for name in reader.sections() {
        let mut bytes = Vec::new();
        reader.section(name).unwrap().read_to_end(&mut bytes).unwrap();
        change(name, &mut bytes);
        let mut section = writer.section(name).unwrap();
        section.write_all(&bytes).unwrap();
        section.finish().unwrap();
    }
    for id in reader.blob_ids() {
        writer.blob(id, &reader.blob(id).unwrap()).unwrap();
    }
    writer.commit().unwrap();
    root
}

/// As [`rewritten`], with other heads of tables.
fn with_heads(from: &Path, change: impl Fn(&mut Head)) -> TempDir {
    rewritten(from, |name, bytes| {
        if name.ends_with(".head") {
            // Behind the number of the format.
            let mut head = codec::Reader::new(&bytes[4..]).get("head").unwrap();
            change(&mut head);
            bytes.truncate(4);
            head.encode(bytes);
        }
    })
}

/// Rows 0 to 2 and 4 have items; the checkpoint says otherwise, with good checksums.
#[test]
fn runs_and_fields_that_lie_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables();
    let table = &saved.all()[0];
    (0..5).for_each(|number| assert!(put(table, number)));
    table.delete(&table.items().keys[3..4]);
    save(&saved, root.path(), &[]).unwrap();
    let lie = |section: &str, lie: &dyn Fn(&mut Vec<u8>)| {
        let lies = rewritten(root.path(), |name, bytes| {
            if name == section {
                lie(bytes);
            }
        });
        let fresh = tables();
        let error = load(&fresh, lies.path()).unwrap_err().to_string();
        assert_eq!(fresh.all()[0].info().size, 0);
        error
    };
    let last = u32::MAX;
    for (runs, what) in [
        (&[[0, 3], [4, 1]][..], ""),
        (&[[4, 1], [0, 3]], ""),
        (&[[0, 2], [2, 1], [4, 1]], ""),
        (&[[0, 3], [2, 1]], "its rows are not those of its items"),
        (&[[0, 4]], "its rows are not those of its items"),
        (&[[0, 3], [3, 1]], "its rows are not those of its items"),
        (&[[0, 3]], "a section has bytes behind its end"),
        (&[[0, 3], [4, 2]], "unexpected end of file"),
        (&[[0, 3], [4, 0]], "there are no 0 rows from 4 on"),
        (&[[0, 3], [last, 1]], "there are no 1 rows from 4294967295 on"),
        (&[[0, last]], "there are no 4294967295 rows from 0 on"),
    ] {
        let bytes: Vec<u8> =
            runs.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        let change = |saved: &mut Vec<u8>| *saved = bytes.clone();
        if what.is_empty() {
            let good = rewritten(root.path(), |name, saved| {
                if name == "table-0.runs" {
                    change(saved);
                }
            });
            load(&tables(), good.path()).unwrap();
        } else {
            let error = lie("table-0.runs", &change);
            assert!(error.contains(what), "{runs:?}: {error}");
        }
    }
    let runs = lie("table-0.runs", &|bytes| bytes.extend([0; 3]));
    assert!(runs.contains("a section has bytes behind its end"), "{runs}");
    // The first field is five different priorities.
    for (at, byte, what) in [
        (0, 2, "what is known of items has form 2"),
        (0, 1, "the description of an item is invalid"),
        (1 + 7, 0xff, "the description of an item is invalid"),
    ] {
        let error = lie("table-0.items", &|bytes| bytes[at] = byte);
        assert!(error.contains(what), "{at}: {error}");
    }
    let longer = lie("table-0.items", &|bytes| bytes.push(0));
    assert!(longer.contains("a section has bytes behind its end"), "{longer}");
}

/// A small file must not say that there is much to be had memory for.
#[test]
fn more_slots_than_the_table_has_are_refused_first() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables();
    assert!(put(&saved.all()[0], 1));
    put_trajectories(&saved.all()[2], 1);
    save(&saved, root.path(), &[]).unwrap();
    for name in ["rows", "trajectories"] {
        let lies = with_heads(root.path(), |head| {
            if head.config.name == name {
                head.slots = u32::MAX;
            }
        });
        let error = load(&tables(), lies.path()).unwrap_err().to_string();
        assert!(error.contains("its items are where the table has no room"), "{error}");
    }
}

#[test]
fn more_or_fewer_samples_than_there_can_have_been_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let first = tables();
    (0..3).for_each(|number| assert!(put(&first.all()[1], number)));
    let gone = draw(&first.all()[1], 2).0;
    first.all()[1].delete(&gone[..1]);
    save(&first, root.path(), &[]).unwrap();
    assert_eq!(first.all()[1].info().unique_samples, 2);
    for lie in [0, 4] {
        let lies = with_heads(root.path(), |head| {
            if head.config.name == "epoch" {
                head.unique_samples = lie;
            }
        });
        let error = load(&tables(), lies.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("{lie} of 3 items were sampled")), "{error}");
    }
}

#[test]
fn tables_of_another_format_say_so() {
    let root = tempfile::tempdir().unwrap();
    save(&tables(), root.path(), &[]).unwrap();
    for other in [3_u32, 5] {
        let root = rewritten(root.path(), |name, bytes| {
            if name.ends_with(".head") {
                bytes[..4].copy_from_slice(&other.to_le_bytes());
            }
        });
        let error = load(&tables(), root.path()).unwrap_err().to_string();
        let what = format!("it has format {other}; this release reads format 4");
        assert!(error.ends_with(&what), "{error}");
    }
}

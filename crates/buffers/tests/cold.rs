//! What callers of a cold file may rely on.

#![expect(
    clippy::print_stdout,
    reason = "a test in a process of its own tells its parent how far it is"
)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use echoic_buffers::Error;
use echoic_buffers::cold::{ColdFile, Geometry, Wanted};
use echoic_replay::Error as Stored;
use proptest::prelude::*;

fn geometry(row_bytes: usize, slots: u64) -> Geometry {
    Geometry { row_bytes, slots, text: "rows of a test".into() }
}

/// The row at a position, of which every byte tells where it belongs.
fn row(position: u64, row_bytes: usize) -> Vec<u8> {
    (0..row_bytes as u64).map(|at| (position.wrapping_mul(31) + at * 7 + 1) as u8).collect()
}

fn append(cold: &ColdFile, count: u64) -> Result<(), Error> {
    let end = cold.end();
    let rows: Vec<Vec<u8>> =
        (end..end + count).map(|position| row(position, cold.row_bytes())).collect();
    cold.append(rows.iter().map(Vec::as_slice))
}

/// Reads these records, each in two parts.
fn read(cold: &ColdFile, positions: &[u64]) -> Result<Vec<Vec<u8>>, Error> {
    let mut rows = vec![vec![0; cold.row_bytes()]; positions.len()];
    let mut wanted: Vec<Wanted<'_>> = positions
        .iter()
        .zip(&mut rows)
        .map(|(position, row)| {
            let third = row.len() / 3;
            let (first, second) = row.split_at_mut(third);
            Wanted { position: *position, into: [first, second].into_iter().collect() }
        })
        .collect();
    let read = cold.read(&cold.reading(), &mut wanted);
    drop(wanted);
    read.map(|()| rows)
}

/// Checks that the file has just the records from `first` to `end`.
fn check(cold: &ColdFile, first: u64, end: u64) {
    assert_eq!((cold.first(), cold.end()), (first, end));
    let positions: Vec<u64> = (first..end).rev().collect();
    let expected: Vec<Vec<u8>> =
        positions.iter().map(|position| row(*position, cold.row_bytes())).collect();
    assert_eq!(read(cold, &positions).unwrap(), expected);
}

#[test]
fn a_file_has_its_last_records_whatever_the_size_of_a_row() {
    let folder = tempfile::tempdir().unwrap();
    for row_bytes in [0, 1, 44, 4080, 4084, 70_000] {
        let path = folder.path().join(row_bytes.to_string());
        let cold = ColdFile::create(&path, &geometry(row_bytes, 10)).unwrap();
        append(&cold, 3).unwrap();
        check(&cold, 0, 3);
        append(&cold, 24).unwrap();
        check(&cold, 17, 27);
        cold.close(true).unwrap();
        let cold = ColdFile::open(&path).unwrap();
        check(&cold, 17, 27);
        append(&cold, 5).unwrap();
        check(&cold, 22, 32);
    }
}

#[test]
fn a_file_that_is_there_is_never_changed_without_being_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    for foreign in [&b""[..], b"short", &[0; 10_000], &[b'x'; 10_000]] {
        fs::write(&path, foreign).unwrap();
        let created = ColdFile::create(&path, &geometry(4, 4));
        assert!(matches!(created, Err(Error::Exists { .. })));
        assert!(matches!(ColdFile::open(&path), Err(Error::File(Stored::Foreign { .. }))));
        assert_eq!(fs::read(&path).unwrap(), foreign);
    }
    let overwritten = ColdFile::overwrite(&path, &geometry(4, 4));
    assert!(matches!(overwritten, Err(Error::File(Stored::Foreign { .. }))), "not even then");
    assert_eq!(fs::read(&path).unwrap(), [b'x'; 10_000]);

    fs::remove_file(&path).unwrap();
    let cold = ColdFile::create(&path, &geometry(4, 4)).unwrap();
    append(&cold, 3).unwrap();
    drop(cold);
    let before = fs::read(&path).unwrap();
    assert!(matches!(ColdFile::create(&path, &geometry(4, 4)), Err(Error::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
    let cold = ColdFile::overwrite(&path, &geometry(8, 4)).unwrap();
    check(&cold, 0, 0);
    assert!(matches!(ColdFile::open(folder.path()), Err(Error::File(Stored::File(_)))));
    assert!(matches!(
        ColdFile::open(Path::new("/dev/null")),
        Err(Error::File(Stored::Foreign { .. }))
    ));
}

#[test]
fn a_file_that_is_open_is_nobody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let cold = ColdFile::create(&path, &geometry(4, 4)).unwrap();
    assert!(matches!(ColdFile::open(&path), Err(Error::File(Stored::Locked { .. }))));
    assert!(matches!(
        ColdFile::overwrite(&path, &geometry(4, 4)),
        Err(Error::File(Stored::Locked { .. }))
    ));
    cold.close(true).unwrap();
    ColdFile::open(&path).unwrap();
}

#[test]
fn closing_removes_the_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let cold = ColdFile::create(&path, &geometry(4, 4)).unwrap();
    cold.close(false).unwrap();
    assert!(!path.exists());
    assert!(matches!(append(&cold, 1), Err(Error::Closed)));
    assert!(matches!(cold.flush(), Err(Error::Closed)));

    let cold = ColdFile::create(&path, &geometry(4, 4)).unwrap();
    fs::rename(&path, folder.path().join("moved")).unwrap();
    fs::write(&path, "somebody else's").unwrap();
    cold.close(false).unwrap();
    cold.close(false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn a_file_for_something_else_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let cold = ColdFile::create(&folder.path().join("cold"), &geometry(4, 4)).unwrap();
    cold.check(&geometry(4, 4)).unwrap();
    let text = Geometry { text: "others".into(), ..geometry(4, 4) };
    for (other, expected) in [
        (geometry(8, 4), "expected bytes of a record 8, found 4"),
        (geometry(4, 9), "expected number of records 9, found 4"),
        (text, "expected records of others, found rows of a test"),
    ] {
        let error = cold.check(&other).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn what_is_not_there_or_has_another_size_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let cold = ColdFile::create(&folder.path().join("cold"), &geometry(4, 4)).unwrap();
    append(&cold, 6).unwrap();
    for position in [0, 1, 6, u64::MAX] {
        let read = read(&cold, &[3, position]);
        let error = read.unwrap_err().to_string();
        let has = "the file has those from 2 to before 6";
        assert_eq!(error, format!("there is no record {position}: {has}"));
    }
    let mut room = [0; 5];
    let mut wanted = [Wanted { position: 3, into: [&mut room[..]].into_iter().collect() }];
    let read = cold.read(&cold.reading(), &mut wanted);
    assert_eq!(read.unwrap_err().to_string(), "a record has 4 bytes, got 5");
    let appended = cold.append([&[0; 4][..], &[0; 3]].into_iter());
    assert_eq!(appended.unwrap_err().to_string(), "a record has 4 bytes, got 3");
    check(&cold, 2, 6);
}

#[test]
fn a_file_that_somebody_cuts_or_changes_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let cold = ColdFile::create(&path, &geometry(5000, 8)).unwrap();
    append(&cold, 8).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let whole = bytes.len() as u64;
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(whole - 9000).unwrap();
    assert!(matches!(read(&cold, &[7]), Err(Error::File(Stored::Damaged { .. }))));
    assert_eq!(read(&cold, &[0]).unwrap(), [row(0, 5000)]);
    bytes.drain(12_288..12_288 + 5012);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(read(&cold, &[0]), Err(Error::File(Stored::Damaged { .. }))));
}

#[test]
fn the_room_can_be_taken_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let cold = ColdFile::create(&path, &geometry(100, 50)).unwrap();
    cold.preallocate().unwrap();
    let taken = fs::metadata(&path).unwrap().len();
    append(&cold, 120).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), taken);
    drop(cold);
    check(&ColdFile::open(&path).unwrap(), 70, 120);
}

#[test]
fn records_are_read_while_others_are_appended() {
    let folder = tempfile::tempdir().unwrap();
    let cold = ColdFile::create(&folder.path().join("cold"), &geometry(3000, 64)).unwrap();
    append(&cold, 64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in (0..400).map(|turn| turn % 9) {
                append(&cold, count).unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for turn in 0..400 {
                    let reading = cold.reading();
                    let (oldest, end) = (reading.oldest(), cold.end());
                    let mut room = vec![0; 8 * 3000];
                    let positions = (0..8).map(|at| oldest + (turn * 7 + at) % (end - oldest));
                    let mut wanted: Vec<Wanted<'_>> = positions
                        .zip(room.chunks_mut(3000))
                        .map(|(position, part)| Wanted {
                            position,
                            into: [part].into_iter().collect(),
                        })
                        .collect();
                    cold.read(&reading, &mut wanted).unwrap();
                    for record in &wanted {
                        assert_eq!(&*record.into[0], row(record.position, 3000));
                    }
                }
            });
        }
    });
}

/// A test that is run again in a process of its own, which this variable tells what to write.
const CHILD: &str = "ECHOIC_COLD_CHILD";

fn child_command(test: &str, path: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{shell} exec \"$0\" --exact {test} --nocapture");
    command.args(["-c", &script]).arg(std::env::current_exe().unwrap());
    command.env(CHILD, path).stdout(Stdio::piped());
    command
}

/// Appends for ever, and says after each step what is there.
fn append_for_ever(path: &Path) {
    let cold = ColdFile::create(path, &geometry(10_000, 300)).unwrap();
    for count in (1..).map(|turn| turn % 40) {
        append(&cold, count).unwrap();
        println!("end {}", cold.end());
    }
}

#[test]
fn all_complete_records_are_there_after_a_kill() {
    if let Some(path) = std::env::var_os(CHILD) {
        return append_for_ever(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    for (turn, lines) in [3, 40, 75, 121].into_iter().enumerate() {
        let path = folder.path().join(turn.to_string());
        let mut child = child_command("all_complete_records_are_there_after_a_kill", &path, "")
            .spawn()
            .unwrap();
        let mut told = 0;
        let mut ends = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut tell = |line: String| {
            if let Some((_, end)) = line.split_once("end ") {
                told = end.parse().unwrap();
            }
        };
        ends.by_ref().take(lines).for_each(|line| tell(line.unwrap()));
        child.kill().unwrap();
        // What it said before it died counts, too.
        ends.map_while(Result::ok).for_each(&mut tell);
        child.wait().unwrap();

        let cold = ColdFile::open(&path).unwrap();
        assert!(cold.end() >= told, "{} of {told}", cold.end());
        // At most one write was under way, in the place of the oldest records.
        assert!(cold.first() <= (cold.end() + 40).saturating_sub(300));
        check(&cold, cold.first(), cold.end());
        append(&cold, 10).unwrap();
        let (first, end) = (cold.first(), cold.end());
        drop(cold);
        check(&ColdFile::open(&path).unwrap(), first, end);
    }
}

/// Appends until the disk is full, which is a limit on the size of files here.
fn append_until_full(path: &Path) {
    let cold = ColdFile::create(path, &geometry(10_000, 300)).unwrap();
    let full = loop {
        if let Err(error) = append(&cold, 7) {
            break error;
        }
        assert!(cold.end() < 300, "there is a limit");
    };
    let is_write = matches!(&full, Error::File(Stored::File(error)) if error.what == "write");
    assert!(is_write, "{full}");
    assert!(append(&cold, 7).is_err());
    check(&cold, 0, cold.end());
    println!("end {}", cold.end());
}

#[test]
fn a_full_disk_is_an_error_and_what_was_written_stays() {
    if let Some(path) = std::env::var_os(CHILD) {
        return append_until_full(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    // One MiB, in blocks of 512 bytes; a signal would end the process that writes more.
    let limit = "trap '' XFSZ; ulimit -f 2048;";
    let output = child_command("a_full_disk_is_an_error_and_what_was_written_stays", &path, limit)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let end: u64 = text.split_once("end ").unwrap().1.lines().next().unwrap().parse().unwrap();
    assert!((90..=105).contains(&end), "{end}");
    // Here there is no limit.
    let cold = ColdFile::open(&path).unwrap();
    assert!(cold.end() >= end);
    append(&cold, 250).unwrap();
    check(&cold, cold.end() - 300, cold.end());
}

#[derive(Debug, Clone)]
enum Step {
    Append(u64),
    Clear(u64),
    Crash,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..30u64).prop_map(Step::Append),
        1 => (0..20u64).prop_map(Step::Clear),
        1 => Just(Step::Crash),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_file_is_the_last_of_a_list(row_bytes in 0..200usize, slots in 1..40u64, steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold");
        let mut cold = ColdFile::create(&path, &geometry(row_bytes, slots)).unwrap();
        let (mut first, mut end) = (0, 0);
        for step in steps {
            match step {
                Step::Append(count) => {
                    append(&cold, count).unwrap();
                    end += count;
                }
                Step::Clear(beyond) => {
                    // Of what was never written, some may be cleared, too.
                    first = first.max((end + 5).saturating_sub(beyond));
                    end = end.max(first);
                    cold.clear(first).unwrap();
                }
                Step::Crash => {
                    drop(cold);
                    cold = ColdFile::open(&path).unwrap();
                }
                Step::Close => {
                    cold.close(true).unwrap();
                    cold = ColdFile::open(&path).unwrap();
                }
            }
            first = first.max(end.saturating_sub(slots));
            check(&cold, first, end);
        }
    }

    #[test]
    fn a_damaged_file_is_refused_or_gives_only_whole_records(
        closed in any::<bool>(),
        appended in 0..60u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold");
        let cold = ColdFile::create(&path, &geometry(300, 40)).unwrap();
        append(&cold, appended).unwrap();
        if closed {
            cold.close(true).unwrap();
        }
        drop(cold);
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in &damage {
            *at.get_mut(&mut bytes) = *byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        fs::write(&path, &bytes).unwrap();
        // A file that was closed is not read as a whole: there, only what is cut off is found.
        if let Ok(cold) = ColdFile::open(&path) && !closed {
            prop_assert!(cold.end() <= appended && cold.first() <= cold.end());
            check(&cold, cold.first(), cold.end());
        }
    }

    #[test]
    fn a_header_may_say_anything(
        numbers in prop::array::uniform4(prop_oneof![0..5000u64, any::<u64>(), Just(1 << 62)]),
        states in prop::array::uniform2(prop::option::of(prop::array::uniform4(0..200u64))),
        text in "[a-z]{0,20}",
        slot_is_right in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..20_000),
    ) {
        let [row_bytes, slot_bytes, slots, identity] = numbers;
        // As long as such a slot is, where it is short.
        let slot_bytes = if slot_is_right { row_bytes.wrapping_add(12) } else { slot_bytes };
        let mut bytes = b"EchoCold\x01\0\0\0".to_vec();
        bytes.extend((text.len() as u32).to_le_bytes());
        for number in [row_bytes, slot_bytes, slots, identity] {
            bytes.extend(number.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), text.as_bytes());
        bytes.extend(crc.to_le_bytes());
        bytes.resize(64, 0);
        bytes.extend(text.as_bytes());
        bytes.resize(4096, 0);
        for state in states {
            let mut page: Vec<u8> = state.iter().flatten().flat_map(|n| n.to_le_bytes()).collect();
            page.extend(crc32c::crc32c(&page).to_le_bytes());
            page.resize(4096, 0);
            bytes.extend(page);
        }
        bytes.extend(&data);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold");
        fs::write(&path, &bytes).unwrap();
        if let Ok(cold) = ColdFile::open(&path) {
            let (first, end) = (cold.first(), cold.end());
            prop_assert!(first <= end && end - first <= cold.slots());
            prop_assert!((end - first).saturating_mul(row_bytes) <= data.len() as u64);
        } else {
            prop_assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_a_file_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cold");
        let bytes = if magic { [&b"EchoCold\x01\0\0\0"[..], &bytes].concat() } else { bytes };
        fs::write(&path, &bytes).unwrap();
        prop_assert!(ColdFile::open(&path).is_err());
        prop_assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

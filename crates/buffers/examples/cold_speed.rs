//! How fast a cold file is written, and read in batches of 256, against a loop of sorted `pread`s.
//!
//! `cargo run --release -p echoic-buffers --example cold_speed -- FOLDER [ROW_BYTES [RECORDS]]`
//!
//! *warm* is with all records in the page cache, *cold* with none; between the two the cache is asked
//! to let go of the file. What is read is checked. The best of many batches is shown for warm reads, and
//! the median for cold ones, as disks vary.

#![expect(clippy::print_stdout, reason = "it is what an example is for")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use echoic_buffers::cold::{ColdFile, Geometry, Wanted};
use echoic_replay::rng::Rng;

const BATCH: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let row_bytes = arguments.next().map_or(Ok(84 * 84 * 4), |text| text.parse())?;
    let records: u64 = arguments.next().map_or(Ok(50_000), |text| text.parse())?;
    let path = Path::new(&folder).join(format!("cold_speed-{}.bin", std::process::id()));
    let cold =
        ColdFile::create(&path, &Geometry { row_bytes, slots: records, text: "numbers".into() })?;
    let file = File::open(&path)?;
    let measured = measure(&cold, &file, records);
    cold.close(false)?;
    measured
}

fn measure(cold: &ColdFile, file: &File, records: u64) -> Result<(), Box<dyn Error>> {
    let row_bytes = cold.row_bytes();
    let rows: Vec<Vec<u8>> = (0..64u8).map(|at| vec![at; row_bytes]).collect();
    let begun = Instant::now();
    for _ in 0..records / 64 {
        cold.append(rows.iter().map(Vec::as_slice))?;
    }
    let taken = begun.elapsed();
    cold.flush()?;
    let (mib, synced) = ((cold.end() as usize * row_bytes) >> 20, begun.elapsed());
    println!("{mib} MiB written in {taken:.2?}, and on the disk after {synced:.2?}");

    let mut out = vec![0; BATCH * row_bytes];
    let mut rng = Rng::new(1);
    let mut batch = || -> Vec<u64> { (0..BATCH).map(|_| rng.below(cold.end())).collect() };
    let slot_bytes = slot_bytes(cold, file)?;
    let data = file.metadata()?.len() - slot_bytes * cold.end();

    let mut ours = |positions: &[u64], out: &mut [u8]| -> Result<Duration, Box<dyn Error>> {
        let begun = Instant::now();
        let mut wanted: Vec<Wanted<'_>> = positions
            .iter()
            .zip(out.chunks_mut(row_bytes))
            .map(|(position, into)| Wanted {
                position: *position,
                into: [into].into_iter().collect(),
            })
            .collect();
        cold.read(&cold.reading(), &mut wanted)?;
        Ok(begun.elapsed())
    };
    let mut bare = |positions: &[u64], out: &mut [u8]| -> Result<Duration, Box<dyn Error>> {
        let begun = Instant::now();
        let mut order: Vec<(u64, &mut [u8])> =
            positions.iter().copied().zip(out.chunks_mut(row_bytes)).collect();
        order.sort_unstable_by_key(|(position, _)| *position);
        for (position, into) in order {
            file.read_exact_at(into, data + position * slot_bytes)?;
        }
        Ok(begun.elapsed())
    };
    let check = |positions: &[u64], out: &[u8]| {
        for (position, row) in positions.iter().zip(out.chunks(row_bytes)) {
            assert!(row.iter().all(|byte| u64::from(*byte) == position % 64), "{position}");
        }
    };
    type Way<'a> = &'a mut dyn FnMut(&[u64], &mut [u8]) -> Result<Duration, Box<dyn Error>>;
    let ways: [(&str, Way<'_>); 2] = [("ours", &mut ours), ("pread", &mut bare)];
    for (name, way) in ways {
        forget(file)?;
        let mut cold_times = Vec::new();
        for _ in 0..9 {
            let positions = batch();
            cold_times.push(way(&positions, &mut out)?);
            check(&positions, &out);
            forget(file)?;
        }
        cold_times.sort();
        // Reads all of it, so that the cache has it.
        let mut everything = vec![0; 1 << 20];
        let mut at = 0;
        while file.read_at(&mut everything, at)? > 0 {
            at += everything.len() as u64;
        }
        let mut warm = Duration::MAX;
        for _ in 0..200 {
            let positions = batch();
            warm = warm.min(way(&positions, &mut out)?);
            check(&positions, &out);
        }
        println!("{name:>6}: {BATCH} records warm {warm:.1?}, cold {:.1?}", cold_times[4]);
    }
    Ok(())
}

/// Bytes from one record to the next, which are those by which the file becomes longer.
fn slot_bytes(cold: &ColdFile, file: &File) -> Result<u64, Box<dyn Error>> {
    let before = file.metadata()?.len();
    let records = cold.end();
    // The header and the states are in front: three pages, as the text is short.
    Ok((before - 3 * 4096) / records)
}

/// Has the system drop what it keeps of the file.
fn forget(file: &File) -> Result<(), Box<dyn Error>> {
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    let _ = file;
    Ok(())
}

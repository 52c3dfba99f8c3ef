//! Writes the checkpoint that tests read to know that old formats can still be read. Run it once for
//! each format version, before the first release that writes it: `cargo run -p echoic-replay --example
//! checkpoint_fixture crates/replay/tests/fixtures/checkpoint-VERSION`. What is there is not changed.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use echoic_replay::checkpoint::{Options, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::args().nth(1).ok_or("which directory?")?;
    // Packs are small, so that there are several.
    let created = Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let options = Options { pack_bytes: 200, created };
    for round in 1..=2_u8 {
        let mut writer = Writer::begin_with(&root, options)?;
        writer.describe("round", round.to_string());
        for id in round..round + 4 {
            writer.blob(id.into(), &vec![id; 30 * usize::from(id)])?;
        }
        for (name, bytes) in [("empty", vec![]), ("tables/replay", vec![round; 1000])] {
            let mut section = writer.section(name)?;
            section.write_all(&bytes)?;
            section.finish()?;
        }
        writer.commit()?;
    }
    Ok(())
}

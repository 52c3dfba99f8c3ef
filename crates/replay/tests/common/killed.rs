//! Processes that are this test program once more, and are killed at any moment.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What a child is to do. A test that is one does nothing without.
const ORDERS: &str = "ECHOIC_TEST_CHILD";

/// Marks what a child says, as the harness writes lines of its own.
const SAYS: &str = "child says ";

/// A directory in memory where there is such a thing: what a disk does to a journal is tested elsewhere, and takes long.
pub fn tempdir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.unwrap()
}

/// What this process is to do, if it is a child.
pub fn orders() -> Option<String> {
    std::env::var(ORDERS).ok()
}

/// Tells the test something, in one write, which a pipe takes whole or not at all.
pub fn say(what: &str) {
    let line = format!("{SAYS}{what}\n");
    // Whoever listens may have killed this process already.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// Has a child run one test of this program, and kills it once it has said enough. All that it said.
pub fn kill_once(test: &str, orders: &str, mut enough: impl FnMut(&str) -> bool) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--quiet"])
        .env(ORDERS, orders)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut said, mut is_killed) = (Vec::new(), false);
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8_lossy(&line.unwrap()).into_owned();
        let Some((_, what)) = line.split_once(SAYS) else { continue };
        said.push(what.to_owned());
        // What is in the pipe after that was said before, too.
        if !is_killed && enough(what) {
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    assert!(is_killed, "the child ended by itself, after {:?}", said.last());
    said
}

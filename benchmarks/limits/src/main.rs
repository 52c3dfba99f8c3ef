//! What the machine itself can do: each probe is a loop around one thing that no system can do without.
//!
//! `limits PROBE ARGUMENT...` runs one probe for so many seconds, compares what arrived with what was to
//! arrive, and prints one JSON object of numbers, of which `value` is the one that counts. It ends with
//! status 1, and without a number, when something else arrived.
//!
//! | probe | arguments | value |
//! |---|---|---|
//! | `copy` | block bytes, blocks in the source, blocks in the target, seconds | GB/s |
//! | `gather` | row bytes, rows, rows a batch, seconds | µs a batch |
//! | `socket` | `tcp` or `unix`, bytes a call, seconds | GB/s |
//! | `ring` | bytes of the ring, bytes a message, seconds | GB/s |
//! | `wake` | `thread`, `unix` or `tcp`, seconds | µs a round trip, the median |

mod copy;
mod gather;
mod listener;
mod memory;
mod other;
mod ring;
mod socket;
mod wake;

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;
use std::str::FromStr;

/// Numbers by their names; the first is `value`.
type Numbers = Vec<(&'static str, f64)>;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// The arguments that are left.
struct Arguments(std::vec::IntoIter<String>);

impl Arguments {
    fn word(&mut self, name: &str) -> Outcome<String> {
        self.0.next().ok_or_else(|| format!("{name} is missing").into())
    }

    fn number<T: FromStr>(&mut self, name: &str) -> Outcome<T> {
        let word = self.word(name)?;
        word.parse().map_err(|_| format!("{name}: {word} is not such a number").into())
    }
}

fn main() -> ExitCode {
    match run(Arguments(env::args().skip(1).collect::<Vec<_>>().into_iter())) {
        Ok(numbers) => {
            if !numbers.is_empty() {
                println!("{}", json(&numbers));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Outcome<Numbers> {
    let arguments = &mut arguments;
    match arguments.word("the probe's name")?.as_str() {
        "copy" => copy::run(arguments),
        "gather" => gather::run(arguments),
        "socket" => socket::run(arguments),
        "ring" => ring::run(arguments),
        "wake" => wake::run(arguments),
        other::SENDER => socket::send(arguments).map(|()| Numbers::new()),
        other::WRITER => ring::write(arguments).map(|()| Numbers::new()),
        other::ECHO => wake::echo(arguments).map(|()| Numbers::new()),
        unknown => Err(format!("there is no probe {unknown}").into()),
    }
}

fn json(numbers: &Numbers) -> String {
    let mut text = String::from("{");
    for (index, (name, number)) in numbers.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}\"{name}\": {number}");
    }
    text.push('}');
    text
}

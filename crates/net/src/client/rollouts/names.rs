//! Names that a server would not even read, and blobs that it would read in vain.
//!
//! A name that is a little too long is refused by the ledger. One that is far too long is no request: the server
//! would end the connection, and the client come back and ask again. So names are looked at before they are sent,
//! and the length of blobs, which may be much to send.

use echoic_replay::rollouts::RolloutConfig;
use echoic_replay::rollouts::ledger::{Admit, Change, MAX_KEY, Refusal};

/// That the names and blobs in a change are as short as the ledger wants them.
pub(super) fn check(change: &Change, config: &RolloutConfig) -> Result<(), Refusal> {
    match change {
        Change::Admit(Admit { key, source, .. }) => {
            short("key of a group", key).and_then(|()| short("name of a source", source))
        }
        Change::Resume { source, .. } => short("name of a source", source),
        Change::Append(append) => {
            let blobs = append.finish.iter().flat_map(|finish| &finish.blobs);
            let mut names = blobs.clone();
            names.try_for_each(|(name, _)| short("name of a blob", name))?;
            let got: usize = blobs.map(|(_, bytes)| bytes.len()).sum();
            if got <= config.max_blob_bytes as usize {
                return Ok(());
            }
            let expected = format!("at most max_blob_bytes = {}", config.max_blob_bytes);
            let what = "bytes of an item's blobs".into();
            Err(Refusal::Value { what, expected, got: got.to_string() })
        }
        _ => Ok(()),
    }
}

/// The most bytes of a blob's name are those of a key.
fn short(what: &'static str, name: &str) -> Result<(), Refusal> {
    if name.len() <= MAX_KEY {
        return Ok(());
    }
    let expected = format!("of at most {MAX_KEY} bytes");
    Err(Refusal::Value { what: what.into(), expected, got: format!("one of {}", name.len()) })
}

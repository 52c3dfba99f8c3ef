//! Names that a server would not even read.
//!
//! A name that is a little too long is refused by the ledger. One that is far too long is no request: the server
//! would end the connection, and the client come back and ask again. So names are looked at before they are sent.

use echoic_replay::rollouts::ledger::{Admit, Change, MAX_KEY, Refusal};

/// That the names in a change are as short as the ledger wants them.
pub(super) fn check(change: &Change) -> Result<(), Refusal> {
    match change {
        Change::Admit(Admit { key, source, .. }) => {
            short("key of a group", key).and_then(|()| short("name of a source", source))
        }
        Change::Resume { source, .. } => short("name of a source", source),
        Change::Append(append) => {
            let mut blobs = append.finish.iter().flat_map(|finish| &finish.blobs);
            blobs.try_for_each(|(name, _)| short("name of a blob", name))
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

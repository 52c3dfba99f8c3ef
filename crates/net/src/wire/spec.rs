//! How long the contract of a sample may be on a connection, and what two contracts differ in.

use std::collections::HashMap;
use std::fmt::Write as _;

use echoic_replay::{Leaf, Spec};

use super::WireError;
use super::handshake::MAX_PAYLOAD;

/// The most bytes: what leaves room for the rest of a frame of the handshake.
pub const MAX_BYTES: u32 = MAX_PAYLOAD - 4096;

/// How many differences a refusal lists.
const LISTED: usize = 8;

/// What keeps a spec from going over the wire, although it is good in one process.
///
/// # Errors
///
/// [`WireError::Codec`] names the limit.
pub fn check(spec: &Spec) -> Result<(), WireError> {
    WireError::check_bytes("length of a spec", MAX_BYTES, spec)
}

fn by_path(spec: &Spec) -> HashMap<&str, &Leaf> {
    spec.leaves().iter().map(|leaf| (leaf.path.as_str(), leaf)).collect()
}

/// What a client's spec differs in from the server's, as a sentence; `None` when they are equal.
pub fn difference(server: &Spec, client: &Spec) -> Option<String> {
    if server.leaves() == client.leaves() {
        return None;
    }
    let (known, theirs) = (by_path(server), by_path(client));
    let mut found: Vec<String> = Vec::new();
    for leaf in server.leaves() {
        match theirs.get(leaf.path.as_str()) {
            None => found.push(format!("the client lacks `{leaf}`")),
            Some(other) if *other != leaf => found.push(format!(
                "leaf `{}`: the server expects {}{:?}, the client has {}{:?}",
                if leaf.path.is_empty() { "(root)" } else { &leaf.path },
                leaf.dtype,
                leaf.shape,
                other.dtype,
                other.shape
            )),
            Some(_) => {}
        }
    }
    let extra = client.leaves().iter().filter(|leaf| !known.contains_key(leaf.path.as_str()));
    found.extend(extra.map(|leaf| format!("the server does not know `{leaf}`")));
    if found.is_empty() {
        found.push("the leaves are in another order".into());
    }
    let more = found.len().saturating_sub(LISTED);
    found.truncate(LISTED);
    let mut text = found.join("; ");
    if more > 0 {
        // Writing to a string does not fail.
        let _ = write!(text, "; and {more} more");
    }
    Some(text)
}

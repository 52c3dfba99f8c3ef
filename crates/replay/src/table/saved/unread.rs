//! Unread samples of a stream, as sections: `stream.head`, JSON, and `stream.samples`.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize};

use super::{LeafText, VERSION, spec_text};
use crate::Error;
use crate::checkpoint::{Reader, Writer};
use crate::stream::{Stream, Unread};

const HEAD: &str = "stream.head";
const SAMPLES: &str = "stream.samples";

/// The most bytes of a head: more than any stream of ours has.
const MAX_HEAD: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    version: u32,
    spec: Vec<LeafText>,
    samples: usize,
}

/// Writes the unread samples.
pub(super) fn write(stream: &Stream, unread: &Unread, writer: &mut Writer) -> Result<(), Error> {
    let samples = unread.samples;
    writer.describe("unread samples", samples.to_string());
    writer.put_section(SAMPLES, |out| out.write_all(&unread.bytes))?;
    let head = Head { version: VERSION, spec: spec_text(stream.spec()), samples };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    writer.put_section(HEAD, |out| out.write_all(&head))?;
    Ok(())
}

/// The samples of a checkpoint, checked against the stream that is to have them; `None` when it has none.
pub(in crate::table) fn read(
    reader: &Reader,
    stream: Option<&Stream>,
) -> Result<Option<Unread>, Error> {
    if !reader.sections().any(|section| section == HEAD) {
        return Ok(None);
    }
    let stream =
        stream.ok_or_else(|| Error::of_stream("the checkpoint has one, the server has not"))?;
    let mut section = reader.section(HEAD)?;
    if section.data_bytes() > MAX_HEAD {
        return Err(Error::of_stream(format!("its head has {} bytes", section.data_bytes())));
    }
    let mut bytes = Vec::new();
    section.read_to_end(&mut bytes).map_err(Error::of_stream)?;
    let head: Head = serde_json::from_slice(&bytes).map_err(Error::of_stream)?;
    if head.version != VERSION {
        let version = head.version;
        return Err(Error::of_stream(format!(
            "it has format {version}; this release reads format {VERSION}"
        )));
    }
    let spec = spec_text(stream.spec());
    if spec != head.spec {
        let (expected, got) = (LeafText::list(&spec), LeafText::list(&head.spec));
        return Err(Error::of_stream(format!(
            "the server's has {expected}; the checkpoint's has {got}"
        )));
    }
    let mut section = reader.section(SAMPLES)?;
    let (samples, got) = (head.samples, section.data_bytes());
    // Before there is memory for them.
    stream
        .check_restore(samples, usize::try_from(got).unwrap_or(usize::MAX))
        .map_err(Error::of_stream)?;
    let mut bytes = Vec::new();
    section.read_to_end(&mut bytes).map_err(Error::of_stream)?;
    Ok(Some(Unread { samples, bytes }))
}

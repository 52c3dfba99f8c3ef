//! Unread samples of a stream, as sections: `stream.head` and `stream.samples`.

use std::io::{Read, Write};

use super::FORMAT;
use crate::checkpoint::{Reader, Writer};
use crate::codec::{read_formatted, write_formatted};
use crate::spec::Spec;
use crate::stream::{Stream, Unread};
use crate::{Error, fields};

const HEAD: &str = "stream.head";
const SAMPLES: &str = "stream.samples";

struct Head {
    spec: Spec,
    samples: usize,
}

fields! { Head { spec: Spec, samples: usize } }

/// Writes the unread samples.
pub(super) fn write(stream: &Stream, unread: &Unread, writer: &mut Writer) -> Result<(), Error> {
    let samples = unread.samples;
    writer.describe("unread samples", samples.to_string());
    writer.put_section(SAMPLES, |out| out.write_all(&unread.bytes))?;
    let head = write_formatted(FORMAT, &Head { spec: stream.spec().clone(), samples });
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
    let head: Head = read_formatted(&reader.head(HEAD)?, FORMAT).map_err(Error::of_stream)?;
    let (expected, got) = (stream.spec(), &head.spec);
    if expected != got {
        let what = format!("the server's has {expected}; the checkpoint's has {got}");
        return Err(Error::of_stream(what));
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

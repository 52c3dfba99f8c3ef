//! A checkpoint whose files somebody has changed, who may know how to make checksums: reading it gives
//! an error, or bytes; and the right ones, when the checksums were left alone.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use crc32c::{crc32c, crc32c_append};
use echoic_fuzz::damage::place;
use echoic_replay::Error;
use echoic_replay::checkpoint::manifest::{Manifest, seal};
use echoic_replay::checkpoint::{Options, Reader, Writer};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Attack {
    /// Bytes change, and nothing knows of it.
    Change(Vec<(u8, u16, u8)>),
    /// A file ends somewhere else.
    Length { file: u8, len: u16 },
    /// Any text is a manifest with a good checksum.
    Manifest(String),
    /// A part of the manifest is something else, with a good checksum.
    Replace { at: u16, len: u8, text: String },
    /// The index says other places, with good checksums everywhere.
    Index(Vec<(u8, Place)>),
}

#[derive(Debug, Arbitrary)]
struct Place {
    id: Option<u8>,
    pack: Option<u32>,
    crc: Option<u32>,
    offset: Option<u64>,
    len: Option<u64>,
}

type Content = (Vec<u8>, BTreeMap<u128, Vec<u8>>);

fn content() -> Content {
    ((0..100).collect(), (0..6).map(|id| (id, vec![id as u8; 30 * id as usize])).collect())
}

struct Target {
    root: PathBuf,
    /// All files but the lock, as they were written.
    files: Vec<(PathBuf, Vec<u8>)>,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let root = place("checkpoint");
        let _ = fs::remove_dir_all(&root);
        let options = Options { pack_bytes: 100, ..Options::default() };
        let mut writer = Writer::begin_with(&root, options).expect("a new root");
        let (state, blobs) = content();
        let mut section = writer.section("state").expect("a section");
        section.write_all(&state).expect("room");
        section.finish().expect("room");
        for (id, blob) in &blobs {
            writer.blob(*id, blob).expect("room");
        }
        let checkpoint = writer.commit().expect("room").path;
        let mut files = Vec::new();
        for folder in [checkpoint, root.join("packs")] {
            for entry in fs::read_dir(folder).expect("a directory") {
                let path = entry.expect("one").path();
                files.push((path.clone(), fs::read(path).expect("a file")));
            }
        }
        files.sort();
        Target { root, files }
    })
}

impl Target {
    fn file(&self, name: &str) -> (&Path, &[u8]) {
        let found = self.files.iter().find(|(path, _)| path.ends_with(name));
        let (path, bytes) = found.expect("it was written");
        (path, bytes)
    }

    /// The text of the manifest that the checksum is made of.
    fn manifest(&self) -> (&Path, String) {
        let (path, bytes) = self.file("manifest.json");
        let text = std::str::from_utf8(bytes).expect("JSON");
        let (_, inner) = text.split_once("\"manifest\": ").expect("an inner object");
        (path, inner.trim_end().strip_suffix('}').expect("an end").trim_end().to_owned())
    }

    fn put(&self, path: &Path, bytes: impl AsRef<[u8]>) {
        fs::write(path, bytes).expect("room");
    }

    fn attack(&self, attack: &Attack) {
        match attack {
            Attack::Change(changes) => {
                let mut files = self.files.clone();
                for (file, at, bits) in changes {
                    let number = usize::from(*file) % files.len();
                    let bytes = &mut files[number].1;
                    let at = usize::from(*at) % bytes.len();
                    bytes[at] ^= bits;
                }
                files.iter().for_each(|(path, bytes)| self.put(path, bytes));
            }
            Attack::Length { file, len } => {
                let (path, bytes) = &self.files[usize::from(*file) % self.files.len()];
                let mut bytes = bytes.clone();
                bytes.resize(usize::from(*len), 0);
                self.put(path, bytes);
            }
            Attack::Manifest(text) => {
                let sealed = seal(text);
                if let Ok(manifest) = Manifest::read(sealed.as_bytes(), Path::new("manifest")) {
                    let written = manifest.write().expect("it was read");
                    let again = Manifest::read(written.as_bytes(), Path::new("manifest"));
                    assert_eq!(again.expect("it was written"), manifest);
                }
                self.put(self.manifest().0, sealed);
            }
            Attack::Replace { at, len, text } => {
                let (path, mut inner) = self.manifest();
                let at = usize::from(*at) % inner.len();
                let end = inner.len().min(at + usize::from(*len));
                inner.replace_range(at..end, text);
                self.put(path, seal(&inner));
            }
            Attack::Index(places) => self.forge_index(places),
        }
    }

    fn forge_index(&self, places: &[(u8, Place)]) {
        let (path, good) = self.file("index.bin");
        let mut entries: Vec<Vec<u8>> =
            good[24..good.len() - 8].chunks(40).map(Vec::from).collect();
        for (which, place) in places {
            let number = usize::from(*which) % (entries.len() + 1);
            if number == entries.len() {
                entries.push(entries[0].clone());
            }
            let entry = &mut entries[number];
            let mut set = |at: usize, bytes: Option<&[u8]>| {
                bytes
                    .into_iter()
                    .for_each(|bytes| entry[at..at + bytes.len()].copy_from_slice(bytes));
            };
            set(0, place.id.map(|id| u128::from(id).to_le_bytes()).as_ref().map(|id| &id[..]));
            set(16, place.pack.map(u32::to_le_bytes).as_ref().map(|pack| &pack[..]));
            set(20, place.crc.map(u32::to_le_bytes).as_ref().map(|crc| &crc[..]));
            set(24, place.offset.map(u64::to_le_bytes).as_ref().map(|offset| &offset[..]));
            set(32, place.len.map(u64::to_le_bytes).as_ref().map(|len| &len[..]));
        }
        let lengths = entries
            .iter()
            .map(|entry| u64::from_le_bytes(entry[32..].try_into().expect("eight bytes")));
        let all = lengths.fold(0_u64, u64::saturating_add);
        let data = entries.concat();
        let mut bytes = good[..16].to_vec();
        let mut sum = crc32c(&bytes);
        for (number, block) in [(0_u64, &data[..]), (1, &[])] {
            let len = (block.len() as u32).to_le_bytes();
            let crc = crc32c_append(crc32c_append(crc32c(block), &number.to_le_bytes()), &len);
            let head = [len, crc.to_le_bytes()].concat();
            sum = crc32c_append(sum, &head);
            bytes.extend([&head[..], block].concat());
        }
        let (manifest, inner) = self.manifest();
        let value: &str = &inner[inner.find("\"blobs\"").expect("blobs")..];
        let forged = format!(
            "\"blobs\": {{\"count\": {}, \"data_bytes\": {all}, \"index\": {{\"name\": \"index.bin\", \
             \"data_bytes\": {}, \"file\": \"index.bin\", \"bytes\": {}, \"crc32c\": \"{sum:08x}\"}}}}}}",
            entries.len(),
            data.len(),
            bytes.len(),
        );
        let text = inner.replace(value, &forged);
        self.put(path, bytes);
        self.put(manifest, seal(&text));
    }

    fn read(&self) -> Result<Content, Error> {
        let reader = Reader::open(&self.root)?;
        let verified = reader.verify(|_| ControlFlow::Continue(()));
        // Not to be read any more, but nothing bad must come of it.
        let mut state = Vec::new();
        // A manifest may name no section at all.
        let first = reader.sections().next().map(|name| reader.section(name)).transpose();
        let section = first.and_then(|section| match section {
            Some(mut section) => {
                section.read_to_end(&mut state).map_err(|error| error.downcast().expect("ours"))
            }
            None => Ok(0),
        });
        let blobs: Result<_, Error> =
            reader.blob_ids().into_iter().map(|id| Ok((id, reader.blob(id)?))).collect();
        if verified.is_ok() {
            assert!(section.is_ok() && blobs.is_ok(), "what was verified can be read");
        }
        verified.and(section)?;
        Ok((state, blobs?))
    }
}

fuzz_target!(|attack: Attack| {
    let target = target();
    target.attack(&attack);
    let found = target.read();
    if let (Attack::Change(_) | Attack::Length { .. }, Ok(found)) = (&attack, found) {
        assert_eq!(found, content());
    }
    // As it was, for the next.
    target.files.iter().for_each(|(path, bytes)| target.put(path, bytes));
});

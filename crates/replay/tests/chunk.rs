//! What callers of chunks may rely on: policies, the serial form, and what meters count.

use std::sync::Arc;

use echoic_replay::chunk::{Chunk, ChunkError, ChunkMeter, ColumnKind, MAX_BYTES};
use echoic_replay::codec::CodecError;
use echoic_replay::encoding::{Chooser, Encoding, Policy};
use echoic_replay::rng::Rng;
use echoic_replay::{Dtype, Episode};
use proptest::prelude::*;

fn kind(dtype: Dtype, shape: &[usize]) -> Arc<ColumnKind> {
    Arc::new(ColumnKind { dtype, shape: shape.into() })
}

fn noise(seed: u64, len: usize) -> Box<[u8]> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Counts up by a step of 3.
fn ramp(len: i32) -> Box<[u8]> {
    (0..len).flat_map(|step| (step * 3).to_le_bytes()).collect()
}

/// Frames in which a small square wanders over a fixed picture.
fn frames(len: usize) -> Box<[u8]> {
    let picture = noise(5, 84 * 84);
    let frame = |at: usize| {
        let mut frame = picture.to_vec();
        let corner = (at % 70) * 85;
        for row in 0..8 {
            frame[corner + row * 84..][..8].fill(255);
        }
        frame
    };
    (0..len).flat_map(frame).collect()
}

fn values(chunk: &Chunk) -> Vec<u8> {
    let mut values = vec![0; chunk.raw_len()];
    chunk.copy_to(0, &mut values);
    values
}

fn written(chunk: &Chunk) -> Vec<u8> {
    let mut bytes = Vec::new();
    chunk.write(&mut bytes);
    bytes
}

/// A chunk in each form that makes it smaller.
fn forms() -> Vec<Chunk> {
    let all = Encoding::ALL.into_iter();
    let stairs: Box<[u8]> = (0..300i32).flat_map(|step| (step / 16).to_le_bytes()).collect();
    let encode = |encoding| {
        let always = Policy::Always(encoding);
        Chunk::encode(kind(Dtype::Int(4), &[]), 300, stairs.clone(), always).unwrap()
    };
    all.enumerate()
        .map(|(number, encoding)| {
            // Every second one knows its episode.
            let chunk = encode(encoding).of_episode(Episode::from_number(number as u64 % 2 * 77));
            assert_eq!((chunk.encoding(), chunk.raw_len(), chunk.len()), (encoding, 1200, 300));
            chunk
        })
        .collect()
}

#[test]
fn a_form_that_is_no_smaller_is_not_used() {
    for encoding in Encoding::ALL {
        let raw = noise(1, 4000);
        let always = Policy::Always(encoding);
        let chunk = Chunk::encode(kind(Dtype::Float(4), &[10]), 100, raw.clone(), always).unwrap();
        assert_eq!(chunk.encoding(), Encoding::Raw);
        assert_eq!(chunk.encoded_bytes(), &raw[..]);
    }
}

#[test]
fn the_form_is_chosen_by_what_it_saves() {
    let auto = |kind, len, raw: Box<[u8]>| {
        let chunk = Chunk::encode(kind, len, raw.clone(), Policy::Auto).unwrap();
        assert_eq!(values(&chunk), raw[..]);
        chunk
    };
    let random = auto(kind(Dtype::UInt(1), &[100]), 100, noise(2, 10_000));
    assert_eq!(random.encoding(), Encoding::Raw);
    let small = auto(kind(Dtype::UInt(1), &[]), 200, vec![0; 200].into());
    assert_eq!(small.encoding(), Encoding::Raw, "too small to be worth it");
    let counter = auto(kind(Dtype::Int(4), &[]), 2000, ramp(2000));
    assert_eq!(counter.encoding(), Encoding::DeltaLz4, "zstd would save next to nothing more");
    assert!(counter.encoded_bytes().len() < 100, "of 8000");
    // The picture is noise, so within a step there is nothing to save.
    let pictures = auto(kind(Dtype::UInt(1), &[84, 84]), 40, frames(40));
    assert_ne!(pictures.encoding(), Encoding::Raw);
    assert!(pictures.encoded_bytes().len() * 10 < pictures.raw_len());
    let never = Chunk::encode(kind(Dtype::Int(4), &[]), 2000, ramp(2000), Policy::Never).unwrap();
    assert_eq!(never.encoding(), Encoding::Raw);
}

#[test]
fn a_choice_that_fails_a_chunk_is_made_again() {
    let mut chooser = Chooser::new(Policy::Auto);
    let mut encode = |raw| {
        chooser.encode(kind(Dtype::Int(4), &[]), 2000, raw).unwrap().encoding() != Encoding::Raw
    };
    assert!(encode(ramp(2000)));
    assert!(!encode(noise(3, 8000)), "kept as it is");
    assert!(!encode(noise(4, 8000)));
    // What is raw by choice stays raw for the chunks that the choice is for.
    let encoded: Vec<bool> = (0..40).map(|_| encode(ramp(2000))).collect();
    assert_eq!(encoded.iter().position(|encoded| *encoded), Some(31));
}

#[test]
fn chunks_that_can_not_be_are_refused() {
    let raw = |kind, len, bytes: usize| {
        Chunk::raw(kind, len, vec![0; bytes].into()).unwrap_err().to_string()
    };
    let word = || kind(Dtype::Int(4), &[2]);
    assert_eq!(raw(word(), 3, 23), "3 steps of 8 bytes are not 23 bytes");
    assert_eq!(raw(word(), 0, 0), "a chunk has at least one step, got 0");
    assert_eq!(raw(kind(Dtype::Bool, &[1; 65]), 1, 1), "a step has at most 64 axes, got 65");
    let huge = kind(Dtype::UInt(1), &[MAX_BYTES]);
    assert!(matches!(
        Chunk::from_encoded(huge, 2, Encoding::Zstd, vec![].into()),
        Err(ChunkError::TooLarge { len: 2, step: MAX_BYTES })
    ));
    assert!(raw(kind(Dtype::UInt(1), &[usize::MAX, 2]), 1, 0).contains("more than the 1073741824"));
    let lz4 = forms().swap_remove(1);
    for (len, why) in [(299, "too many bytes"), (301, "too few")] {
        let bytes = lz4.encoded_bytes().into();
        let refused = Chunk::from_encoded(Arc::clone(lz4.kind()), len, Encoding::Lz4, bytes);
        assert!(matches!(refused, Err(ChunkError::Encoded { .. })), "{why}");
    }
}

/// A few bytes that claim to be a gigabyte would cost one to find out.
#[test]
fn no_memory_is_taken_for_more_than_the_bytes_can_stand_for() {
    for (encoding, most) in [(Encoding::Lz4, 2550), (Encoding::DeltaZstd, 262_144)] {
        let claim = |len| {
            let zeros = vec![0; 10].into();
            Chunk::from_encoded(kind(Dtype::UInt(1), &[]), len, encoding, zeros)
                .unwrap_err()
                .to_string()
        };
        let expected = format!(
            "10 bytes of {encoding} do not decode to {MAX_BYTES} bytes: at most {most} bytes can come \
             of so few"
        );
        assert_eq!(claim(MAX_BYTES as u32), expected);
        assert!(!claim(most).contains("at most"), "the decoder found out");
    }
    for encoding in [Encoding::Lz4, Encoding::Zstd] {
        let always = Policy::Always(encoding);
        let zeros = vec![0; 4_000_000].into();
        let chunk = Chunk::encode(kind(Dtype::UInt(1), &[]), 4_000_000, zeros, always).unwrap();
        assert!(Chunk::read(&written(&chunk)).is_ok(), "as few bytes as there can be");
    }
}

#[test]
fn steps_without_bytes_make_a_chunk() {
    for policy in Encoding::ALL.into_iter().map(Policy::Always).chain([Policy::Auto]) {
        let chunk =
            Chunk::encode(kind(Dtype::Float(8), &[3, 0]), 7, vec![].into(), policy).unwrap();
        assert_eq!((chunk.len(), chunk.raw_len(), values(&chunk)), (7, 0, vec![]));
        assert_eq!(Chunk::read(&written(&chunk)).unwrap().0.len(), 7);
    }
}

#[test]
fn a_chunk_that_is_too_large_for_kept_buffers_decodes() {
    let raw: Box<[u8]> = (0..5_000_000u32).map(|at| (at >> 12) as u8).collect();
    for encoding in [Encoding::Lz4, Encoding::DeltaZstd] {
        let always = Policy::Always(encoding);
        let chunk =
            Chunk::encode(kind(Dtype::UInt(1), &[1000]), 5000, raw.clone(), always).unwrap();
        let mut two = vec![0; 2000];
        chunk.copy_to(4998, &mut two);
        assert_eq!(two, raw[4_998_000..]);
    }
}

#[test]
#[should_panic(expected = "8 bytes from 1196 of 1200")]
fn steps_that_an_encoded_chunk_does_not_have_are_a_panic() {
    forms().swap_remove(2).copy_to(299, &mut [0; 8]);
}

#[test]
fn the_serial_form_gives_the_same_chunk() {
    for chunk in forms() {
        let mut bytes = written(&chunk);
        let used = bytes.len();
        bytes.extend([1, 2, 3]);
        let (read, took) = Chunk::read(&bytes).unwrap();
        assert_eq!((took, read.encoding(), read.len()), (used, chunk.encoding(), 300));
        assert_eq!((read.kind(), values(&read)), (chunk.kind(), values(&chunk)));
        assert_eq!(read.episode(), chunk.episode());
        assert_eq!(written(&read), bytes[..used], "one chunk has one form");
        let share = |kind| {
            assert_eq!(kind, **chunk.kind());
            Arc::clone(chunk.kind())
        };
        assert!(Arc::ptr_eq(Chunk::read_as(&bytes, share).unwrap().0.kind(), chunk.kind()));
    }
}

/// The form as it was first written: files of old releases must be read.
#[test]
fn the_serial_form_is_the_written_one() {
    let chunk = Chunk::raw(kind(Dtype::Float(4), &[2]), 1, vec![9; 8].into()).unwrap();
    let head = [1, 0, b'f', 1, 4, 0, 0, 0, 1, 0, 0, 0];
    let rest = [8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9];
    let sum = crc32c::crc32c(&[&head[..], &rest].concat()).to_le_bytes();
    assert_eq!(written(&chunk), [&head[..], &sum, &rest].concat());
    // As it is of a chunk that knows its episode: another format, and the number before the axes.
    let chunk = chunk.of_episode(Episode::from_number(0x0807_0605_0403_0201));
    let form = |episode: [u8; 8]| {
        let head = [&[2], &head[1..]].concat();
        let rest = [&rest[..8], &episode, &rest[8..]].concat();
        let sum = crc32c::crc32c(&[&head[..], &rest].concat()).to_le_bytes();
        [&head[..], &sum, &rest].concat()
    };
    assert_eq!(written(&chunk), form([1, 2, 3, 4, 5, 6, 7, 8]));
    let none = ChunkError::Codec(CodecError::Meaningless { field: "episode", got: 0 });
    assert_eq!(Chunk::read(&form([0; 8])).unwrap_err(), none, "there is a format for that");
}

#[test]
fn another_form_of_a_chunk_is_of_the_same_episode() {
    let episode = Some(Episode::fresh());
    let chunk = Chunk::raw(kind(Dtype::Int(4), &[]), 2000, ramp(2000)).unwrap();
    let packed = Chooser::new(Policy::Auto).pack(&chunk.of_episode(episode)).unwrap();
    assert_eq!(packed.episode(), episode);
}

#[test]
fn a_chunk_that_is_cut_is_refused_wherever_it_is_cut() {
    for chunk in forms() {
        let bytes = written(&chunk);
        for end in 0..bytes.len() {
            let cut = Chunk::read(&bytes[..end]);
            assert!(
                matches!(cut, Err(ChunkError::Codec(CodecError::Truncated { got, .. })) if got <= end),
                "{end}"
            );
        }
    }
}

/// The checksum finds every single flipped bit, so this has no false alarms.
#[test]
fn a_chunk_with_a_flipped_bit_is_refused_whichever_it_is() {
    for chunk in forms() {
        let mut bytes = written(&chunk);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Chunk::read(&bytes).is_err(), "bit {bit} of {}", chunk.encoding());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// With a right checksum the bytes come to the decoders: they are refused, or a whole chunk.
    #[test]
    fn a_forged_chunk_is_refused_or_whole(
        form in prop::sample::select(forms().iter().map(written).collect::<Vec<_>>()),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = form;
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        if let Ok((chunk, used)) = Chunk::read(&bytes) {
            prop_assert_eq!(values(&chunk).len(), chunk.raw_len());
            prop_assert_eq!(written(&chunk), &bytes[..used]);
        }
    }
}

#[test]
fn a_chunk_is_counted_by_one_meter() {
    let meters = [(); 2].map(|()| Arc::new(ChunkMeter::default()));
    let chunk = forms().swap_remove(4).metered(&meters[0]).metered(&meters[1]);
    assert_eq!(meters.each_ref().map(|meter| meter.chunks()), [0, 1]);
    assert_eq!(meters.each_ref().map(|meter| meter.bytes()), [0, chunk.memory_bytes() as u64]);
    drop(chunk);
    assert_eq!(meters.map(|meter| (meter.chunks(), meter.bytes())), [(0, 0); 2]);
}

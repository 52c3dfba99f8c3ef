//! What is said of weights, as bytes: what is written is read again, and what is cut or changed is an error,
//! or another value, and never a panic.

use echoic_net::wire::WireError;
use echoic_net::wire::frame::kind;
use echoic_net::wire::weights::{
    Announcement, ChunkOf, Form, Need, Publish, Receipt, Region, Want, check, most, read_serial,
    write_serial,
};
use echoic_replay::codec::CodecError;
use echoic_replay::weights::{ChunkForm, MAX_BYTES, Plan};
use echoic_replay::{Dtype, Leaf};

#[path = "common/frames.rs"]
mod frames;

use frames::{is_robust, parts};

fn plan(bytes: usize) -> Plan {
    let leaf = Leaf { path: "w".into(), dtype: Dtype::UInt(1), shape: vec![bytes] };
    Plan::new("0".into(), vec![leaf]).unwrap()
}

/// Writes a frame, checks its header, and returns the payload.
fn payload(of: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    write(&mut frame);
    let (header, payload) = parts(&frame);
    assert_eq!(header.kind, of);
    assert!(header.len <= most(of).unwrap());
    payload.to_vec()
}

/// Whether everything shorter is refused, and everything longer by a byte, and no bit makes it panic.
fn only_whole<T>(payload: &[u8], read: impl Fn(&[u8]) -> Result<T, WireError>) {
    (0..8 * payload.len()).for_each(|bit| is_robust(payload, (bit / 8, 1 << (bit % 8)), &read));
    assert!(read(&[payload, &[0]].concat()).is_err());
}

#[test]
fn questions_come_back_as_they_were() {
    let want = Want { after: 7, sums: vec![1, u64::MAX] };
    let bytes = payload(kind::WANT, |out| want.write(out));
    assert_eq!(Want::read(&bytes), Ok(want));
    only_whole(&bytes, Want::read);
}

#[test]
fn announcements_of_every_form_come_back_as_they_were() {
    let memory = Form::Memory { plan: plan(5), region: 3 };
    for form in [Form::Alone, Form::Chunks(plan(70)), memory] {
        let announcement = Announcement { serial: 4, version: 9, form };
        let bytes = payload(kind::PUBLICATION, |out| announcement.write(out));
        assert_eq!(Announcement::read(&bytes), Ok(announcement));
        only_whole(&bytes, Announcement::read);
    }
    let mut bytes = payload(kind::PUBLICATION, |out| {
        Announcement { serial: 4, version: 9, form: Form::Alone }.write(out);
    });
    bytes[16] = 3;
    let field = "form";
    assert_eq!(
        Announcement::read(&bytes),
        Err(WireError::Codec(CodecError::Meaningless { field, got: 3 }))
    );
}

#[test]
fn chunks_come_back_as_they_were_and_tell_when_they_are_damaged() {
    let chunk = ChunkOf { index: 2, sum: 99, form: ChunkForm::Xor, bytes: &[1, 2, 3] };
    for form in [ChunkForm::Whole, ChunkForm::Sparse, ChunkForm::Xor] {
        let chunk = ChunkOf { form, ..chunk };
        let mut bytes = payload(kind::CHUNK_OF_WEIGHTS, |out| chunk.write(out));
        assert_eq!(ChunkOf::read(&bytes), Ok(chunk));
        bytes[12] = 3;
        assert!(ChunkOf::read(&bytes).is_err());
    }
    assert_eq!(chunk.check(99, 99), Ok(()));
    assert_eq!(chunk.check(99, 98), Err(WireError::Sum { chunk: 2, expected: 99, got: 98 }));
    assert!(chunk.check(98, 98).is_err());
}

#[test]
fn what_is_to_be_published_has_a_sum_for_each_chunk() {
    for (timeout_ms, content) in [
        (None, None),
        (Some(5), Some((plan(1 << 19), vec![1, 2]))),
        (None, Some((plan(0), vec![]))),
    ] {
        let publish = Publish { version: 3, timeout_ms, content };
        let bytes = payload(kind::PUBLISH, |out| publish.write(out));
        assert_eq!(Publish::read(&bytes), Ok(publish));
        only_whole(&bytes, Publish::read);
    }
    let content = Some((plan(1 << 19), vec![1, 2, 3]));
    let bytes = payload(kind::PUBLISH, |out| {
        Publish { version: 3, timeout_ms: None, content }.write(out);
    });
    let wrong = WireError::Sequence { field: "number of sums", expected: 2, got: 3 };
    assert_eq!(Publish::read(&bytes), Err(wrong));
}

#[test]
fn frames_have_room_for_the_largest_trees_and_publications() {
    let path = |at: usize| {
        format!("model.layers.{}.mlp.experts.{}.down_proj.weight", at / 1024, at % 1024)
    };
    let leaf = |at| Leaf { path: path(at), dtype: Dtype::BFloat16, shape: vec![2048, 768] };
    let names = (0..131_072).map(|at| format!("[\"{}\",{at}]", path(at)));
    let structure = format!("{{\"dict\":[{}]}}", names.collect::<Vec<_>>().join(","));
    let plan = Plan::new(structure, (0..131_072).map(leaf).collect()).unwrap();
    assert!(plan.nbytes() >= 384 << 30 && plan.chunks() > 1 << 16);
    check(&plan).unwrap();
    let publish = Publish {
        version: 1,
        timeout_ms: None,
        content: Some((plan.clone(), vec![7; plan.chunks()])),
    };
    assert!(Publish::read(&payload(kind::PUBLISH, |out| publish.write(out))) == Ok(publish));
    let largest = self::plan(MAX_BYTES);
    let want = Want { after: 1, sums: vec![1; largest.chunks()] };
    payload(kind::WANT, |out| want.write(out));
    let need = Need { chunks: vec![1; largest.chunks()], bases: vec![1; largest.chunks()] };
    payload(kind::NEED, |out| need.write(out));
}

#[test]
fn the_small_frames_come_back_as_they_were() {
    let region = Region { id: 1, len: 4096 };
    let bytes = payload(kind::REGION, |out| region.write(out));
    assert_eq!(Region::read(&bytes), Ok(region));
    only_whole(&bytes, Region::read);
    let bytes = payload(kind::END, |out| write_serial(out, kind::END, 6));
    assert_eq!(read_serial(&bytes), Ok(6));
    only_whole(&bytes, read_serial);
    let need = Need { chunks: vec![1, 5], bases: vec![0, 9] };
    let bytes = payload(kind::NEED, |out| need.write(out));
    assert_eq!(Need::read(&bytes), Ok(need));
    only_whole(&bytes, Need::read);
    for receipt in [
        Receipt::Published,
        Receipt::Stale { latest: 8 },
        Receipt::Same,
        Receipt::Leased,
        Receipt::Closed,
        Receipt::Failed("no memory".into()),
    ] {
        let bytes = payload(kind::RECEIPT, |out| receipt.write(out));
        assert_eq!(Receipt::read(&bytes), Ok(receipt));
        only_whole(&bytes, Receipt::read);
    }
}

//! What the wire format says about bytes and specs that it does not take.

use echoic_net::wire::frame::{Control, MAX_CONTROL, short};
use echoic_net::wire::{WireError, read_preface, spec};
use echoic_replay::codec::{CodecError, Encode, Reader};
use echoic_replay::{Dtype, Leaf, Spec};

#[test]
fn strangers_are_described() {
    let told = |bytes: &[u8]| read_preface(bytes).unwrap_err().to_string();
    assert!(told(&[0x15, 3, 3, 0, 2, 2, 0x32]).contains("tls://"));
    assert!(told(b"HTTP/1.1 400 Bad Request").contains(r#"the text "HTTP/1.1 400 Bad""#));
    assert!(told(&[0, 0xff]).contains("the bytes [00, ff]"));
}

#[test]
fn a_text_for_people_is_cut_at_a_character() {
    let text = short(&"é".repeat(2000));
    assert_eq!(text, "é".repeat(1024));
    assert_eq!(short("a table is closed"), "a table is closed");
    let mut frame = Vec::new();
    Control::Goodbye { text }.write(&mut frame);
    assert!(frame.len() <= MAX_CONTROL as usize);
}

#[test]
fn a_path_is_as_long_as_in_one_process() {
    let path = "é".repeat(40_000);
    let spec = Spec::new(vec![Leaf { path, dtype: Dtype::Float(4), shape: vec![1; 300] }]).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(spec::check(&spec), Ok(()));
    spec.encode(&mut bytes);
    assert_eq!(Reader::new(&bytes).get("spec"), Ok(spec));
}

#[test]
fn a_spec_that_no_handshake_could_carry_is_told_in_time() {
    let of_leaves = |leaves: usize| {
        let leaf =
            |number| Leaf { path: format!("{number:04000}"), dtype: Dtype::Bool, shape: vec![] };
        Spec::new((0..leaves).map(leaf).collect()).unwrap()
    };
    assert_eq!(spec::check(&of_leaves(250)), Ok(()));
    let error = spec::check(&of_leaves(300)).unwrap_err();
    assert!(
        matches!(error, WireError::Codec(CodecError::TooLarge { field: "length of a spec", .. })),
        "{error}"
    );
}

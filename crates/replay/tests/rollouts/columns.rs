//! Columns whose values have a shape.

use std::sync::Arc;

use echoic_replay::Dtype;
use echoic_replay::codec::{Encode, Reader};
use echoic_replay::rollouts::batch::{FIELDS, Form, Layout};
use echoic_replay::rollouts::item::{Group, Item, Run, Segment};
use echoic_replay::rollouts::ledger::{Append, Change, ChangeError, Hold, Lease, Share};
use echoic_replay::rollouts::schema::{MAX_TOKEN_BYTES, SchemaError};
use echoic_replay::rollouts::{Column, RolloutConfig, Schema};

use crate::settings::plain;
use crate::table::whole;

fn column(name: &str, dtype: Dtype, shape: &[usize]) -> Column {
    Column { name: name.into(), dtype, shape: shape.to_vec() }
}

/// A number of two bytes, three pairs of bytes, and a mask.
fn wide() -> RolloutConfig {
    let columns = vec![
        column("ids", Dtype::UInt(2), &[]),
        column("pairs", Dtype::UInt(1), &[3, 2]),
        column("mask", Dtype::Bool, &[]),
    ];
    RolloutConfig {
        schema: Schema { columns, fields: vec![], mask: Some(2), ..Schema::default() },
        ..plain()
    }
}

/// Tokens that follow each other from a mark on: each byte says whose it is.
fn part(first: u8, tokens: u8) -> Arc<Segment> {
    let each = |bytes: u8| {
        (first..first + tokens).flat_map(move |token| (0..bytes).map(move |at| token * 8 + at))
    };
    let bytes = each(2).chain(each(6)).chain((0..tokens).map(|_| 1)).collect();
    let runs = std::iter::once(Run { version: 0, tokens: tokens.into() }).collect();
    Arc::new(Segment { runs, tokens: tokens.into(), bytes, absent: 0 })
}

fn share(items: &[&[u8]]) -> Share {
    let mut first = 1;
    let item = |(index, parts): (usize, &&[u8])| {
        let segments = parts.iter().map(|tokens| {
            first += tokens;
            part(first - tokens, *tokens)
        });
        Item { index: index as u32, segments: segments.collect(), ..Item::default() }
    };
    let items: Vec<Item> = items.iter().enumerate().map(item).collect();
    let tokens = items.iter().map(|item| u64::from(item.tokens())).sum();
    let group = Group {
        id: 1,
        key: String::new(),
        source: String::new(),
        reserved: 0,
        dispatched: 0,
        oldest: 0,
        newest: 0,
        completed: 0,
        items,
        tokens,
    };
    let lease = Lease { batch: 1, rank: 0, attempt: 1 };
    Share { lease, lease_ms: None, target: 0, groups: vec![Arc::new(group)] }
}

#[test]
fn values_with_a_shape_stay_whole_in_every_form() {
    let config = wide();
    config.check().unwrap();
    // Tokens 1 to 3 come in two parts, 4 and 5 in one, and 6 alone.
    let share = share(&[&[1, 2], &[2], &[1]]);
    let forms: [(Form, &[u8]); 4] = [
        (Form::Flat, &[1, 2, 3, 4, 5, 6]),
        (Form::Padded { width: 4, left: false }, &[1, 2, 3, 0, 4, 5, 0, 0, 6, 0, 0, 0]),
        (Form::Padded { width: 0, left: true }, &[1, 2, 3, 0, 4, 5, 0, 0, 6]),
        (Form::Packed { width: 4 }, &[1, 2, 3, 6, 4, 5, 0, 0]),
    ];
    for (form, tokens) in forms {
        let layout = Layout::new(&share, &config, form).unwrap();
        let mut bytes = vec![0xEE; layout.bytes()];
        layout.write(&mut bytes);
        let arrays = layout.head().shape.arrays(&config).unwrap();
        for (array, size) in arrays.all[FIELDS..].iter().zip([2, 6]) {
            let cell =
                |token: u8| (0..size).map(move |at| if token == 0 { 0 } else { token * 8 + at });
            let expected: Vec<u8> = tokens.iter().flat_map(|token| cell(*token)).collect();
            assert_eq!(bytes[array.start..][..array.len], expected, "{form:?}, {size} bytes");
        }
    }
}

#[test]
fn shapes_that_cannot_be_stored_are_refused() {
    let shape = |at: usize, shape: &[usize]| {
        let mut schema = wide().schema;
        schema.fields = vec![column("reward", Dtype::Float(4), &[])];
        let of = schema.columns.iter_mut().chain(&mut schema.fields).nth(at);
        of.unwrap().shape = shape.to_vec();
        schema.check()
    };
    assert_eq!(shape(1, &[MAX_TOKEN_BYTES - 3]), Ok(()));
    let (got, bytes) = (shape(1, &[MAX_TOKEN_BYTES - 2]), MAX_TOKEN_BYTES + 1);
    assert_eq!(got, Err(SchemaError::TokenBytes(bytes)));
    let most = shape(1, &[usize::MAX, usize::MAX]);
    assert_eq!(most, Err(SchemaError::TokenBytes(usize::MAX)), "sizes do not wrap around");
    assert!(matches!(shape(1, &[3, 0]), Err(SchemaError::Shape { .. })));
    assert!(matches!(shape(1, &[1; 17]), Err(SchemaError::Shape { .. })));
    assert_eq!(shape(2, &[1]), Err(SchemaError::Mask(3)), "a mask is a number for each token");
    assert!(matches!(shape(3, &[2]), Err(SchemaError::FieldShape { .. })));
}

#[test]
fn a_shape_is_in_the_settings_that_are_kept() {
    let (config, mut bytes) = (wide(), Vec::new());
    config.encode(&mut bytes);
    assert_eq!(Reader::new(&bytes).get::<RolloutConfig>("settings").unwrap(), config);
    let mut other = config.clone();
    other.schema.columns[1].shape = vec![2, 3];
    assert!(other.goes_on(&config).unwrap_err().contains("shape: [2, 3]"), "it is another table");
}

#[test]
fn tokens_have_the_bytes_of_their_shape() {
    let append = |segment| Append { segment, ..whole(Hold { group: 1, attempt: 1 }, 0, 0, 0) };
    let check = |segment| Change::Append(append(segment)).check(&wide());
    let mut short = Segment::clone(&part(1, 2));
    short.bytes.pop();
    let got = check(Arc::new(short));
    let Err(ChangeError::Value { expected, got, .. }) = got else { panic!("{got:?}") };
    assert_eq!((&*expected, &*got), ("18, for 2 tokens", "17"));
}

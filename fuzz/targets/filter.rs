//! The parser of filters, and what they say of a group. The text ends at the first byte 0; each byte
//! after it is an item's number.
#![no_main]

use echoic_replay::rollouts::filter::Filter;
use libfuzzer_sys::fuzz_target;

/// Numbers that are not what they seem.
const ODD: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];

/// More would only take time.
const MOST_ITEMS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, numbers) = bytes.split_at(end);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.position), "{error}");
            assert!(error.to_string().len() < 1000, "{error}");
            return;
        }
    };
    let canonical = filter.to_string();
    let again = Filter::parse(&canonical).expect("what is written out can be read");
    assert_eq!(again, filter, "{canonical}");
    assert_eq!(again.to_string(), canonical, "one filter has one form");

    let fields: Vec<&str> = filter.fields().collect();
    if !fields.is_empty() {
        assert!(filter.bind(&[]).is_err(), "there are no fields");
    }
    let bound = filter.bind(&fields).expect("all fields are there");
    let numbers = &numbers[..numbers.len().min(MOST_ITEMS)];
    let value = |field: usize, item: usize| match numbers[item] {
        odd @ 0xF0.. => ODD[usize::from(odd) % ODD.len()],
        byte => f64::from(byte) - 8.0 * field as f64,
    };
    let kept = bound.keeps(numbers.len(), value);
    // Conditions only take groups away.
    let more = Filter::parse(&format!("{canonical} and count() < 0"));
    if let Ok(more) = more {
        assert!(!more.bind(&fields).expect("the same fields").keeps(numbers.len(), value));
    }
    let twice = Filter::parse(&format!("{canonical} and {canonical}"));
    if let Ok(twice) = twice {
        let twice = twice.bind(&fields).expect("the same fields");
        assert_eq!(twice.keeps(numbers.len(), value), kept, "{canonical}");
    }
});

//! The parser of filters, and what they say of a group. The text ends at the first byte 0; each byte
//! after it is an item's number.
#![no_main]

use echoic_replay::rollouts::filter::Expression;
use libfuzzer_sys::fuzz_target;

/// Numbers that are not what they seem.
const ODD: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];

/// More would only take time.
const MOST_ITEMS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, numbers) = bytes.split_at(end);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.position), "{error}");
            // A name is said three times at most.
            assert!(error.to_string().len() < 1000 + 3 * text.len(), "{error}");
            return;
        }
    };
    let canonical = expression.to_string();
    let again = Expression::parse(&canonical).expect("what is written out can be read");
    assert_eq!(again, expression, "{canonical}");
    assert_eq!(again.to_string(), canonical, "one expression has one form");

    let fields: Vec<&str> = expression.fields().collect();
    if let [.., last] = fields.as_slice() {
        assert!(expression.bind(&fields[..fields.len() - 1]).is_err(), "there is no {last}");
    }
    let bound = expression.bind(&fields).expect("all fields are there");
    let numbers = &numbers[..numbers.len().min(MOST_ITEMS)];
    let value = |field: usize, item: usize| match numbers[item] {
        odd @ 0xF0.. => ODD[usize::from(odd) % ODD.len()],
        byte => f64::from(byte) - 8.0 * field as f64,
    };
    let kept = bound.keeps(numbers.len(), value);
    let opposite = Expression::parse(&format!("not ({canonical})"));
    if let Ok(opposite) = opposite {
        let opposite = opposite.bind(&fields).expect("it has the same fields");
        assert_ne!(opposite.keeps(numbers.len(), value), kept, "{canonical}");
    }
});

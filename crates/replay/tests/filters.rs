//! Filters of groups: what they keep, as a plain evaluator says it, and every way to get one wrong.

use echoic_replay::rollouts::filter::{Filter, FilterError, MAX_CONDITIONS, MAX_LENGTH};
use proptest::prelude::*;

const FIELDS: [&str; 3] = ["reward", "length", "scores/exact match"];

/// Whether a group with these rewards is kept.
fn keeps(text: &str, rewards: &[f64]) -> bool {
    let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let bound = filter.bind(&FIELDS).unwrap();
    bound.keeps(rewards.len(), |_, item| rewards[item])
}

/// Filters, and whether they keep a group.
type Cases<'a> = &'a [(&'a str, bool)];

/// As numpy has them, except that a group of no items has a count and a sum alone, and that the mean of equal
/// numbers is that number.
#[test]
fn aggregates_are_these() {
    assert!([0.1; 3].iter().sum::<f64>() / 3.0 > 0.1, "the plain mean is another");
    let cases: [(&[f64], Cases<'_>); 7] = [
        (
            &[3.0, -1.0, 4.0, 2.0],
            &[
                ("min(reward) == -1 and max(reward) == 4", true),
                ("mean(reward) == 2 and sum(reward) == 8 and count() == 4", true),
                ("spread(reward) == 5 and std(reward) > 1.8708 and std(reward) < 1.8709", true),
                ("min(reward) > -1", false),
                ("max(reward) >= 4 and min(reward) != -1", false),
            ],
        ),
        (&[0.1; 3], &[("mean(reward) == 0.1 and std(reward) == 0 and spread(reward) == 0", true)]),
        (&[1.0, f64::INFINITY], &[("mean(reward) > 1e308", true)]),
        (&[f64::INFINITY, 1.0], &[("mean(reward) > 1e308", true)]),
        (&[f64::INFINITY, f64::NEG_INFINITY], &[("mean(reward) != 0", false)]),
        (&[1e308, -1e308], &[("mean(reward) == 0", true)]),
        (
            &[],
            &[
                ("count() == 0 and sum(reward) == 0", true),
                ("spread(reward) >= 0", false),
                ("mean(reward) != 0", false),
                ("min(reward) < 1", false),
            ],
        ),
    ];
    for (rewards, cases) in cases {
        for (text, expected) in cases {
            assert_eq!(keeps(text, rewards), *expected, "{text} of {rewards:?}");
        }
    }
}

#[test]
fn a_bound_filter_asks_for_the_fields_it_names() {
    let filter = Filter::parse("max(\"scores/exact match\") > 0 and mean(length) < 3").unwrap();
    let bound = filter.bind(&FIELDS).unwrap();
    assert!(bound.keeps(2, |field, item| match (field, item) {
        (1, _) => 2.0,
        (2, 0) => 0.0,
        (2, 1) => 1.0,
        asked => panic!("{asked:?} is in no aggregate"),
    }));
}

#[test]
fn text_becomes_canonical() {
    for (text, canonical) in [
        (" mean( reward )>1.50", "mean(reward) > 1.5"),
        ("count( )==1.0and sum(a)<-.5", "count() == 1 and sum(a) < -0.5"),
        ("min(a)<1e3 and min(a)<1e21", "min(a) < 1000 and min(a) < 1e21"),
        ("sum(\"reward\")>+1E-3", "sum(reward) > 0.001"),
        ("sum(\"a b\")!=0", "sum(\"a b\") != 0"),
        (
            "sum(and)>0 and sum(min)>0 and sum(a.b)>0",
            "sum(and) > 0 and sum(min) > 0 and sum(a.b) > 0",
        ),
        ("sum(\"\")>-0 and std(größe_1)>0", "sum(\"\") > -0 and std(größe_1) > 0"),
    ] {
        let filter = Filter::parse(text).unwrap();
        assert_eq!(filter.to_string(), canonical);
        assert_eq!(Filter::parse(canonical).unwrap(), filter);
    }
}

#[track_caller]
fn refused(text: &str) -> FilterError {
    match Filter::parse(text) {
        Ok(filter) => panic!("{text} is {filter}"),
        Err(error) => error,
    }
}

#[test]
fn errors_say_where_what_was_expected_and_what_came() {
    const AGGREGATE: &str = "min, max, mean, sum, std, spread or count";
    const COMPARISON: &str = "<, <=, >, >=, == or !=";
    for (text, position, expected, got) in [
        ("", 1, AGGREGATE, "the end"),
        ("reward > 0", 1, AGGREGATE, "`reward`"),
        ("not max(a) > 0", 1, AGGREGATE, "`not`"),
        ("0 < max(a)", 1, AGGREGATE, "`0`"),
        ("any(reward > 0)", 1, AGGREGATE, "`any`"),
        ("max reward > 0", 5, "`(`", "`reward`"),
        ("max() > 0", 5, "a field", "`)`"),
        ("max('a') > 0", 5, "a field", "`'`"),
        ("max(\"a) > 0", 5, "a name and `\"`", "`\"`"),
        ("max(a > 0)", 7, "`)`", "`>`"),
        ("count(a) > 0", 7, "`)`", "`a`"),
        ("mean(reward)", 13, COMPARISON, "the end"),
        ("count() = 2", 9, COMPARISON, "`=`"),
        ("größe", 1, AGGREGATE, "`größe`"),
        ("max(größe) < $", 14, "a finite number", "`$`"),
        ("max(a) > and", 10, "a finite number", "`and`"),
        ("max(a) > b", 10, "a finite number", "`b`"),
        ("max(a) > nan", 10, "a finite number", "`nan`"),
        ("max(a) > 1e999", 10, "a finite number", "`1e999`"),
        ("max(a) > 1e", 10, "a finite number", "`1e`"),
        ("max(a) > 1.2.3", 10, "a finite number", "`1.2.3`"),
        ("max(a) > 1 or max(b) > 2", 12, "`and` or the end", "`or`"),
        ("max(a) > 1 && max(b) > 2", 12, "`and` or the end", "`&`"),
        ("max(a) > 1 + 2", 12, "`and` or the end", "`+`"),
        ("max(a) > 1 and", 15, AGGREGATE, "the end"),
    ] {
        let message = format!("at character {position}: expected {expected}, got {got}");
        assert_eq!(refused(text).to_string(), message, "{text}");
    }
}

#[test]
fn an_unknown_field_is_named_beside_those_that_there_are() {
    let filter = Filter::parse("mean(length) > 0 and max(rewards) > 0").unwrap();
    let error = |fields: &[&str]| filter.bind(fields).unwrap_err().to_string();
    assert_eq!(
        error(&FIELDS),
        "at character 26: there is no field `rewards`; the fields are: `reward`, `length`, \
         `scores/exact match`"
    );
    let error = error(&["length"].repeat(100));
    assert!(error.ends_with("`length`, 68 more"), "{error}");
}

#[test]
fn what_is_too_long_is_refused() {
    let of_length = |length: usize| format!("min(a) <{}2", " ".repeat(length - 9));
    assert!(Filter::parse(&of_length(MAX_LENGTH)).is_ok());
    let expected = |got: usize| {
        format!(
            "at character 1: expected at most {MAX_LENGTH} bytes when it is written out, got {got}"
        )
    };
    assert_eq!(refused(&of_length(MAX_LENGTH + 1)).to_string(), expected(MAX_LENGTH + 1));
    // Short as it is given, but long when it is written out.
    let terse = format!("min({})<1e9", "a".repeat(MAX_LENGTH - 9));
    assert_eq!(refused(&terse).to_string(), expected(MAX_LENGTH - 9 + 18));
}

#[test]
fn there_may_be_so_many_conditions() {
    let conditions = |count: usize| vec!["max(reward) > 0"; count].join(" and ");
    assert!(keeps(&conditions(MAX_CONDITIONS), &[1.0]));
    let error = refused(&conditions(MAX_CONDITIONS + 1)).to_string();
    assert!(error.ends_with("expected at most 16 conditions, got `and`"), "{error}");
}

type Group = Vec<[f64; 3]>;
type Condition = (&'static str, usize, &'static str, f64);

fn evaluate((aggregate, field, comparison, number): &Condition, group: &Group) -> bool {
    let numbers: Vec<f64> = group.iter().map(|item| item[*field]).collect();
    let unknown = numbers.is_empty() || numbers.iter().any(|number| number.is_nan());
    let sum = numbers.iter().fold(0.0, |sum, number| sum + number);
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let got = match *aggregate {
        "count" => numbers.len() as f64,
        "sum" => sum,
        _ if unknown => f64::NAN,
        "min" => low,
        "max" => high,
        "spread" => high - low,
        "mean" => mean(&numbers),
        _ => {
            let mean = mean(&numbers);
            let squares: f64 = numbers.iter().map(|x| (x - mean) * (x - mean)).sum();
            (squares / numbers.len() as f64).sqrt()
        }
    };
    match *comparison {
        _ if got.is_nan() => false,
        "<" => got < *number,
        "<=" => got <= *number,
        ">" => got > *number,
        ">=" => got >= *number,
        "==" => got == *number,
        _ => got != *number,
    }
}

/// In the order that the documentation of the mean promises, since equality shows every bit.
fn mean(numbers: &[f64]) -> f64 {
    let above = numbers.iter().fold(0.0, |sum, number| sum + (number - numbers[0]));
    let mean = numbers[0] + above / numbers.len() as f64;
    let plain = numbers.iter().fold(0.0, |sum, number| sum + number) / numbers.len() as f64;
    if mean.is_finite() { mean } else { plain }
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let aggregate =
        prop::sample::select(&["min", "max", "mean", "sum", "std", "spread", "count"][..]);
    let comparison = prop::sample::select(&["<", "<=", ">", ">=", "==", "!="][..]);
    // Halves, so that many are equal.
    let number = (-9i8..18).prop_map(|halves| f64::from(halves) / 2.0);
    prop::collection::vec((aggregate, 0usize..3, comparison, number), 1..4)
}

fn groups() -> impl Strategy<Value = Group> {
    let number = prop_oneof![
        12 => (-4i8..9).prop_map(|halves| f64::from(halves) / 2.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
    ];
    prop::collection::vec([number.clone(), number.clone(), number], 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_group_is_kept_as_the_plain_evaluator_says(
        conditions in conditions(),
        groups in prop::collection::vec(groups(), 4),
    ) {
        let text: Vec<String> = conditions
            .iter()
            .map(|(aggregate, field, comparison, number)| {
                let field = if *aggregate == "count" { "" } else { FIELDS[*field] };
                let quote = if field.contains('/') { "\"" } else { "" };
                format!("{aggregate}({quote}{field}{quote}){comparison}{number:?}")
            })
            .collect();
        let text = text.join(" and ");
        let filter = Filter::parse(&text).unwrap();
        prop_assert_eq!(&Filter::parse(&filter.to_string()).unwrap(), &filter);
        let bound = filter.bind(&FIELDS).unwrap();
        for group in groups {
            let got = bound.keeps(group.len(), |field, item| group[item][field]);
            let expected = conditions.iter().all(|condition| evaluate(condition, &group));
            prop_assert_eq!(got, expected, "{} of {:?}", text, group);
        }
    }

    #[test]
    fn words_in_any_order_are_read_or_refused(
        words in prop::collection::vec(
            prop::sample::select(&[
                "mean", "min", "count", "(", ")", "reward", "1", "2.5", "and", "<", "==", "-", "+", "\"",
                "=", "é", "1e9", ".", "max(reward) > 1",
            ][..]),
            0..24,
        ),
        spaced in any::<bool>(),
    ) {
        let text = words.join(if spaced { " " } else { "" });
        match Filter::parse(&text) {
            Ok(filter) => prop_assert_eq!(Filter::parse(&filter.to_string()), Ok(filter)),
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.position)),
        }
    }
}

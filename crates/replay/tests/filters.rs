//! Filters of groups: what they keep, as a plain evaluator says it, and every way to get one wrong.

use echoic_replay::rollouts::filter::{
    Expression, ExpressionError, MAX_AGGREGATES, MAX_DEPTH, MAX_LENGTH, Problem,
};
use proptest::prelude::*;

const FIELDS: [&str; 3] = ["reward", "length", "scores/exact match"];

/// Whether a group with these rewards, which are also the lengths, is kept.
fn keeps(text: &str, rewards: &[f64]) -> bool {
    let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let bound = expression.bind(&FIELDS).unwrap();
    bound.keeps(rewards.len(), |_, item| rewards[item])
}

#[track_caller]
fn check_all(cases: &[(&str, bool)], rewards: &[f64]) {
    for (text, expected) in cases {
        assert_eq!(keeps(text, rewards), *expected, "{text}");
    }
}

#[test]
fn operators_bind_as_in_python() {
    let cases = [
        ("1 + 2 * 3 == 7", true),
        ("(1 + 2) * 3 == 9", true),
        ("10 - 4 - 3 == 3", true),
        ("16 / 4 / 2 == 2", true),
        ("7 % 4 * 2 == 6", true),
        ("-7 % 4 == 1", true),
        ("-(7 % 4) == -3", true),
        ("2 - -3 == 5", true),
        ("not 1 > 2 and 2 > 1", true),
        ("not (1 > 2 or 2 > 1)", false),
        ("2 > 1 or 2 > 1 and 1 > 2", true),
        ("(2 > 1 or 2 > 1) and 1 > 2", false),
        ("not not 2 > 1", true),
        ("abs(-2) + min(1, 2) + max(1, 2) == 5", true),
        (".5 + 1. + 1e-1 + 1E+1 == 11.6", true),
    ];
    check_all(&cases, &[]);
}

#[test]
fn aggregates_look_at_every_item() {
    let cases = [
        ("min(reward) == 0 and max(reward) == 4", true),
        ("mean(reward) == 2 and sum(reward) == 8 and count() == 4", true),
        ("spread(reward) == 4 and std(reward) * std(reward) > 2.49", true),
        ("count(reward > 1) == 2 and any(reward > 3) and not all(reward > 0)", true),
        ("mean(reward * 2 + 1) == 5", true),
        ("max(min(reward), 1) == 1", true),
        ("sum(max(reward, 1)) == 9", true),
    ];
    check_all(&cases, &[0.0, 1.0, 3.0, 4.0]);
}

#[test]
fn an_aggregate_in_another_is_of_the_whole_group() {
    assert!(keeps("any(reward > 1.5 * mean(reward))", &[1.0, 1.0, 4.0]));
    assert!(!keeps("any(reward > 2 * mean(reward))", &[1.0, 1.0, 1.0]));
    assert!(keeps("count(reward == max(reward)) == 2", &[4.0, 1.0, 4.0]));
}

#[test]
fn comparisons_with_a_nan_are_false() {
    for operator in ["<", "<=", ">", ">=", "==", "!="] {
        let text = format!("mean(reward) {operator} 1");
        assert!(!keeps(&text, &[f64::NAN, 1.0]), "{text}");
        assert!(keeps(&format!("not {text}"), &[f64::NAN, 1.0]), "not {text}");
        assert!(!keeps(&format!("0 / 0 {operator} 0 / 0"), &[]));
    }
    assert!(!keeps("spread(reward) > 0", &[f64::NAN, 0.0, 1.0]));
    assert!(keeps("count(reward == reward) == 1", &[f64::NAN, 1.0]));
}

#[test]
fn of_zeros_with_different_signs_the_right_one_is_the_least_and_the_most() {
    let cases = [
        ("1 / min(0, -0) < 0", true),
        ("1 / min(-0, 0) > 0", true),
        ("1 / max(0, -0) < 0", true),
        ("1 / max(-0, 0) > 0", true),
        ("1 / min(reward) < 0 and 1 / max(reward) < 0", true),
    ];
    check_all(&cases, &[0.0, -0.0]);
}

#[test]
fn a_group_of_no_items_has_no_spread() {
    let cases = [
        ("count() == 0 and sum(reward) == 0", true),
        ("all(reward > 0) and not any(reward > 0)", true),
        ("spread(reward) >= 0", false),
        ("mean(reward) != 0", false),
    ];
    check_all(&cases, &[]);
}

#[test]
fn a_bound_expression_asks_for_the_fields_it_names() {
    let expression = Expression::parse(
        "any(\"scores/exact match\" > 0) and mean(length) < 3 and sum(length) > 0",
    )
    .unwrap();
    assert_eq!(expression.fields().collect::<Vec<_>>(), ["scores/exact match", "length"]);
    let bound = expression.bind(&FIELDS).unwrap();
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
        ("( (mean(reward))>1 )", "mean(reward) > 1"),
        ("not(any(reward>0))", "not any(reward > 0)"),
        ("not(1<2 and 2<3)", "not (1 < 2 and 2 < 3)"),
        ("1<2 and(2<3 and 3<4)", "1 < 2 and (2 < 3 and 3 < 4)"),
        ("(1<2 or 2<3)and 3<4", "(1 < 2 or 2 < 3) and 3 < 4"),
        ("1-(2-3)*4>-(5+6)", "1 - (2 - 3) * 4 > -(5 + 6)"),
        ("(1*2)+3>- -4", "1 * 2 + 3 > --4"),
        ("min(1,2)>max(reward)", "min(1, 2) > max(reward)"),
        ("count( )==1.50", "count() == 1.5"),
        ("1e3<1e21", "1000 < 1e21"),
        ("sum(\"reward\")>sum(\"a b\")", "sum(reward) > sum(\"a b\")"),
        ("sum(\"and\")>sum(min)+sum(a.b)", "sum(\"and\") > sum(min) + sum(a.b)"),
        ("sum(\"\")>sum(größe_1)", "sum(\"\") > sum(größe_1)"),
    ] {
        let expression = Expression::parse(text).unwrap();
        assert_eq!(expression.to_string(), canonical);
        assert_eq!(Expression::parse(canonical).unwrap(), expression);
    }
}

#[track_caller]
fn refused(text: &str) -> ExpressionError {
    match Expression::parse(text) {
        Ok(expression) => panic!("{text} is {expression}"),
        Err(error) => error,
    }
}

#[test]
fn errors_say_where_what_was_expected_and_what_came() {
    for (text, message) in [
        ("", "at character 1: expected a number, a field or `(`, got the end"),
        ("mean(reward) >", "at character 15: expected a number, a field or `(`, got the end"),
        ("mean(reward) > and", "at character 16: expected a number, a field or `(`, got `and`"),
        ("mean(reward > 1", "at character 16: expected an operator, `,` or `)`, got the end"),
        ("(1 < 2 3", "at character 8: expected an operator or `)`, got `3`"),
        ("1 < 2)", "at character 6: expected an operator or the end, got `)`"),
        ("1 < 2x", "at character 6: expected an operator or the end, got `x`"),
        ("1 < 1e", "at character 6: expected an operator or the end, got `e`"),
        ("1 < 1.2.3", "at character 8: expected an operator or the end, got `.3`"),
        ("größe < $", "at character 9: `$` means nothing here"),
        ("1 < 2 && 2 < 3", "at character 7: `&` means nothing here: write `and`"),
        ("1 < 2 || 2 < 3", "at character 7: `|` means nothing here: write `or`"),
        ("!(1 < 2)", "at character 1: `!` means nothing here: write `not`, or `!=`"),
        ("count() = 2", "at character 9: `=` means nothing here: write `==`"),
        ("sum('a') > 2", "at character 5: `'` means nothing here: write names in double quotes"),
        ("sum(\"a) > 2", "at character 5: the name in quotes that begins here does not end"),
        ("count() < 1e999", "at character 11: the number 1e999 is too large"),
        (
            "mean(reward)",
            "at character 1: a filter takes a condition, but `mean(reward)` is a number: compare it, as \
             in `mean(reward) > 0`",
        ),
        (
            "1 < 2 and count()",
            "at character 11: `and` takes a condition, but `count()` is a number: compare it, as in \
             `count() > 0`",
        ),
        (
            "not sum(reward)",
            "at character 5: `not` takes a condition, but `sum(reward)` is a number: compare it, as in \
             `sum(reward) > 0`",
        ),
        (
            "any(reward)",
            "at character 5: any() takes a condition, but `reward` is a number: compare it, as in \
             `reward > 0`",
        ),
        (
            "mean(reward > 0) > 0.5",
            "at character 6: mean() takes a number, but `reward > 0` is a condition: count(...) of it is \
             a number",
        ),
        (
            "1 + (1 < 2) > 0",
            "at character 5: `+` takes a number, but `(1 < 2)` is a condition: count(...) of it is a \
             number",
        ),
        (
            "abs(1 < 2) > 0",
            "at character 5: abs() takes a number, but `1 < 2` is a condition: count(...) of it is a \
             number",
        ),
        (
            "-(1 < 2) > 0",
            "at character 2: `-` takes a number, but `(1 < 2)` is a condition: count(...) of it is a \
             number",
        ),
        (
            "0 < 1 < 2",
            "at character 7: comparisons do not chain: write `a < b and b < c` for `a < b < c`",
        ),
        (
            "count() > 1 and reward > 0",
            "at character 17: `reward` is a field of each item and stands in no aggregate: write \
             mean(reward), or any(reward > 0)",
        ),
        (
            "min(1, reward) > mean(reward)",
            "at character 8: `reward` is a field of each item and stands in no aggregate: write \
             mean(reward), or any(reward > 0)",
        ),
        (
            "len(reward) > 1",
            "at character 1: there is no function len(): there are abs, all, any, count, max, mean, min, \
             spread, std and sum",
        ),
        ("mean() > 1", "at character 1: mean() takes 1 argument, got 0"),
        ("1 < abs(1, 2)", "at character 5: abs() takes 1 argument, got 2"),
        ("count(1 < 2, 3) > 1", "at character 1: count() takes no argument or a condition, got 2"),
        (
            "min(1, 2, 3) > 1",
            "at character 1: min() takes 1 argument (of all items) or 2 numbers, got 3",
        ),
    ] {
        assert_eq!(refused(text).to_string(), message, "{text}");
    }
}

#[test]
fn an_unknown_field_is_named_beside_those_that_there_are() {
    let expression = Expression::parse("mean(length) > 0 and any(rewards > 0)").unwrap();
    let error = |fields: &[&str]| expression.bind(fields).unwrap_err().to_string();
    assert_eq!(
        error(&FIELDS),
        "at character 26: there is no field `rewards`: there are `reward`, `length` and \
         `scores/exact match`"
    );
    let start = "at character 26: there is no field `rewards`: there";
    assert_eq!(error(&["length"]), format!("{start} is `length`"));
    let error = error(&["length"].repeat(100));
    assert!(error.ends_with("`length` and 68 more"), "{error}");
    let error = expression.bind(&[]).unwrap_err().to_string();
    assert_eq!(error, "at character 6: there is no field `length`: there are none");
}

#[test]
fn what_is_too_long_is_refused() {
    let of_length = |length: usize| format!("1 <{}2", " ".repeat(length - 4));
    assert!(Expression::parse(&of_length(MAX_LENGTH)).is_ok());
    let problem = refused(&of_length(MAX_LENGTH + 1)).problem;
    assert_eq!(problem, Problem::TooLong { length: MAX_LENGTH + 1 });
    // Short as it is given, but long when it is written out.
    let terse = format!("1<2{}", "+1e9".repeat(1000));
    let problem = refused(&terse).problem;
    assert_eq!(problem, Problem::TooLong { length: 5 + 13 * 1000 });
}

#[test]
fn what_is_nested_too_deep_is_refused_where_it_is() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, inner, close) in
        [("(", "1 < 2", ")"), ("not ", "1 < 2", ""), ("abs(", "1", ")"), ("-", "1", "")]
    {
        let end = if inner == "1" { " > 0" } else { "" };
        let fits = nested(open, inner, close, MAX_DEPTH) + end;
        assert!(Expression::parse(&fits).is_ok(), "{open}");
        let error = refused(&(nested(open, inner, close, MAX_DEPTH + 1) + end));
        assert_eq!(error.problem, Problem::TooDeep, "{open}");
        assert_eq!(error.position, MAX_DEPTH * open.len() + 1, "{open}");
    }
    // Two numbers wait at each parenthesis.
    let waiting = format!("0 < {}", nested("1 + 2 * (", "3", ")", MAX_DEPTH / 2));
    assert_eq!(refused(&waiting).problem, Problem::TooDeep);
    // A chain is as long as it likes.
    let chain = format!("0 < 1{}", " + 1".repeat(1000));
    assert!(keeps(&chain, &[]));
}

#[test]
fn there_may_be_so_many_aggregates() {
    let sums = |count: usize| {
        let sums: Vec<_> = (0..count).map(|at| format!("sum({at})")).collect();
        format!("0 < {}", sums.join(" + "))
    };
    assert!(keeps(&sums(MAX_AGGREGATES), &[1.0]));
    assert_eq!(refused(&sums(MAX_AGGREGATES + 1)).problem, Problem::TooManyAggregates);
    // One that is written often is one.
    assert!(keeps(&format!("0 < {}", vec!["sum(reward)"; 200].join(" + ")), &[1.0]));
}

/// An expression as a tree, which is evaluated as it is read.
#[derive(Debug, Clone)]
enum Tree {
    Number(f64),
    Field(usize),
    /// A sign or a function before one, or an operator between two.
    Before(&'static str, Box<Tree>),
    Between(Box<Tree>, &'static str, Box<Tree>),
    OfTwo(&'static str, Box<Tree>, Box<Tree>),
    /// Of all items.
    Over(&'static str, Option<Box<Tree>>),
}

/// With all parentheses, and more where `extra` says so.
fn write(tree: &Tree, extra: bool, out: &mut String) {
    let part = |tree: &Tree| {
        let mut out = String::new();
        write(tree, !extra, &mut out);
        out
    };
    let text = match tree {
        Tree::Number(number) => format!("{number:?}"),
        Tree::Field(field) if *field == 2 => format!("\"{}\"", FIELDS[2]),
        Tree::Field(field) => FIELDS[*field].to_owned(),
        Tree::Before("abs", of) => format!("abs({})", part(of)),
        Tree::Before(symbol, of) => format!("{symbol} ({})", part(of)),
        Tree::Between(left, symbol, right) => format!("({}){symbol}({})", part(left), part(right)),
        Tree::OfTwo(name, left, right) => format!("{name}({} ,{})", part(left), part(right)),
        Tree::Over(name, None) => format!("{name}( )"),
        Tree::Over(name, Some(of)) => format!("{name}({})", part(of)),
    };
    out.push_str(&if extra { format!("( {text})") } else { text });
}

type Group = Vec<[f64; 3]>;

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// The number of a tree, or 1 for a condition that holds.
fn evaluate(tree: &Tree, group: &Group, item: Option<usize>) -> f64 {
    let of = |tree: &Tree| evaluate(tree, group, item);
    let either_nan = |a: f64, b: f64| a.is_nan() || b.is_nan();
    match tree {
        Tree::Number(number) => *number,
        Tree::Field(field) => group[item.expect("in an aggregate")][*field],
        Tree::Before("-", a) => -of(a),
        Tree::Before("abs", a) => of(a).abs(),
        Tree::Before(_, a) => truth(of(a) == 0.0),
        Tree::Between(a, symbol, b) => {
            let (a, b) = (of(a), of(b));
            match *symbol {
                "+" => a + b,
                "-" => a - b,
                "*" => a * b,
                "/" => a / b,
                "%" => {
                    let rest = a % b;
                    if rest * b < 0.0 { rest + b } else { rest }
                }
                " and " => truth(a == 1.0 && b == 1.0),
                " or " => truth(a == 1.0 || b == 1.0),
                _ if either_nan(a, b) => 0.0,
                "<" => truth(a < b),
                "<=" => truth(a <= b),
                ">" => truth(a > b),
                ">=" => truth(a >= b),
                "==" => truth(a == b),
                _ => truth(a != b),
            }
        }
        Tree::OfTwo(name, a, b) => match (of(a), of(b)) {
            (a, b) if either_nan(a, b) => f64::NAN,
            (a, b) if *name == "min" => least(a, b),
            (a, b) => most(a, b),
        },
        Tree::Over(_, None) => group.len() as f64,
        Tree::Over(name, Some(of)) => {
            let numbers: Vec<f64> =
                (0..group.len()).map(|item| evaluate(of, group, Some(item))).collect();
            over(name, &numbers)
        }
    }
}

/// Of equal ones the right one: zeros are equal whatever their signs, and one that is divided by shows its sign.
fn least(left: f64, right: f64) -> f64 {
    if left < right { left } else { right }
}

fn most(left: f64, right: f64) -> f64 {
    if left > right { left } else { right }
}

fn over(name: &str, numbers: &[f64]) -> f64 {
    let holding = numbers.iter().filter(|number| **number == 1.0).count();
    let unknown = numbers.is_empty() || numbers.iter().any(|number| number.is_nan());
    let low = numbers.iter().copied().fold(f64::INFINITY, least);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, most);
    match name {
        "count" => holding as f64,
        "any" => truth(holding > 0),
        "all" => truth(holding == numbers.len()),
        "sum" => numbers.iter().fold(0.0, |sum, number| sum + number),
        _ if unknown => f64::NAN,
        "min" => low,
        "max" => high,
        "spread" => high - low,
        "mean" => mean(numbers),
        _ => {
            let mean = mean(numbers);
            let squares = numbers.iter().fold(0.0, |sum, x| sum + (x - mean) * (x - mean));
            (squares / numbers.len() as f64).sqrt()
        }
    }
}

/// In the order that the documentation of the mean promises, since equality shows every bit.
fn mean(numbers: &[f64]) -> f64 {
    let above = numbers.iter().fold(0.0, |sum, number| sum + (number - numbers[0]));
    let mean = numbers[0] + above / numbers.len() as f64;
    let plain = numbers.iter().fold(0.0, |sum, number| sum + number) / numbers.len() as f64;
    if mean.is_finite() { mean } else { plain }
}

const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "==", "!="];
const AGGREGATES: [&str; 6] = ["min", "max", "mean", "sum", "std", "spread"];

/// Numbers, of an item or of the group; numbers are halves, so that many are equal.
fn numbers(depth: u32, in_item: bool) -> BoxedStrategy<Tree> {
    let number = (0u8..9).prop_map(|halves| Tree::Number(f64::from(halves) / 2.0)).boxed();
    let leaf = if in_item {
        prop_oneof![number, (0usize..3).prop_map(Tree::Field)].boxed()
    } else {
        number
    };
    if depth == 0 {
        return leaf;
    }
    let boxed = |in_item| numbers(depth - 1, in_item).prop_map(Box::new);
    let condition = conditions(depth - 1, true).prop_map(Box::new);
    let operator = prop::sample::select(&["+", "-", "*", "/", "%"][..]);
    prop_oneof![
        leaf,
        (prop::sample::select(&["-", "abs"][..]), boxed(in_item))
            .prop_map(|(symbol, of)| Tree::Before(symbol, of)),
        (boxed(in_item), operator, boxed(in_item))
            .prop_map(|(left, symbol, right)| Tree::Between(left, symbol, right)),
        (prop::sample::select(&["min", "max"][..]), boxed(in_item), boxed(in_item))
            .prop_map(|(name, left, right)| Tree::OfTwo(name, left, right)),
        (prop::sample::select(&AGGREGATES[..]), boxed(true))
            .prop_map(|(name, of)| Tree::Over(name, Some(of))),
        condition.prop_map(|of| Tree::Over("count", Some(of))),
        Just(Tree::Over("count", None)),
    ]
    .boxed()
}

fn conditions(depth: u32, in_item: bool) -> BoxedStrategy<Tree> {
    let number = || numbers(depth, in_item).prop_map(Box::new);
    let comparison = (number(), prop::sample::select(&COMPARISONS[..]), number())
        .prop_map(|(left, symbol, right)| Tree::Between(left, symbol, right));
    if depth == 0 {
        return comparison.boxed();
    }
    let boxed = |in_item| conditions(depth - 1, in_item).prop_map(Box::new);
    prop_oneof![
        2 => comparison,
        1 => boxed(in_item).prop_map(|of| Tree::Before("not", of)),
        1 => (boxed(in_item), prop::sample::select(&[" and ", " or "][..]), boxed(in_item))
            .prop_map(|(left, symbol, right)| Tree::Between(left, symbol, right)),
        1 => (prop::sample::select(&["any", "all"][..]), boxed(true))
            .prop_map(|(name, of)| Tree::Over(name, Some(of))),
    ]
    .boxed()
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
        tree in conditions(3, false),
        groups in prop::collection::vec(groups(), 4),
    ) {
        let mut text = String::new();
        write(&tree, false, &mut text);
        prop_assume!(text.len() <= MAX_LENGTH);
        let expression = Expression::parse(&text).unwrap();
        let canonical = expression.to_string();
        prop_assert!(canonical.len() <= text.len());
        let again = Expression::parse(&canonical).unwrap();
        prop_assert_eq!(&again, &expression);
        prop_assert_eq!(again.to_string(), canonical);
        let bound = expression.bind(&FIELDS).unwrap();
        for group in groups {
            let got = bound.keeps(group.len(), |field, item| group[item][field]);
            prop_assert_eq!(got, evaluate(&tree, &group, None) == 1.0, "{} of {:?}", text, group);
        }
    }

    #[test]
    fn words_in_any_order_are_read_or_refused(
        words in prop::collection::vec(
            prop::sample::select(&[
                "mean", "min", "count", "any", "(", ")", ",", "reward", "1", "2.5", "and", "or", "not",
                "<", "==", "-", "+", "\"", "=", "é", "1e9", ".",
            ][..]),
            0..24,
        ),
        spaced in any::<bool>(),
    ) {
        let text = words.join(if spaced { " " } else { "" });
        match Expression::parse(&text) {
            Ok(expression) => {
                prop_assert_eq!(Expression::parse(&expression.to_string()), Ok(expression));
            }
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.position)),
        }
    }
}

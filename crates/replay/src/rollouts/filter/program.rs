//! An expression as code for a stack of numbers.
//!
//! A postfix program needs no recursion, however long a chain of operators is, and a stack whose size is
//! known. Conditions are 1 and 0. Both sides of `and` and `or` are computed: nothing here has effects,
//! and nothing is an error.
//!
//! # Invariants
//!
//! 1. [`Code`] takes no number from an empty stack, never has more than [`MAX_DEPTH`] on it, and leaves
//!    one; but that of [`Over::Items`], which is empty and not run.
//! 2. The code of an aggregate uses the values of earlier ones only.

use super::{MAX_AGGREGATES, MAX_DEPTH};

/// What a group is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub aggregates: Vec<Aggregate>,
    pub code: Code,
}

/// One number of all items.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    pub over: Over,
    /// What is asked of each item.
    pub code: Code,
}

/// What is made of the items' numbers, or of their conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Min,
    Max,
    Mean,
    Sum,
    Std,
    Spread,
    Count,
    Any,
    All,
    /// How many there are.
    Items,
}

impl Over {
    const NAMES: [(&str, Self); 9] = [
        ("min", Self::Min),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("sum", Self::Sum),
        ("std", Self::Std),
        ("spread", Self::Spread),
        ("count", Self::Count),
        ("any", Self::Any),
        ("all", Self::All),
    ];

    /// What this name means with one argument.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, over)| over)
    }

    pub fn name(self) -> &'static str {
        let named = Self::NAMES.into_iter().find(|(_, over)| *over == self);
        named.map_or("count", |(name, _)| name)
    }

    /// Whether it looks at conditions.
    pub fn counts(self) -> bool {
        matches!(self, Self::Count | Self::Any | Self::All)
    }
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// Puts a number on the stack.
    Number(f64),
    /// Puts a field of the item there, by the number of its name.
    Field(usize),
    /// Puts the value of an aggregate there.
    Aggregate(usize),
    /// These change the number on top.
    Negate,
    Absolute,
    Not,
    /// Makes one number of two.
    Binary(Binary),
}

/// What is made of two numbers, of which the second is on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Least,
    Most,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

impl Binary {
    fn of(self, left: f64, right: f64) -> f64 {
        match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            Self::Remainder => remainder(left, right),
            Self::Least => least(left, right),
            Self::Most => -least(-left, -right),
            Self::Less => truth(left < right),
            Self::LessEqual => truth(left <= right),
            Self::Greater => truth(left > right),
            Self::GreaterEqual => truth(left >= right),
            Self::Equal => truth(left == right),
            // Not what IEEE 754 says: a comparison with a NaN is false.
            Self::NotEqual => truth(left != right && !left.is_nan() && !right.is_nan()),
            Self::And => truth(is_true(left) && is_true(right)),
            Self::Or => truth(is_true(left) || is_true(right)),
        }
    }
}

fn truth(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

fn is_true(condition: f64) -> bool {
    condition > 0.0
}

/// With the sign of the divisor, as in Python.
fn remainder(left: f64, right: f64) -> f64 {
    let rest = left % right;
    if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
}

/// The smaller one, of equal ones the right one (zeros are, whatever their signs), or NaN when one of them is.
fn least(left: f64, right: f64) -> f64 {
    if left.is_nan() || left < right { left } else { right }
}

/// Steps that leave one number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Code {
    ops: Vec<Op>,
}

impl Code {
    /// `None` when invariant 1 would not hold.
    pub fn new(ops: Vec<Op>) -> Option<Self> {
        let mut height = 0usize;
        for op in &ops {
            height = match op {
                Op::Number(_) | Op::Field(_) | Op::Aggregate(_) => height + 1,
                Op::Negate | Op::Absolute | Op::Not => height,
                Op::Binary(_) => height.checked_sub(1)?,
            };
            if height == 0 || height > MAX_DEPTH {
                return None;
            }
        }
        (height == 1).then_some(Self { ops })
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The number that it leaves.
    #[expect(clippy::indexing_slicing, reason = "by invariants 1 and 2 all indices are in range")]
    fn run(
        &self,
        stack: &mut [f64; MAX_DEPTH],
        aggregates: &[f64; MAX_AGGREGATES],
        field: impl Fn(usize) -> f64,
    ) -> f64 {
        let mut top = 0;
        for op in &self.ops {
            let pushed = match *op {
                Op::Number(number) => number,
                Op::Field(name) => field(name),
                Op::Aggregate(index) => aggregates[index],
                Op::Negate => {
                    stack[top - 1] = -stack[top - 1];
                    continue;
                }
                Op::Absolute => {
                    stack[top - 1] = stack[top - 1].abs();
                    continue;
                }
                Op::Not => {
                    stack[top - 1] = truth(!is_true(stack[top - 1]));
                    continue;
                }
                Op::Binary(operator) => {
                    top -= 1;
                    stack[top - 1] = operator.of(stack[top - 1], stack[top]);
                    continue;
                }
            };
            stack[top] = pushed;
            top += 1;
        }
        stack[0]
    }
}

impl Program {
    /// Whether the condition holds for a group of so many items.
    pub fn holds(&self, items: usize, value: impl Fn(usize, usize) -> f64) -> bool {
        let mut stack = [0.0; MAX_DEPTH];
        let mut values = [f64::NAN; MAX_AGGREGATES];
        for (at, Aggregate { over, code }) in self.aggregates.iter().enumerate() {
            let of = |item: usize| code.run(&mut stack, &values, |name| value(name, item));
            let result = of_items(*over, items, of);
            if let Some(slot) = values.get_mut(at) {
                *slot = result;
            }
        }
        is_true(self.code.run(&mut stack, &values, |_| f64::NAN))
    }
}

/// What is made of the numbers of items.
fn of_items(over: Over, items: usize, mut of: impl FnMut(usize) -> f64) -> f64 {
    match over {
        Over::Items => items as f64,
        Over::Count => (0..items).filter(|item| is_true(of(*item))).count() as f64,
        Over::Any => truth((0..items).any(|item| is_true(of(item)))),
        Over::All => truth((0..items).all(|item| is_true(of(item)))),
        // Not `sum`, by which nothing has a sum of -0.0.
        Over::Sum => (0..items).map(of).fold(0.0, |sum, number| sum + number),
        Over::Min | Over::Max | Over::Spread => {
            let mut bounds: Option<(f64, f64)> = None;
            for number in (0..items).map(of) {
                let (low, high) = bounds.unwrap_or((number, number));
                bounds = Some((least(low, number), -least(-high, -number)));
            }
            bounds.map_or(f64::NAN, |(low, high)| match over {
                Over::Min => low,
                Over::Max => high,
                _ => high - low,
            })
        }
        Over::Mean => mean(items, of),
        Over::Std => {
            let mean = mean(items, &mut of);
            let squares: f64 = (0..items).map(|item| (of(item) - mean).powi(2)).sum();
            (squares / items as f64).sqrt()
        }
    }
}

/// From the first number on, so that equal numbers have exactly that mean, and no spread: three times
/// 0.1, divided by three, is more than 0.1.
fn mean(items: usize, mut of: impl FnMut(usize) -> f64) -> f64 {
    if items == 0 {
        return f64::NAN;
    }
    let (first, count) = (of(0), items as f64);
    let (mut sum, mut above) = (0.0, 0.0);
    for number in (0..items).map(of) {
        sum += number;
        above += number - first;
    }
    let mean = first + above / count;
    // Of infinite numbers the difference is unknown, but not their mean.
    if mean.is_finite() { mean } else { sum / count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(over: Over, numbers: &[f64]) -> f64 {
        of_items(over, numbers.len(), |item| numbers[item])
    }

    #[test]
    fn equal_numbers_have_their_mean_and_no_spread() {
        let numbers = [0.1; 3];
        assert!(numbers.iter().sum::<f64>() / 3.0 > 0.1, "the plain mean is another");
        assert_eq!(of(Over::Mean, &numbers), 0.1);
        assert_eq!(of(Over::Std, &numbers), 0.0);
        assert_eq!(of(Over::Spread, &numbers), 0.0);
    }

    #[test]
    fn aggregates_are_those_of_numpy() {
        let numbers = [3.0, -1.0, 4.0, 2.0];
        let expected = [(Over::Min, -1.0), (Over::Max, 4.0), (Over::Mean, 2.0), (Over::Sum, 8.0)];
        for (over, expected) in expected {
            assert_eq!(of(over, &numbers), expected, "{over:?}");
        }
        assert_eq!(of(Over::Std, &numbers), 3.5f64.sqrt());
        assert_eq!(of(Over::Spread, &numbers), 5.0);
        assert_eq!(of(Over::Items, &numbers), 4.0);
    }

    #[test]
    fn a_nan_is_not_lost_wherever_it_stands() {
        let overs = [Over::Min, Over::Max, Over::Mean, Over::Sum, Over::Std, Over::Spread];
        for (over, at) in overs.into_iter().flat_map(|over| [0, 1, 2].map(|at| (over, at))) {
            let mut numbers = [1.0, 2.0, 3.0];
            numbers[at] = f64::NAN;
            assert!(of(over, &numbers).is_nan(), "{over:?} {at}");
        }
        for operator in [Binary::Least, Binary::Most, Binary::Remainder] {
            assert!(operator.of(f64::NAN, 1.0).is_nan() && operator.of(1.0, f64::NAN).is_nan());
        }
    }

    #[test]
    fn infinite_items_have_an_infinite_mean() {
        assert_eq!(of(Over::Mean, &[1.0, f64::INFINITY]), f64::INFINITY);
        assert_eq!(of(Over::Mean, &[f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(of(Over::Mean, &[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert_eq!(of(Over::Mean, &[1e308, -1e308]), 0.0);
    }

    #[test]
    fn nothing_has_no_mean() {
        for over in [Over::Min, Over::Max, Over::Mean, Over::Std, Over::Spread] {
            assert!(of(over, &[]).is_nan(), "{over:?}");
        }
        for (over, expected) in
            [(Over::Sum, 0.0), (Over::Count, 0.0), (Over::Any, 0.0), (Over::All, 1.0)]
        {
            assert_eq!(of(over, &[]), expected, "{over:?}");
        }
        assert!(of(Over::Sum, &[]).is_sign_positive());
    }

    #[test]
    fn a_remainder_has_the_sign_of_the_divisor() {
        // As Python prints them.
        for (left, right, expected) in
            [(7.0, 3.0, 1.0), (-7.0, 3.0, 2.0), (7.0, -3.0, -2.0), (-7.0, -3.0, -1.0)]
        {
            assert_eq!(remainder(left, right), expected, "{left} % {right}");
        }
        assert_eq!(remainder(5.0, f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert!(remainder(5.0, 0.0).is_nan());
    }

    #[test]
    fn code_that_takes_from_an_empty_stack_is_none() {
        let add = Op::Binary(Binary::Add);
        for ops in [vec![], vec![add], vec![Op::Not], vec![Op::Number(1.0), add]] {
            assert_eq!(Code::new(ops.clone()), None, "{ops:?}");
        }
        assert_eq!(Code::new(vec![Op::Number(1.0), Op::Number(1.0)]), None);
        assert!(Code::new(vec![Op::Number(1.0), Op::Number(1.0), add]).is_some());
        let deep = |height| {
            let numbers = std::iter::repeat_n(Op::Number(1.0), height);
            Code::new(numbers.chain(std::iter::repeat_n(add, height - 1)).collect())
        };
        assert!(deep(MAX_DEPTH).is_some());
        assert_eq!(deep(MAX_DEPTH + 1), None);
    }
}

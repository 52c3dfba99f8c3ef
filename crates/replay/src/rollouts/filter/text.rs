//! Programs to text, which parses to the same program.

use super::Name;
use super::program::{Binary, Code, Op, Program};
use super::tokens::is_plain;

/// How strongly text holds together, in the order of the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Disjunction,
    Conjunction,
    Negation,
    Comparison,
    Sum,
    Product,
    Signed,
    Atom,
}

/// The text of a part.
#[derive(Debug, Default)]
struct Part {
    text: String,
    level: Option<Level>,
}

impl Part {
    fn new(text: String, level: Level) -> Self {
        Self { text, level: Some(level) }
    }

    /// In parentheses, if it does not hold together at least so strongly.
    fn at_least(self, level: Level) -> String {
        if self.level >= Some(level) { self.text } else { format!("({})", self.text) }
    }
}

/// The text of a program.
pub fn of(program: &Program, names: &[Name]) -> String {
    let mut aggregates: Vec<String> = Vec::with_capacity(program.aggregates.len());
    for aggregate in &program.aggregates {
        let argument = of_code(&aggregate.code, &aggregates, names);
        aggregates.push(format!("{}({argument})", aggregate.over.name()));
    }
    of_code(&program.code, &aggregates, names)
}

fn of_code(code: &Code, aggregates: &[String], names: &[Name]) -> String {
    let mut stack: Vec<Part> = Vec::new();
    for op in code.ops() {
        // The stack is never empty where something is taken, as code is checked when it is made.
        let part = match *op {
            Op::Number(number) => Part::new(number_text(number), Level::Atom),
            Op::Field(name) => {
                let name = names.get(name).map_or("", |name| &name.text);
                let text = if is_plain(name) { name.to_owned() } else { format!("\"{name}\"") };
                Part::new(text, Level::Atom)
            }
            Op::Aggregate(index) => {
                Part::new(aggregates.get(index).cloned().unwrap_or_default(), Level::Atom)
            }
            Op::Negate => {
                let of = stack.pop().unwrap_or_default().at_least(Level::Signed);
                Part::new(format!("-{of}"), Level::Signed)
            }
            Op::Absolute => {
                Part::new(format!("abs({})", stack.pop().unwrap_or_default().text), Level::Atom)
            }
            Op::Not => {
                let of = stack.pop().unwrap_or_default().at_least(Level::Negation);
                Part::new(format!("not {of}"), Level::Negation)
            }
            Op::Binary(operator) => {
                let right = stack.pop().unwrap_or_default();
                let left = stack.pop().unwrap_or_default();
                binary(operator, left, right)
            }
        };
        stack.push(part);
    }
    stack.pop().unwrap_or_default().text
}

fn binary(operator: Binary, left: Part, right: Part) -> Part {
    // What binds equally is read from the left, but comparisons do not follow each other.
    let (symbol, level, left_level, right_level) = match operator {
        Binary::Least | Binary::Most => {
            let name = if operator == Binary::Least { "min" } else { "max" };
            return Part::new(format!("{name}({}, {})", left.text, right.text), Level::Atom);
        }
        Binary::Or => ("or", Level::Disjunction, Level::Disjunction, Level::Conjunction),
        Binary::And => ("and", Level::Conjunction, Level::Conjunction, Level::Negation),
        Binary::Less => ("<", Level::Comparison, Level::Sum, Level::Sum),
        Binary::LessEqual => ("<=", Level::Comparison, Level::Sum, Level::Sum),
        Binary::Greater => (">", Level::Comparison, Level::Sum, Level::Sum),
        Binary::GreaterEqual => (">=", Level::Comparison, Level::Sum, Level::Sum),
        Binary::Equal => ("==", Level::Comparison, Level::Sum, Level::Sum),
        Binary::NotEqual => ("!=", Level::Comparison, Level::Sum, Level::Sum),
        Binary::Add => ("+", Level::Sum, Level::Sum, Level::Product),
        Binary::Subtract => ("-", Level::Sum, Level::Sum, Level::Product),
        Binary::Multiply => ("*", Level::Product, Level::Product, Level::Signed),
        Binary::Divide => ("/", Level::Product, Level::Product, Level::Signed),
        Binary::Remainder => ("%", Level::Product, Level::Product, Level::Signed),
    };
    let (left, right) = (left.at_least(left_level), right.at_least(right_level));
    Part::new(format!("{left} {symbol} {right}"), level)
}

/// The shortest text that is this number.
fn number_text(number: f64) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

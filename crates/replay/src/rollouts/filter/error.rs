//! What is wrong with an expression, and where.

use std::fmt;

use super::{MAX_AGGREGATES, MAX_DEPTH, MAX_LENGTH};

/// Why there is no expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {problem}")]
pub struct ExpressionError {
    /// Which character of the text, from 1 on.
    pub position: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What a part of an expression is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It can be added and compared.
    Number,
    /// It holds or it does not.
    Condition,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number => "number",
            Self::Condition => "condition",
        })
    }
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Say it more briefly, or compute a field of its own.
    #[error("the expression has {length} bytes when it is written out, more than {MAX_LENGTH}")]
    TooLong {
        /// How many it has.
        length: usize,
    },
    /// Take parentheses away.
    #[error("it is nested more than {MAX_DEPTH} deep here")]
    TooDeep,
    /// Use fewer.
    #[error("there are more than {MAX_AGGREGATES} different aggregates")]
    TooManyAggregates,
    /// Write what the language has.
    #[error("`{came}` means nothing here{}", hint(came))]
    Character {
        /// What stands there.
        came: char,
    },
    /// Write the second quotation mark.
    #[error("the name in quotes that begins here does not end")]
    Unterminated,
    /// No double is so large.
    #[error("the number {number} is too large")]
    NumberTooLarge {
        /// How it is written.
        number: String,
    },
    /// Something else belongs here.
    #[error("expected {expected}, got {came}")]
    Unexpected {
        /// What does.
        expected: &'static str,
        /// What stands there.
        came: String,
    },
    /// A number where a condition belongs, or the other way round.
    #[error("{taker} takes a {expected}, but `{came}` is a {}", what_it_is(*.expected, came))]
    WrongKind {
        /// What it was given to.
        taker: String,
        /// What it takes.
        expected: Kind,
        /// The text of what came.
        came: String,
    },
    /// Join two comparisons.
    #[error("comparisons do not chain: write `a < b and b < c` for `a < b < c`")]
    Chained,
    /// Say which items, or what of them all.
    #[error(
        "`{name}` is a field of each item and stands in no aggregate: write mean({name}), or any({name} > 0)"
    )]
    OutsideAggregate {
        /// The field.
        name: String,
    },
    /// Use one that there is.
    #[error(
        "there is no function {name}(): there are abs, all, any, count, max, mean, min, spread, std and sum"
    )]
    UnknownFunction {
        /// What was called.
        name: String,
    },
    /// Give it as many as it takes.
    #[error("{name}() takes {expected}, got {came}")]
    Arguments {
        /// Which function.
        name: String,
        /// How many it takes.
        expected: &'static str,
        /// How many it got.
        came: usize,
    },
    /// Use one that there is.
    #[error("there is no field `{name}`: there {known}")]
    UnknownField {
        /// What was named.
        name: String,
        /// Those that there are, in words.
        known: String,
    },
}

impl Problem {
    /// This field is not among those.
    pub(super) fn unknown_field(name: &str, fields: &[&str]) -> Self {
        /// More would hide the rest of the message.
        const SHOWN: usize = 32;
        let quoted: Vec<String> =
            fields.iter().take(SHOWN).map(|field| format!("`{field}`")).collect();
        let known = match (quoted.as_slice(), fields.len().saturating_sub(SHOWN)) {
            ([], _) => "are none".to_owned(),
            ([only], _) => format!("is {only}"),
            ([rest @ .., last], 0) => format!("are {} and {last}", rest.join(", ")),
            (all, more) => format!("are {} and {more} more", all.join(", ")),
        };
        Self::UnknownField { name: name.to_owned(), known }
    }
}

/// What people write who think of another language.
fn hint(came: &char) -> &'static str {
    match came {
        '&' => ": write `and`",
        '|' => ": write `or`",
        '!' => ": write `not`, or `!=`",
        '=' => ": write `==`",
        '\'' | '`' => ": write names in double quotes",
        _ => "",
    }
}

/// What came where the other was expected, and how to make that of it.
fn what_it_is(expected: Kind, came: &str) -> String {
    match expected {
        Kind::Number => "condition: count(...) of it is a number".to_owned(),
        Kind::Condition => format!("number: compare it, as in `{came} > 0`"),
    }
}

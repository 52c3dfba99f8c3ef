//! Which finished groups of items are kept: a small language of conditions.
//!
//! ```text
//! spread(reward) > 0 and mean(length) < 2048 and not any(truncated != 0)
//! ```
//!
//! An [`Expression`] is text that was parsed: its types and its nesting are right, and it names
//! fields. [`Expression::bind`] finds the fields among those that there are, and gives a [`Bound`],
//! which looks at groups. All three steps are pure: the caller says what an item's field is.
//!
//! # The language
//!
//! | what | how |
//! |---|---|
//! | numbers | `2`, `0.5`, `1e-3`; `+ - * / %`, `-x`; `abs(x)`, `min(x, y)`, `max(x, y)` |
//! | conditions | `< <= > >= == !=` between two numbers; `and`, `or`, `not` |
//! | fields of an item | `reward`, `info.score`, or any name in quotes: `"scores/exact match"` |
//! | numbers of the group | `min(x)`, `max(x)`, `mean(x)`, `sum(x)`, `std(x)`, `spread(x)`, `count()`, `count(c)` |
//! | conditions on the group | `any(c)`, `all(c)` |
//!
//! Operators bind as in Python: `not a > 0 and b > 0` is `(not (a > 0)) and (b > 0)`; but comparisons do
//! not chain. The whole is a condition, and fields stand in aggregates only, since a group has many
//! items. In an aggregate, another is that of the whole group: `any(reward > 2 * mean(reward))`.
//!
//! # Numbers
//!
//! They are doubles, and nothing that is computed is an error: what is divided by zero is infinite, or
//! NaN for `0 / 0`. `x % y` has the sign of `y`, as in Python. **A comparison with a NaN is false**, `!=`
//! included, so that a group is not kept for a number that nobody knows; `not` turns that around like any
//! other condition. A NaN of one item is the result of `min`, `max`, `mean`, `sum`, `std` and `spread`,
//! and so are both of `abs` and of `min` and `max` of two.
//!
//! `std` divides by the number of items, as numpy and `compute_group_advantages` do. `spread` is `max`
//! less `min`. Of items that are all equal, `mean` is exactly that number, and `std` and `spread` are
//! exactly 0. A group of no items has a `count` and a `sum` of 0, all of it holds, and not any; the
//! others are NaN.
//!
//! # Invariants
//!
//! 1. To look at a group takes time in proportion to the expression's length and to the number of items,
//!    however deep aggregates are nested.
//! 2. The text of an expression parses to the same expression.
//!
//! # Limitations
//!
//! There are no names for parts of an expression, and no strings: compare numbers.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod error;
mod parser;
mod program;
mod text;
mod tokens;

use std::fmt;

pub use error::{ExpressionError, Kind, Problem};

use program::Program;

/// Bytes that an expression may have, as it is given and as it is written out.
pub const MAX_LENGTH: usize = 4096;

/// How deep parentheses, calls and signs may be nested, and how many numbers may wait for others.
pub const MAX_DEPTH: usize = 64;

/// How many different aggregates an expression may have.
pub const MAX_AGGREGATES: usize = 64;

/// A condition on the items of a group.
///
/// ```
/// use echoic_replay::rollouts::filter::Expression;
///
/// let expression = Expression::parse("spread(reward)>0 and (mean(length) < 100)")?;
/// assert_eq!(expression.to_string(), "spread(reward) > 0 and mean(length) < 100");
///
/// let bound = expression.bind(&["length", "reward"])?;
/// let (lengths, rewards) = ([80.0, 90.0], [0.0, 1.0]);
/// assert!(bound.keeps(2, |field, item| if field == 0 { lengths[item] } else { rewards[item] }));
/// assert!(!bound.keeps(2, |_, _| 1.0), "all rewards are equal");
/// # Ok::<(), echoic_replay::rollouts::filter::ExpressionError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    program: Program,
    names: Vec<Name>,
}

/// A field that an expression names.
#[derive(Debug, Clone)]
struct Name {
    text: String,
    /// Where it stands first, in characters from 1 on.
    position: usize,
}

impl PartialEq for Name {
    /// Spaces do not make another expression.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    ///
    /// [`ExpressionError`], which says where what was expected, and what came.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let expression = parser::parse(text)?;
        // Spaces and zeros may be added: `a<.5` is written out as `a < 0.5`.
        let length = expression.to_string().len();
        if length > MAX_LENGTH {
            return Err(ExpressionError { position: 1, problem: Problem::TooLong { length } });
        }
        Ok(expression)
    }

    /// The fields that it looks at, each once, in the order in which they come.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| name.text.as_str())
    }

    /// Finds its fields among those that items have: a field is then called by its index.
    ///
    /// # Errors
    ///
    /// [`Problem::UnknownField`] for one that is not there.
    pub fn bind(&self, fields: &[&str]) -> Result<Bound, ExpressionError> {
        let index = |name: &Name| {
            fields.iter().position(|field| *field == name.text).ok_or_else(|| ExpressionError {
                position: name.position,
                problem: Problem::unknown_field(&name.text, fields),
            })
        };
        let fields = self.names.iter().map(index).collect::<Result<_, _>>()?;
        Ok(Bound { program: self.program.clone(), fields })
    }
}

impl fmt::Display for Expression {
    /// The canonical text: one space around operators, and no parentheses but those that are needed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::of(&self.program, &self.names))
    }
}

/// An expression that knows where its fields are.
#[derive(Debug, Clone)]
pub struct Bound {
    program: Program,
    /// The field of each name.
    fields: Vec<usize>,
}

impl Bound {
    /// Whether a group of so many items is kept; `value` is told the index of a field and of an item.
    ///
    /// It allocates nothing. A value is asked for as often as it is needed, and must be the same each time.
    pub fn keeps(&self, items: usize, value: impl Fn(usize, usize) -> f64) -> bool {
        let field = |name: usize| self.fields.get(name).copied();
        self.program.holds(items, |name, item| field(name).map_or(f64::NAN, |at| value(at, item)))
    }
}

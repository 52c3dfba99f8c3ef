//! Filters: which complete groups are kept, by numbers of the whole group.
//!
//! ```text
//! spread(reward) > 0 and mean(length) < 2048
//! ```
//!
//! A [`Filter`] is text that was parsed. [`Filter::bind`] finds its fields among those of a table and gives a
//! [`BoundFilter`], which looks at groups.
//!
//! # The language
//!
//! Conditions joined by `and`, at most [`MAX_CONDITIONS`] of them. A condition is `aggregate(field) comparison number`:
//!
//! | what | how |
//! |---|---|
//! | aggregates over the items of a group | `min`, `max`, `mean`, `sum`, `std`, `spread`; `count()` is the number of items |
//! | fields | `reward`, `info.score`, or any name in quotes: `"scores/exact match"` |
//! | comparisons | `<`, `<=`, `>`, `>=`, `==`, `!=` |
//! | numbers | `2`, `-0.5`, `1e-3` |
//!
//! A condition on single items is one on their `min` or `max`: "any reward above 0" is `max(reward) > 0`.
//!
//! # Numbers
//!
//! `std` divides by the number of items, as numpy does. `spread` is `max` less `min`. Of items that are all equal,
//! `mean` is exactly that number, and `std` and `spread` are exactly 0. A NaN of one item makes every aggregate of its
//! field NaN. A group of no items has a `count` and a `sum` of 0; its other aggregates are NaN. **A comparison with NaN
//! is false**, `!=` included, so a group is not kept for a number that is unknown.
//!
//! # Invariants
//!
//! 1. The text of a filter parses to the same filter.
//! 2. To look at a group allocates nothing and takes time in proportion to conditions times items.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

use std::cmp::Ordering;
use std::fmt;

/// Bytes that a filter may have, as it is given and as it is written out.
pub const MAX_LENGTH: usize = 4096;

/// How many conditions a filter may have.
pub const MAX_CONDITIONS: usize = 16;

/// Conditions that a group must meet to be kept.
///
/// ```
/// use echoic_replay::rollouts::filter::Filter;
///
/// let filter = Filter::parse("spread(reward)>0 and mean(length) < 100.0")?;
/// assert_eq!(filter.to_string(), "spread(reward) > 0 and mean(length) < 100");
///
/// let bound = filter.bind(&["length", "reward"])?;
/// let (lengths, rewards) = ([80.0, 90.0], [0.0, 1.0]);
/// assert!(bound.keeps(2, |field, item| if field == 0 { lengths[item] } else { rewards[item] }));
/// assert!(!bound.keeps(2, |_, _| 1.0), "all rewards are equal");
/// # Ok::<(), echoic_replay::rollouts::filter::FilterError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(Vec<Condition>);

/// What is wrong with a filter, and where: what was expected, and what came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {problem}")]
pub struct FilterError {
    /// Which character of the text, from 1 on.
    pub position: usize,
    /// What is wrong there.
    pub problem: String,
}

#[derive(Debug, Clone)]
struct Condition {
    aggregate: Aggregate,
    /// Empty for `count()`.
    field: String,
    /// Where the field stands, in characters from 1 on.
    position: usize,
    comparison: Comparison,
    number: f64,
}

impl PartialEq for Condition {
    /// Spaces do not make another condition.
    fn eq(&self, other: &Self) -> bool {
        (self.aggregate, &self.field, self.comparison, self.number)
            == (other.aggregate, &other.field, other.comparison, other.number)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Aggregate {
    Min,
    Max,
    Mean,
    Sum,
    Std,
    Spread,
    Count,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
}

const AGGREGATES: [(&str, Aggregate); 7] = [
    ("min", Aggregate::Min),
    ("max", Aggregate::Max),
    ("mean", Aggregate::Mean),
    ("sum", Aggregate::Sum),
    ("std", Aggregate::Std),
    ("spread", Aggregate::Spread),
    ("count", Aggregate::Count),
];

/// Longer ones first, so that `<=` is not taken for `<`.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::LessEqual),
    (">=", Comparison::GreaterEqual),
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    ///
    /// When the text is not a filter, or has more than [`MAX_LENGTH`] bytes or [`MAX_CONDITIONS`] conditions.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let too_long = |length: usize| FilterError {
            position: 1,
            problem: format!(
                "expected at most {MAX_LENGTH} bytes when it is written out, got {length}"
            ),
        };
        if text.len() > MAX_LENGTH {
            return Err(too_long(text.len()));
        }
        let mut words = Words { text, at: 0 };
        let mut conditions = vec![words.condition()?];
        while !words.rest().is_empty() {
            if words.name() != Some("and") {
                return Err(words.unexpected("`and` or the end"));
            }
            if conditions.len() == MAX_CONDITIONS {
                return Err(words.unexpected(&format!("at most {MAX_CONDITIONS} conditions")));
            }
            words.skip("and".len());
            conditions.push(words.condition()?);
        }
        let filter = Self(conditions);
        // Spaces and digits may be added: `min(a)<1e9` is written out as `min(a) < 1000000000`.
        match filter.to_string().len() {
            length if length > MAX_LENGTH => Err(too_long(length)),
            _ => Ok(filter),
        }
    }

    /// The field of each condition, but for `count()`.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let fields = self.0.iter().filter(|condition| condition.aggregate != Aggregate::Count);
        fields.map(|condition| condition.field.as_str())
    }

    /// Finds its fields among those that items have: a field is then called by its index.
    ///
    /// # Errors
    ///
    /// When a field is not among them.
    pub fn bind(&self, fields: &[&str]) -> Result<BoundFilter, FilterError> {
        let bind = |condition: &Condition| {
            let index = match condition.aggregate {
                Aggregate::Count => Some(0),
                _ => fields.iter().position(|field| *field == condition.field),
            };
            index.map(|index| (condition.clone(), index)).ok_or_else(|| FilterError {
                position: condition.position,
                problem: unknown_field(&condition.field, fields),
            })
        };
        self.0.iter().map(bind).collect::<Result<_, _>>().map(BoundFilter)
    }
}

impl fmt::Display for Filter {
    /// Writes the canonical text: one space around comparisons and `and`, quotes where they are needed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, condition) in self.0.iter().enumerate() {
            let Condition { aggregate, field, comparison, number, .. } = condition;
            let quote = if *aggregate == Aggregate::Count || is_plain(field) { "" } else { "\"" };
            let (aggregate, comparison) =
                (text_of(&AGGREGATES, aggregate), text_of(&COMPARISONS, comparison));
            let number = format!("{number:?}");
            let number = number.strip_suffix(".0").unwrap_or(&number);
            let joint = if at > 0 { " and " } else { "" };
            write!(f, "{joint}{aggregate}({quote}{field}{quote}) {comparison} {number}")?;
        }
        Ok(())
    }
}

/// A filter that knows where its fields are.
#[derive(Debug, Clone)]
pub struct BoundFilter(Vec<(Condition, usize)>);

impl BoundFilter {
    /// Whether a group of this many items is kept; `value` is given the index of a field and of an item.
    ///
    /// A value is asked for as often as it is needed, and must be the same each time.
    pub fn keeps(&self, items: usize, value: impl Fn(usize, usize) -> f64) -> bool {
        self.0.iter().all(|(condition, field)| {
            let number = condition.aggregate.of(items, |item| value(*field, item));
            condition.comparison.holds(number, condition.number)
        })
    }
}

impl Comparison {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterEqual => left >= right,
            Self::Equal => left == right,
            // False for NaN, unlike `!=`.
            Self::NotEqual => left.partial_cmp(&right).is_some_and(Ordering::is_ne),
        }
    }
}

impl Aggregate {
    fn of(self, items: usize, of: impl Fn(usize) -> f64) -> f64 {
        let numbers = || (0..items).map(&of);
        // Unlike `f64::min`, a NaN is not lost.
        let least =
            |left: f64, right: f64| if left < right || left.is_nan() { left } else { right };
        let low = || numbers().reduce(least).unwrap_or(f64::NAN);
        let high = || -numbers().map(|number| -number).reduce(least).unwrap_or(f64::NAN);
        match self {
            Self::Count => items as f64,
            Self::Sum => numbers().fold(0.0, |sum, number| sum + number),
            Self::Min => low(),
            Self::Max => high(),
            Self::Spread => high() - low(),
            Self::Mean => mean(items, of),
            Self::Std => {
                let mean = mean(items, &of);
                let squares: f64 = numbers().map(|number| (number - mean).powi(2)).sum();
                (squares / items as f64).sqrt()
            }
        }
    }
}

/// From the first number on, so that equal numbers have exactly that mean, and no spread: three times
/// 0.1, divided by three, is more than 0.1.
fn mean(items: usize, of: impl Fn(usize) -> f64) -> f64 {
    if items == 0 {
        return f64::NAN;
    }
    let (first, count) = (of(0), items as f64);
    let mean = first + (0..items).map(|item| of(item) - first).sum::<f64>() / count;
    // Of infinite numbers the difference is unknown, but not their mean.
    if mean.is_finite() { mean } else { (0..items).map(of).sum::<f64>() / count }
}

/// What is left of a filter's text.
struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn condition(&mut self) -> Result<Condition, FilterError> {
        let found = AGGREGATES.into_iter().find(|(name, _)| self.name() == Some(*name));
        let (name, aggregate) =
            found.ok_or_else(|| self.unexpected("min, max, mean, sum, std, spread or count"))?;
        self.skip(name.len());
        self.expect("(")?;
        let position = self.position();
        let field = if aggregate == Aggregate::Count { "" } else { self.field()? };
        self.expect(")")?;
        let found = COMPARISONS.into_iter().find(|(sign, _)| self.rest().starts_with(sign));
        let (sign, comparison) = found.ok_or_else(|| self.unexpected("<, <=, >, >=, == or !="))?;
        self.skip(sign.len());
        let (rest, length) = (self.rest(), number_length(self.rest()));
        let number = rest.get(..length).and_then(|number| number.parse::<f64>().ok());
        let number = number
            .filter(|number| number.is_finite())
            .ok_or_else(|| self.unexpected("a finite number"))?;
        self.skip(length);
        Ok(Condition { aggregate, field: field.to_owned(), position, comparison, number })
    }

    fn field(&mut self) -> Result<&'a str, FilterError> {
        if let Some(name) = self.name() {
            self.skip(name.len());
            return Ok(name);
        }
        let quoted = self.rest().strip_prefix('"').ok_or_else(|| self.unexpected("a field"))?;
        let (name, _) = quoted.split_once('"').ok_or_else(|| self.unexpected("a name and `\"`"))?;
        self.skip(name.len() + 2);
        Ok(name)
    }

    fn expect(&mut self, sign: &str) -> Result<(), FilterError> {
        if !self.rest().starts_with(sign) {
            return Err(self.unexpected(&format!("`{sign}`")));
        }
        self.skip(sign.len());
        Ok(())
    }

    /// The text from the next word on.
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default().trim_start()
    }

    /// The name that comes next.
    fn name(&self) -> Option<&'a str> {
        self.rest().get(..name_length(self.rest())).filter(|name| !name.is_empty())
    }

    fn skip(&mut self, length: usize) {
        self.at = self.text.len() - self.rest().len() + length;
    }

    fn position(&self) -> usize {
        let before = self.text.len() - self.rest().len();
        self.text.get(..before).unwrap_or_default().chars().count() + 1
    }

    fn unexpected(&self, expected: &str) -> FilterError {
        /// A name may be as long as the filter.
        const SHOWN: usize = 40;
        let rest = self.rest();
        let length = name_length(rest).max(number_length(rest));
        let got: String = match (rest.get(..length).filter(|word| !word.is_empty()), rest) {
            (Some(word), _) => word.chars().take(SHOWN).collect(),
            (None, rest) => rest.chars().take(1).collect(),
        };
        let got = if got.is_empty() { "the end".to_owned() } else { format!("`{got}`") };
        FilterError {
            position: self.position(),
            problem: format!("expected {expected}, got {got}"),
        }
    }
}

/// Counts the bytes of a name at the beginning: letters and underscores, after the first also digits and dots.
fn name_length(text: &str) -> usize {
    let belongs = |(at, letter): &(usize, char)| match letter {
        '_' => true,
        '.' => *at > 0,
        letter => letter.is_alphabetic() || (*at > 0 && letter.is_alphanumeric()),
    };
    let name = text.char_indices().take_while(belongs);
    name.last().map_or(0, |(at, letter)| at + letter.len_utf8())
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name_length(name) == name.len()
}

/// Counts the bytes of a number at the beginning, or of what may have been meant as one.
fn number_length(text: &str) -> usize {
    let mut before = ' ';
    let belongs = |letter: char| {
        let is_sign = matches!(letter, '-' | '+') && matches!(before, ' ' | 'e' | 'E');
        let is_exponent = matches!(letter, 'e' | 'E') && before.is_ascii_digit() | (before == '.');
        before = letter;
        letter.is_ascii_digit() || letter == '.' || is_sign || is_exponent
    };
    text.len() - text.trim_start_matches(belongs).len()
}

fn text_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("", |(text, _)| text)
}

fn unknown_field(name: &str, fields: &[&str]) -> String {
    /// More would hide the rest of the message.
    const SHOWN: usize = 32;
    let mut known: Vec<String> =
        fields.iter().take(SHOWN).map(|field| format!("`{field}`")).collect();
    if fields.len() > SHOWN {
        known.push(format!("{} more", fields.len() - SHOWN));
    }
    format!("there is no field `{name}`; the fields are: {}", known.join(", "))
}

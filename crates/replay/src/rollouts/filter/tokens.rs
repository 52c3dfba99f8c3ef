//! The words of an expression.

use super::error::{ExpressionError, Problem};

/// One word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// Finite and not negative.
    Number(f64),
    /// A field or a function.
    Name(&'a str),
    /// A field, without its quotes.
    Quoted(&'a str),
    /// An operator, a keyword or a parenthesis.
    Symbol(&'static str),
    /// Nothing more comes.
    End,
}

/// A word, and where its bytes are.
#[derive(Debug, Clone, Copy)]
pub struct Word<'a> {
    pub token: Token<'a>,
    pub start: usize,
    pub end: usize,
}

/// Longer ones first, so that `<=` is not taken for `<`.
const SIGNS: [&str; 14] =
    ["<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ","];

const KEYWORDS: [&str; 3] = ["and", "or", "not"];

/// Whether a field of this name needs no quotes.
pub fn is_plain(name: &str) -> bool {
    name_length(name) == name.len() && !name.is_empty() && !KEYWORDS.contains(&name)
}

/// Reads one word after the other.
#[derive(Debug)]
pub struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next word. After the last, and after an error, the end comes for ever.
    pub fn next(&mut self) -> Result<Word<'a>, ExpressionError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        let start = self.at + (rest.len() - trimmed.len());
        self.at = self.text.len();
        let (token, length) = token(trimmed)
            .map_err(|problem| ExpressionError { position: position(self.text, start), problem })?;
        self.at = start + length;
        Ok(Word { token, start, end: self.at })
    }
}

/// Which character begins with this byte, from 1 on.
pub fn position(text: &str, start: usize) -> usize {
    text.get(..start).unwrap_or(text).chars().count() + 1
}

/// The word that the text begins with, and its bytes.
fn token(text: &str) -> Result<(Token<'_>, usize), Problem> {
    if text.is_empty() {
        return Ok((Token::End, 0));
    }
    if let Some((name, length)) = split(text, name_length(text)) {
        let keyword = KEYWORDS.into_iter().find(|keyword| *keyword == name);
        return Ok((keyword.map_or(Token::Name(name), Token::Symbol), length));
    }
    if let Some((number, length)) = split(text, number_length(text)) {
        return match number.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok((Token::Number(value), length)),
            _ => Err(Problem::NumberTooLarge { number: shortened(number) }),
        };
    }
    if let Some(rest) = text.strip_prefix('"') {
        let (name, _) = rest.split_once('"').ok_or(Problem::Unterminated)?;
        return Ok((Token::Quoted(name), name.len() + 2));
    }
    match SIGNS.into_iter().find(|sign| text.starts_with(sign)) {
        Some(sign) => Ok((Token::Symbol(sign), sign.len())),
        None => Err(Problem::Character { came: text.chars().next().unwrap_or_default() }),
    }
}

/// The first bytes, and how many; `None` when it is none.
fn split(text: &str, length: usize) -> Option<(&str, usize)> {
    text.get(..length).filter(|first| !first.is_empty()).map(|first| (first, length))
}

/// Letters and underscores, after the first also digits and dots.
fn name_length(text: &str) -> usize {
    let belongs = |(at, letter): &(usize, char)| match letter {
        '_' => true,
        '.' => *at > 0,
        letter => letter.is_alphabetic() || (*at > 0 && letter.is_alphanumeric()),
    };
    let name = text.char_indices().take_while(belongs);
    name.last().map_or(0, |(at, letter)| at + letter.len_utf8())
}

/// Digits, a dot with or without digits on either side, and an exponent.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    let mut length = whole;
    if bytes.get(length) == Some(&b'.') {
        let fraction = digits(length + 1);
        if whole + fraction == 0 {
            return 0;
        }
        length += 1 + fraction;
    }
    if length > 0 && matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        // Without digits it is a name that follows a number, and an error for the parser.
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length
}

/// The text as it stands in messages, which must not be as long as an expression may be.
pub fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

//! Text to programs, by recursive descent.
//!
//! Code is emitted while the text is read: an operator after its operands. What an operand is, a
//! number or a condition, is checked when its operator is read, and whether fields stand in aggregates
//! when all was read, since `min(` may begin either `min(x)` of all items or `min(x, y)` of two numbers.

use super::error::{ExpressionError, Kind, Problem};
use super::program::{Aggregate, Binary, Code, Op, Over, Program};
use super::tokens::{Token, Word, Words, position, shortened};
use super::{Expression, MAX_AGGREGATES, MAX_DEPTH, MAX_LENGTH, Name};

type Result<T> = std::result::Result<T, ExpressionError>;

const COMPARISONS: [(&str, Binary); 6] = [
    ("<", Binary::Less),
    ("<=", Binary::LessEqual),
    (">", Binary::Greater),
    (">=", Binary::GreaterEqual),
    ("==", Binary::Equal),
    ("!=", Binary::NotEqual),
];

const OPERAND: &str = "a number, a field or `(`";

/// The expression of a text.
pub fn parse(text: &str) -> Result<Expression> {
    if text.len() > MAX_LENGTH {
        let problem = Problem::TooLong { length: text.len() };
        return Err(ExpressionError { position: 1, problem });
    }
    let mut words = Words::new(text);
    let next = words.next()?;
    let mut parser = Parser {
        text,
        words,
        next,
        depth: 0,
        frame: Frame::default(),
        aggregates: Vec::new(),
        names: Vec::new(),
    };
    let whole = parser.disjunction()?;
    if parser.next.token != Token::End {
        return Err(parser.unexpected("an operator or the end"));
    }
    let frame = std::mem::take(&mut parser.frame);
    if let Some((start, name)) = frame.loose {
        return Err(parser.error(start, Problem::OutsideAggregate { name }));
    }
    parser.require(&whole, Kind::Condition, "a filter")?;
    let code = parser.finished(frame.code, &whole)?;
    let Parser { aggregates, names, .. } = parser;
    Ok(Expression { program: Program { aggregates, code }, names })
}

/// What was read: its kind, and where its text is.
#[derive(Debug, Clone, Copy)]
struct Term {
    kind: Kind,
    start: usize,
    end: usize,
}

/// Code of the whole, or of an argument.
#[derive(Debug, Default)]
struct Frame {
    code: Vec<Op>,
    /// Its first field that stands in no aggregate, and where.
    loose: Option<(usize, String)>,
}

struct Argument {
    term: Term,
    frame: Frame,
}

struct Parser<'a> {
    text: &'a str,
    words: Words<'a>,
    next: Word<'a>,
    depth: usize,
    frame: Frame,
    aggregates: Vec<Aggregate>,
    names: Vec<Name>,
}

impl<'a> Parser<'a> {
    fn disjunction(&mut self) -> Result<Term> {
        self.chain(&[("or", Binary::Or)], Kind::Condition, Self::conjunction)
    }

    fn conjunction(&mut self) -> Result<Term> {
        self.chain(&[("and", Binary::And)], Kind::Condition, Self::negation)
    }

    fn negation(&mut self) -> Result<Term> {
        self.prefixed("not", Op::Not, Kind::Condition, Self::negation, Self::comparison)
    }

    fn comparison(&mut self) -> Result<Term> {
        let left = self.sum()?;
        let Some((symbol, operator)) = self.accept(&COMPARISONS)? else { return Ok(left) };
        let term = self.join(left, symbol, operator, Kind::Number, Kind::Condition, Self::sum)?;
        let chained = COMPARISONS.iter().any(|(symbol, _)| self.is_next(symbol));
        if chained { Err(self.error(self.next.start, Problem::Chained)) } else { Ok(term) }
    }

    fn sum(&mut self) -> Result<Term> {
        let operators = [("+", Binary::Add), ("-", Binary::Subtract)];
        self.chain(&operators, Kind::Number, Self::product)
    }

    fn product(&mut self) -> Result<Term> {
        let operators = [("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)];
        self.chain(&operators, Kind::Number, Self::signed)
    }

    fn signed(&mut self) -> Result<Term> {
        self.prefixed("-", Op::Negate, Kind::Number, Self::signed, Self::atom)
    }

    fn atom(&mut self) -> Result<Term> {
        let word = self.next;
        match word.token {
            Token::Number(value) => {
                self.advance()?;
                self.frame.code.push(Op::Number(value));
                Ok(Term { kind: Kind::Number, start: word.start, end: word.end })
            }
            Token::Name(name) => {
                self.advance()?;
                if self.is_next("(") { self.call(name, word) } else { self.field(name, word) }
            }
            Token::Quoted(name) => {
                self.advance()?;
                self.field(name, word)
            }
            Token::Symbol("(") => {
                self.advance()?;
                let inner = self.nested(word.start, Self::disjunction)?;
                let end = self.close("an operator or `)`")?;
                Ok(Term { start: word.start, end, ..inner })
            }
            Token::Symbol(_) | Token::End => Err(self.unexpected(OPERAND)),
        }
    }

    fn field(&mut self, text: &str, word: Word<'a>) -> Result<Term> {
        let known = self.names.iter().position(|name| name.text == text);
        let index = known.unwrap_or_else(|| {
            let position = position(self.text, word.start);
            self.names.push(Name { text: text.to_owned(), position });
            self.names.len() - 1
        });
        self.frame.code.push(Op::Field(index));
        self.frame.loose.get_or_insert_with(|| (word.start, text.to_owned()));
        Ok(Term { kind: Kind::Number, start: word.start, end: word.end })
    }

    /// A function and its arguments; the parenthesis is the next word.
    fn call(&mut self, name: &'a str, word: Word<'a>) -> Result<Term> {
        let is_scalar = matches!(name, "abs" | "min" | "max");
        let over = Over::of_name(name);
        if over.is_none() && !is_scalar {
            let problem = Problem::UnknownFunction { name: shortened(name) };
            return Err(self.error(word.start, problem));
        }
        self.advance()?;
        let outer = std::mem::take(&mut self.frame);
        let arguments = self.nested(word.start, Self::arguments)?;
        self.frame = outer;
        let end = self.close("an operator, `,` or `)`")?;
        let came = arguments.len();
        let arguments = match (over, <[Argument; 1]>::try_from(arguments)) {
            (Some(over), Ok([argument])) => {
                let takes = if over.counts() { Kind::Condition } else { Kind::Number };
                self.require(&argument.term, takes, &format!("{name}()"))?;
                let code = self.finished(argument.frame.code, &argument.term)?;
                self.aggregate(Aggregate { over, code }, word)?;
                let is_condition = matches!(over, Over::Any | Over::All);
                let kind = if is_condition { Kind::Condition } else { Kind::Number };
                return Ok(Term { kind, start: word.start, end });
            }
            (_, Ok([argument])) => vec![argument],
            (_, Err(arguments)) => arguments,
        };
        let operator = match (name, came) {
            ("count", 0) => {
                self.aggregate(Aggregate { over: Over::Items, code: Code::default() }, word)?;
                return Ok(Term { kind: Kind::Number, start: word.start, end });
            }
            ("abs", 1) => Op::Absolute,
            ("min", 2) => Op::Binary(Binary::Least),
            ("max", 2) => Op::Binary(Binary::Most),
            _ => {
                let expected = match name {
                    "count" => "no argument or a condition",
                    "min" | "max" => "1 argument (of all items) or 2 numbers",
                    _ => "1 argument",
                };
                let problem = Problem::Arguments { name: name.to_owned(), expected, came };
                return Err(self.error(word.start, problem));
            }
        };
        for argument in arguments {
            self.require(&argument.term, Kind::Number, &format!("{name}()"))?;
            self.frame.code.extend(argument.frame.code);
            self.frame.loose = self.frame.loose.take().or(argument.frame.loose);
        }
        self.frame.code.push(operator);
        Ok(Term { kind: Kind::Number, start: word.start, end })
    }

    fn arguments(&mut self) -> Result<Vec<Argument>> {
        let mut arguments = Vec::new();
        if self.is_next(")") {
            return Ok(arguments);
        }
        loop {
            let term = self.disjunction()?;
            arguments.push(Argument { term, frame: std::mem::take(&mut self.frame) });
            if self.accept(&[(",", ())])?.is_none() {
                return Ok(arguments);
            }
        }
    }

    /// Takes the value of an aggregate, which is computed once however often it is written.
    fn aggregate(&mut self, aggregate: Aggregate, word: Word<'a>) -> Result<()> {
        let known = self.aggregates.iter().position(|other| *other == aggregate);
        let index = match known {
            Some(index) => index,
            None if self.aggregates.len() == MAX_AGGREGATES => {
                return Err(self.error(word.start, Problem::TooManyAggregates));
            }
            None => {
                self.aggregates.push(aggregate);
                self.aggregates.len() - 1
            }
        };
        self.frame.code.push(Op::Aggregate(index));
        Ok(())
    }

    /// Operands between operators that bind equally, from left to right.
    fn chain(
        &mut self,
        operators: &[(&'static str, Binary)],
        kind: Kind,
        operand: fn(&mut Self) -> Result<Term>,
    ) -> Result<Term> {
        let mut left = operand(self)?;
        while let Some((symbol, operator)) = self.accept(operators)? {
            left = self.join(left, symbol, operator, kind, kind, operand)?;
        }
        Ok(left)
    }

    /// The left operand and the one that comes, which are both of the kind that is taken.
    fn join(
        &mut self,
        left: Term,
        symbol: &str,
        operator: Binary,
        takes: Kind,
        gives: Kind,
        operand: fn(&mut Self) -> Result<Term>,
    ) -> Result<Term> {
        let taker = format!("`{symbol}`");
        self.require(&left, takes, &taker)?;
        let right = operand(self)?;
        self.require(&right, takes, &taker)?;
        self.frame.code.push(Op::Binary(operator));
        Ok(Term { kind: gives, start: left.start, end: right.end })
    }

    /// What comes, with the symbol before it or without.
    fn prefixed(
        &mut self,
        symbol: &'static str,
        op: Op,
        kind: Kind,
        with: fn(&mut Self) -> Result<Term>,
        without: fn(&mut Self) -> Result<Term>,
    ) -> Result<Term> {
        let start = self.next.start;
        if self.accept(&[(symbol, ())])?.is_none() {
            return without(self);
        }
        let term = self.nested(start, with)?;
        self.require(&term, kind, &format!("`{symbol}`"))?;
        self.frame.code.push(op);
        Ok(Term { kind, start, end: term.end })
    }

    fn nested<T>(&mut self, start: usize, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(start, Problem::TooDeep));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Code that was read to its end.
    fn finished(&self, code: Vec<Op>, term: &Term) -> Result<Code> {
        Code::new(code).ok_or_else(|| self.error(term.start, Problem::TooDeep))
    }

    fn require(&self, term: &Term, kind: Kind, taker: &str) -> Result<()> {
        if term.kind == kind {
            return Ok(());
        }
        let came = shortened(self.text.get(term.start..term.end).unwrap_or_default());
        let problem = Problem::WrongKind { taker: taker.to_owned(), expected: kind, came };
        Err(self.error(term.start, problem))
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.words.next()?;
        Ok(())
    }

    fn is_next(&self, symbol: &str) -> bool {
        matches!(self.next.token, Token::Symbol(next) if next == symbol)
    }

    /// Takes the next word if it is one of these symbols.
    fn accept<T: Copy>(
        &mut self,
        symbols: &[(&'static str, T)],
    ) -> Result<Option<(&'static str, T)>> {
        let found = symbols.iter().find(|(symbol, _)| self.is_next(symbol)).copied();
        if found.is_some() {
            self.advance()?;
        }
        Ok(found)
    }

    /// Takes the parenthesis that ends what was begun; where that ends.
    fn close(&mut self, expected: &'static str) -> Result<usize> {
        let end = self.next.end;
        match self.accept(&[(")", ())])? {
            Some(_) => Ok(end),
            None => Err(self.unexpected(expected)),
        }
    }

    fn unexpected(&self, expected: &'static str) -> ExpressionError {
        let came = match self.next.token {
            Token::End => "the end".to_owned(),
            _ => {
                let came = self.text.get(self.next.start..self.next.end).unwrap_or_default();
                format!("`{}`", shortened(came))
            }
        };
        self.error(self.next.start, Problem::Unexpected { expected, came })
    }

    fn error(&self, start: usize, problem: Problem) -> ExpressionError {
        ExpressionError { position: position(self.text, start), problem }
    }
}

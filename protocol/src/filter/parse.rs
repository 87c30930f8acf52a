//! From a filter's text to a typed expression.
//!
//! The tokens are read with winnow. Each rule of the grammar is one function; an expression comes with its type and its
//! position, so that whoever takes it can refuse it.

use winnow::Parser;
use winnow::ascii::digit1;
use winnow::combinator::{delimited, opt, preceded};
use winnow::error::ParserError;
use winnow::stream::{LocatingSlice, Location, Stateful, Stream};
use winnow::token::{take_till, take_while};

use super::expression::{Comparison, Expression, Function, Identifier, Type};
use super::{FILTER_BYTES_MAX, FILTER_DEPTH_MAX, FilterError, FilterProblem};

/// The state is how deep expressions are nested.
type Input<'s> = Stateful<LocatingSlice<&'s str>, usize>;

/// What went wrong, and at which byte. Rules look at what comes before they take it, so that none has to be tried
/// twice and every error is final.
#[derive(Debug)]
struct Failure {
    at: usize,
    problem: FilterProblem,
}

type Parsed<T> = Result<T, Failure>;

/// An expression with what is known of it.
struct Typed {
    expression: Expression,
    gives: Type,
    at: usize,
}

impl ParserError<Input<'_>> for Failure {
    type Inner = Self;

    fn from_input(input: &Input<'_>) -> Self {
        failure(input.current_token_start(), FilterProblem::Expected("something else"))
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

/// Reads a whole filter.
pub fn parse(text: &str) -> Result<Expression, FilterError> {
    let located = |Failure { at, problem }: Failure| {
        let position = text.get(..at).map_or(0, |before| before.chars().count());
        FilterError { position, problem }
    };
    if text.len() > FILTER_BYTES_MAX {
        return Err(located(failure(0, FilterProblem::TooLong)));
    }
    let mut input = Stateful { input: LocatingSlice::new(text), state: 0 };
    whole(&mut input).map_err(located)
}

fn whole(input: &mut Input<'_>) -> Parsed<Expression> {
    let filter = any_of(input)?;
    if peek(input).is_some() {
        return Err(here(input, FilterProblem::Expected("an operator or the end")));
    }
    Ok(filter.must_be(Type::Bool)?.expression)
}

fn any_of(input: &mut Input<'_>) -> Parsed<Typed> {
    chain(input, "or", all_of, Expression::Any)
}

fn all_of(input: &mut Input<'_>) -> Parsed<Typed> {
    chain(input, "and", compared, Expression::All)
}

/// Bools with an operator between them: flat, so that a long chain is not a deep one.
fn chain(
    input: &mut Input<'_>,
    operator: &str,
    operand: fn(&mut Input<'_>) -> Parsed<Typed>,
    combine: fn(Vec<Expression>) -> Expression,
) -> Parsed<Typed> {
    let first = operand(input)?;
    if next_word(input) != operator {
        return Ok(first);
    }
    let at = first.at;
    let mut operands = vec![first.must_be(Type::Bool)?.expression];
    while next_word(input) == operator {
        word(input)?;
        operands.push(operand(input)?.must_be(Type::Bool)?.expression);
    }
    Ok(Typed { expression: combine(operands), gives: Type::Bool, at })
}

fn compared(input: &mut Input<'_>) -> Parsed<Typed> {
    let depth = input.state;
    let mut left = negated(input)?;
    while let Some(comparison) = Comparison::named(next_word(input)) {
        word(input)?;
        // Each further one holds those before.
        deepen(input)?;
        let right = negated(input)?;
        if comparison.orders() {
            left = left.must_be(Type::Int)?;
        }
        let right = if comparison.orders() { right.must_be(Type::Int)? } else { right };
        let at = left.at;
        let operands = Box::new([left.expression, right.expression]);
        left = Typed { expression: Expression::Compare(comparison, operands), gives: Type::Bool, at };
    }
    input.state = depth;
    Ok(left)
}

fn negated(input: &mut Input<'_>) -> Parsed<Typed> {
    let at = position(input)?;
    if next_word(input) != "not" {
        return contained(input);
    }
    word(input)?;
    let operand = deeper(input, negated)?.must_be(Type::Bool)?;
    Ok(Typed { expression: Expression::Not(Box::new(operand.expression)), gives: Type::Bool, at })
}

fn contained(input: &mut Input<'_>) -> Parsed<Typed> {
    let left = primary(input)?;
    if next_word(input) != "in" {
        return Ok(left);
    }
    word(input)?;
    let (at, element) = (left.at, Box::new(left.expression));
    let right_at = position(input)?;
    let expression = match (take(input, '('), Identifier::named(next_word(input))) {
        (true, _) => Expression::InList(element, deeper(input, items)?),
        (false, Some(Identifier::Groups)) => {
            word(input)?;
            Expression::InGroups(element)
        }
        (false, _) => return Err(failure(right_at, FilterProblem::Expected("a list or 'groups'"))),
    };
    Ok(Typed { expression, gives: Type::Bool, at })
}

/// What stands in a list's brackets, and the closing one.
fn items(input: &mut Input<'_>) -> Parsed<Vec<Expression>> {
    let mut items = Vec::new();
    loop {
        match peek(input) {
            Some(')') => {
                take(input, ')');
                return Ok(items);
            }
            Some(',') => {
                take(input, ',');
            }
            _ => {
                items.push(any_of(input)?.expression);
                if !matches!(peek(input), Some(',' | ')')) {
                    return Err(here(input, FilterProblem::Expected("',' or ')'")));
                }
            }
        }
    }
}

fn primary(input: &mut Input<'_>) -> Parsed<Typed> {
    let at = position(input)?;
    let (expression, gives) = match peek(input) {
        Some('\'') => (Expression::String(string(input)?), Type::String),
        Some('-' | '0'..='9') => (Expression::Int(int(input)?), Type::Int),
        Some('(') => {
            take(input, '(');
            let inner = deeper(input, any_of)?;
            close(input)?;
            return Ok(Typed { at, ..inner });
        }
        Some(c) if is_word(c) => named(input, at)?,
        Some(c) => return Err(failure(at, FilterProblem::Unsupported(c.to_string()))),
        None => return Err(failure(at, FilterProblem::Expected("an expression"))),
    };
    Ok(Typed { expression, gives, at })
}

/// What begins with a word: a literal, an identifier or a call.
fn named(input: &mut Input<'_>, at: usize) -> Parsed<(Expression, Type)> {
    let name = word(input)?;
    if let Some(function) = Function::named(name).filter(|_| next_char(input) == Some('(')) {
        take(input, '(');
        let arguments = deeper(input, |input| arguments(input, function, at))?;
        return Ok((Expression::Call(function, arguments), function.gives()));
    }
    Ok(match name {
        "true" => (Expression::Bool(true), Type::Bool),
        "false" => (Expression::Bool(false), Type::Bool),
        "null" => (Expression::Null, Type::Null),
        name => match Identifier::named(name) {
            Some(identifier) => (Expression::Identifier(identifier), identifier.gives()),
            None => return Err(failure(at, FilterProblem::Unsupported(shown(name)))),
        },
    })
}

fn arguments(input: &mut Input<'_>, function: Function, at: usize) -> Parsed<Vec<Expression>> {
    let (parameters, needed) = function.parameters();
    let mut arguments = Vec::new();
    while peek(input) != Some(')') {
        if !arguments.is_empty() && !take(input, ',') {
            return Err(here(input, FilterProblem::Expected("',' or ')'")));
        }
        let Some(parameter) = parameters.get(arguments.len()) else {
            return Err(failure(at, FilterProblem::Arguments));
        };
        let argument = any_of(input)?;
        if !parameter.takes(argument.gives) {
            let problem = FilterProblem::Type { actual: argument.gives.name(), expected: parameter.name() };
            return Err(failure(argument.at, problem));
        }
        arguments.push(argument.expression);
    }
    close(input)?;
    if arguments.len() < needed {
        return Err(failure(at, FilterProblem::Arguments));
    }
    Ok(arguments)
}

impl Typed {
    fn must_be(self, expected: Type) -> Parsed<Self> {
        let is_null_number = expected == Type::Int && self.gives == Type::Null;
        if self.gives == expected || is_null_number {
            return Ok(self);
        }
        let problem = FilterProblem::Type { actual: self.gives.name(), expected: expected.name() };
        Err(failure(self.at, problem))
    }
}

fn deeper<'s, T>(input: &mut Input<'s>, rule: impl FnOnce(&mut Input<'s>) -> Parsed<T>) -> Parsed<T> {
    deepen(input)?;
    let parsed = rule(input)?;
    input.state -= 1;
    Ok(parsed)
}

fn deepen(input: &mut Input<'_>) -> Parsed<()> {
    if input.state == FILTER_DEPTH_MAX {
        return Err(here(input, FilterProblem::TooDeep));
    }
    input.state += 1;
    Ok(())
}

// Tokens. Blanks before each are passed over.

fn string(input: &mut Input<'_>) -> Parsed<String> {
    let at = position(input)?;
    let mut text = String::new();
    loop {
        let piece = delimited('\'', take_till(0.., '\''), '\'').parse_next(input);
        text.push_str(piece.map_err(|_: Failure| unclosed(at))?);
        // A quote right behind the closing one is a part of the text.
        if next_char(input) != Some('\'') {
            return Ok(text);
        }
        text.push('\'');
    }
}

fn unclosed(at: usize) -> Failure {
    failure(at, FilterProblem::Expected("a closing quote"))
}

fn int(input: &mut Input<'_>) -> Parsed<i32> {
    let at = position(input)?;
    let number: Parsed<&str> = (opt('-'), digit1).take().parse_next(input);
    let number = number.map_err(|_| failure(at, FilterProblem::Expected("a number")))?;
    let follows = next_char(input);
    if follows.is_some_and(|c| is_word(c) || c == '.') {
        return Err(failure(at, FilterProblem::Unsupported("another number than an int".to_owned())));
    }
    number.parse().map_err(|_| failure(at, FilterProblem::NotInt32))
}

/// The word that comes next, which stays there; empty if none does.
fn next_word<'s>(input: &mut Input<'s>) -> &'s str {
    let start = input.checkpoint();
    let word = word(input).unwrap_or("");
    input.reset(&start);
    word
}

fn word<'s>(input: &mut Input<'s>) -> Parsed<&'s str> {
    let at = position(input)?;
    let word = take_while::<_, _, Failure>(1.., is_word).parse_next(input);
    let word = word.map_err(|_| failure(at, FilterProblem::Expected("a word")))?;
    match next_char(input) {
        // The language has no other literals than these, and no paths.
        Some('\'') => Err(failure(at, FilterProblem::Unsupported(format!("{}'", shown(word))))),
        _ => Ok(word),
    }
}

fn close(input: &mut Input<'_>) -> Parsed<()> {
    if take(input, ')') { Ok(()) } else { Err(here(input, FilterProblem::Expected("')'"))) }
}

/// Takes a sign, if it comes next.
fn take(input: &mut Input<'_>, sign: char) -> bool {
    let taken: Parsed<Option<char>> = opt(preceded(blank, sign)).parse_next(input);
    matches!(taken, Ok(Some(_)))
}

/// The character that comes next behind blanks, which stays there.
fn peek(input: &mut Input<'_>) -> Option<char> {
    let _ = blank(input);
    next_char(input)
}

fn next_char(input: &Input<'_>) -> Option<char> {
    input.peek_token()
}

fn blank(input: &mut Input<'_>) -> Parsed<()> {
    take_while(0.., char::is_whitespace).void().parse_next(input)
}

/// Where the next token begins, in bytes.
fn position(input: &mut Input<'_>) -> Parsed<usize> {
    blank(input)?;
    Ok(input.current_token_start())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What an error repeats of a name: it has no bound of its own.
fn shown(name: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 32;
    name.chars().take(SHOWN_CHARS_MAX).collect()
}

fn here(input: &mut Input<'_>, problem: FilterProblem) -> Failure {
    let _ = blank(input);
    failure(input.current_token_start(), problem)
}

fn failure(at: usize, problem: FilterProblem) -> Failure {
    Failure { at, problem }
}

//! What an expression gives for a connection.
//!
//! Types were checked when the expression was read, so a value of another type than is needed is a null.

use std::borrow::Cow;

use super::Subject;
use super::expression::{Comparison, Expression, Function, Identifier};

#[derive(Debug, PartialEq)]
enum Value<'a> {
    String(Cow<'a, str>),
    Int(i64),
    Bool(bool),
    Null,
    /// Equals nothing, itself included.
    Groups,
}

/// Whether a whole filter selects a connection.
pub fn is_true(expression: &Expression, subject: &impl Subject) -> bool {
    value(expression, subject) == Value::Bool(true)
}

fn value<'a>(expression: &'a Expression, subject: &'a impl Subject) -> Value<'a> {
    let is_true = |expression| is_true(expression, subject);
    match expression {
        Expression::String(text) => Value::String(text.into()),
        Expression::Int(number) => Value::Int(i64::from(*number)),
        Expression::Bool(is) => Value::Bool(*is),
        Expression::Null => Value::Null,
        Expression::Identifier(identifier) => identified(*identifier, subject),
        Expression::Call(function, arguments) => call(*function, arguments, subject),
        Expression::Not(operand) => Value::Bool(!is_true(operand)),
        Expression::Compare(comparison, operands) => {
            let [left, right] = &**operands;
            Value::Bool(compare(*comparison, &value(left, subject), &value(right, subject)))
        }
        Expression::InList(element, items) => {
            let element = value(element, subject);
            Value::Bool(items.iter().any(|item| are_equal(&element, &value(item, subject))))
        }
        Expression::OneOf(element, texts) => match value(element, subject) {
            Value::String(text) => Value::Bool(texts.contains(&*text)),
            _ => Value::Bool(false),
        },
        Expression::InAnyGroup(texts) => Value::Bool(subject.is_in_any_group(texts)),
        Expression::InGroups(element) => match value(element, subject) {
            Value::String(group) => Value::Bool(subject.is_in_group(&group)),
            _ => Value::Bool(false),
        },
        Expression::All(operands) => Value::Bool(operands.iter().all(is_true)),
        Expression::Any(operands) => Value::Bool(operands.iter().any(is_true)),
    }
}

fn identified(identifier: Identifier, subject: &impl Subject) -> Value<'_> {
    let text = match identifier {
        Identifier::ConnectionId => Some(subject.connection_id()),
        Identifier::UserId => subject.user_id(),
        Identifier::Protocol => subject.protocol(),
        Identifier::Groups => return Value::Groups,
    };
    text.map_or(Value::Null, |text| Value::String(text.into()))
}

fn are_equal(left: &Value<'_>, right: &Value<'_>) -> bool {
    !matches!(left, Value::Groups) && left == right
}

fn compare(comparison: Comparison, left: &Value<'_>, right: &Value<'_>) -> bool {
    let numbers = match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some((left, right)),
        _ => None,
    };
    match comparison {
        Comparison::Equal => are_equal(left, right),
        Comparison::NotEqual => !are_equal(left, right),
        Comparison::Greater => numbers.is_some_and(|(left, right)| left > right),
        Comparison::GreaterOrEqual => numbers.is_some_and(|(left, right)| left >= right),
        Comparison::Less => numbers.is_some_and(|(left, right)| left < right),
        Comparison::LessOrEqual => numbers.is_some_and(|(left, right)| left <= right),
    }
}

fn call<'a>(function: Function, arguments: &'a [Expression], subject: &'a impl Subject) -> Value<'a> {
    let argument = |at: usize| arguments.get(at).map_or(Value::Null, |argument| value(argument, subject));
    let text = |at: usize| match argument(at) {
        Value::String(text) => Some(text),
        _ => None,
    };
    let both = || Some((text(0)?, text(1)?));
    let string = |text: Option<String>| text.map_or(Value::Null, |text| Value::String(text.into()));
    match function {
        Function::Length => match argument(0) {
            Value::String(text) => Value::Int(utf16_len(&text)),
            Value::Groups => Value::Int(count(subject.group_count())),
            _ => Value::Null,
        },
        Function::ToLower => string(text(0).map(|text| each_char(&text, char::to_lowercase))),
        Function::ToUpper => string(text(0).map(|text| each_char(&text, char::to_uppercase))),
        Function::Trim => string(text(0).map(|text| text.trim().to_owned())),
        Function::Substring => {
            let length = if arguments.len() > 2 { Some(argument(2)) } else { None };
            string(text(0).and_then(|text| substring(&text, &argument(1), length.as_ref())))
        }
        Function::IndexOf => Value::Int(both().map_or(-1, |(text, part)| index_of(&text, &part))),
        Function::Concat => match (text(0), text(1)) {
            (None, None) => Value::Null,
            (first, second) => {
                let parts = [first.unwrap_or_default(), second.unwrap_or_default()];
                string(Some(parts.concat()))
            }
        },
        Function::Contains => Value::Bool(both().is_some_and(|(text, part)| text.contains(&*part))),
        Function::StartsWith => Value::Bool(both().is_some_and(|(text, part)| text.starts_with(&*part))),
        Function::EndsWith => Value::Bool(both().is_some_and(|(text, part)| text.ends_with(&*part))),
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn utf16_len(text: &str) -> i64 {
    count(text.encode_utf16().count())
}

/// Maps characters one by one and leaves those alone that would become several: whatever the locale.
fn each_char<I: Iterator<Item = char>>(text: &str, map: fn(char) -> I) -> String {
    let mapped = |c: char| {
        let mut all = map(c);
        match (all.next(), all.next()) {
            (Some(one), None) => one,
            _ => c,
        }
    };
    text.chars().map(mapped).collect()
}

/// None when the part is not wholly inside. Half of a surrogate pair becomes a replacement character.
fn substring(text: &str, start: &Value<'_>, length: Option<&Value<'_>>) -> Option<String> {
    let number = |value: &Value<'_>| match value {
        Value::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    let units: Vec<u16> = text.encode_utf16().collect();
    let start = number(start)?;
    let end = match length {
        Some(length) => start.checked_add(number(length)?)?,
        None => units.len(),
    };
    Some(String::from_utf16_lossy(units.get(start..end)?))
}

fn index_of(text: &str, part: &str) -> i64 {
    text.find(part).map_or(-1, |at| utf16_len(&text[..at]))
}

//! What an expression gives for a connection, as it stands there: what tests hold the compiled form to.
//!
//! Types were checked when the expression was read, so a value of another type than is needed is a null.

use std::borrow::Cow;

use super::Subject;
use super::expression::{Comparison, Expression, Function, Identifier};
use super::text::{count, index_of, lower, substring, upper, utf16_len};

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
        Function::ToLower => string(text(0).map(|text| lower(&text))),
        Function::ToUpper => string(text(0).map(|text| upper(&text))),
        Function::Trim => string(text(0).map(|text| text.trim().to_owned())),
        Function::Substring => {
            let number = |at| match argument(at) {
                Value::Int(number) => Some(number),
                _ => None,
            };
            let part = || match arguments.len() {
                0..3 => substring(&text(0)?, number(1)?, None),
                _ => substring(&text(0)?, number(1)?, Some(number(2)?)),
            };
            string(part())
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

//! Many questions about one value become one: a chain of a thousand `userId eq '…' or …` costs one look into a set for each
//! connection, and not a thousand comparisons.
//!
//! What a filter selects stays the same.

use std::collections::BTreeSet;

use super::expression::{Comparison, Expression};

/// The same expression, with questions put together wherever that is possible.
pub fn put_together(expression: Expression) -> Expression {
    match expression {
        Expression::Not(operand) => Expression::Not(Box::new(put_together(*operand))),
        Expression::Any(operands) => {
            one_or(chained(operands, false).into_iter().map(put_together).collect(), Expression::Any)
        }
        Expression::All(operands) => {
            one_or(chained(operands, true).into_iter().map(put_together).collect(), Expression::All)
        }
        Expression::InList(element, items) => listed(*element, items),
        // Nothing else holds a chain but as a part of a value, and values are compared one by one.
        other => other,
    }
}

fn one_or(mut operands: Vec<Expression>, combine: fn(Vec<Expression>) -> Expression) -> Expression {
    match operands.pop() {
        Some(only) if operands.is_empty() => only,
        last => {
            operands.extend(last);
            combine(operands)
        }
    }
}

/// What one operand of a chain asks: whether this value, or one of the groups, is this text.
struct Question {
    /// None for the groups.
    element: Option<Expression>,
    text: String,
}

/// The operands of a chain with `or`, or of one with `and` in which what is asked is denied.
fn chained(operands: Vec<Expression>, is_denied: bool) -> Vec<Expression> {
    let mut sets: Vec<(Option<Expression>, BTreeSet<String>)> = Vec::new();
    let mut combined = Vec::new();
    for operand in operands {
        match question(operand, is_denied) {
            Ok(Question { element, text }) => match sets.iter_mut().find(|(known, _)| *known == element) {
                Some((_, texts)) => _ = texts.insert(text),
                None => sets.push((element, BTreeSet::from([text]))),
            },
            Err(other) => combined.push(other),
        }
    }
    let asked = sets.into_iter().map(|(element, texts)| {
        let asked = match element {
            Some(element) => Expression::OneOf(Box::new(element), texts),
            None => Expression::InAnyGroup(texts),
        };
        if is_denied { Expression::Not(Box::new(asked)) } else { asked }
    });
    combined.extend(asked);
    combined
}

/// The question that an operand asks, or denies; the operand itself if it is another one.
fn question(operand: Expression, is_denied: bool) -> Result<Question, Expression> {
    match operand {
        Expression::Compare(Comparison::Equal, operands) if !is_denied => {
            equality(*operands).map_err(|operands| Expression::Compare(Comparison::Equal, Box::new(operands)))
        }
        Expression::Compare(Comparison::NotEqual, operands) if is_denied => equality(*operands)
            .map_err(|operands| Expression::Compare(Comparison::NotEqual, Box::new(operands))),
        Expression::InGroups(element) if !is_denied => match *element {
            Expression::String(text) => Ok(Question { element: None, text }),
            other => Err(Expression::InGroups(Box::new(other))),
        },
        Expression::Not(operand) if is_denied => {
            question(*operand, false).map_err(|other| Expression::Not(Box::new(other)))
        }
        other => Err(other),
    }
}

fn equality(operands: [Expression; 2]) -> Result<Question, [Expression; 2]> {
    match operands {
        [element, Expression::String(text)] | [Expression::String(text), element] => {
            Ok(Question { element: Some(element), text })
        }
        other => Err(other),
    }
}

/// `in` a list: its texts as a set, and what is computed one by one.
fn listed(element: Expression, items: Vec<Expression>) -> Expression {
    let mut texts = BTreeSet::new();
    let mut others = Vec::new();
    for item in items {
        match item {
            Expression::String(text) => _ = texts.insert(text),
            other => others.push(other),
        }
    }
    if texts.is_empty() {
        return Expression::InList(Box::new(element), others);
    }
    let mut operands = Vec::new();
    if !others.is_empty() {
        operands.push(Expression::InList(Box::new(element.clone()), others));
    }
    operands.push(Expression::OneOf(Box::new(element), texts));
    one_or(operands, Expression::Any)
}

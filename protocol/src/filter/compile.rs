//! From an expression to a program: what is the same for all connections is computed once, what is asked twice becomes one
//! question, and what a text is compared with becomes one search.

use std::collections::{BTreeMap, BTreeSet};

use super::expression::{Comparison, Expression, Function, Identifier};
use super::program::{Asked, Number, NumberId, Program, Text, TextId, Truth, TruthId};
use super::text::{count, index_of, lower, substring, upper, utf16_len};

/// Makes the program of a whole filter.
pub fn compile(filter: &Expression) -> Program {
    let mut compiler = Compiler::default();
    let root = compiler.truth(filter);
    let Compiler { mut program, .. } = compiler;
    program.root = root;
    for Asked { values, sorted, .. } in &mut program.asked {
        *sorted = (0..values.len()).collect();
        sorted.sort_unstable_by(|a, b| Asked::order(values[*a].as_deref(), values[*b].as_deref()));
    }
    program
}

/// What an expression is.
#[derive(Clone, Copy)]
enum Value {
    Null,
    Text(TextId),
    Number(NumberId),
    Truth(TruthId),
    Groups,
}

#[derive(Default)]
struct Compiler {
    program: Program,
    texts: BTreeMap<Text, TextId>,
    numbers: BTreeMap<Number, NumberId>,
    truths: BTreeMap<Truth, TruthId>,
    /// What each truth costs, all that it is made of included, in values of a connection.
    costs: Vec<usize>,
    asked: BTreeMap<TextId, usize>,
    values: BTreeMap<(usize, Option<Box<str>>), usize>,
    groups: BTreeMap<Box<str>, usize>,
}

/// The place of something in a list, each once.
fn place<T: Clone + Ord>(places: &mut BTreeMap<T, usize>, list: &mut Vec<T>, one: T) -> usize {
    *places.entry(one).or_insert_with_key(|one| {
        list.push(one.clone());
        list.len() - 1
    })
}

impl Compiler {
    fn value(&mut self, expression: &Expression) -> Value {
        match expression {
            Expression::String(text) => self.literal(text),
            Expression::Int(number) => self.number(Number::Literal(i64::from(*number))),
            Expression::Null => Value::Null,
            Expression::Identifier(Identifier::ConnectionId) => self.text(Text::ConnectionId),
            Expression::Identifier(Identifier::UserId) => self.text(Text::UserId),
            Expression::Identifier(Identifier::Protocol) => self.text(Text::Protocol),
            Expression::Identifier(Identifier::Groups) => Value::Groups,
            Expression::Call(function, arguments) => self.call(*function, arguments),
            Expression::Bool(is) => Value::Truth(self.always(*is)),
            Expression::Not(operand) => {
                let operand = self.truth(operand);
                Value::Truth(self.not(operand))
            }
            Expression::Compare(comparison, operands) => {
                let [left, right] = &**operands;
                let (left, right) = (self.value(left), self.value(right));
                Value::Truth(self.compare(*comparison, left, right))
            }
            Expression::InList(element, items) => {
                let element = self.value(element);
                let equal = items.iter().map(|item| {
                    let item = self.value(item);
                    self.equal(element, item)
                });
                let equal = equal.collect();
                Value::Truth(self.any(equal))
            }
            Expression::InGroups(element) => Value::Truth(match self.value(element) {
                Value::Text(text) => self.in_group(text),
                _ => self.always(false),
            }),
            Expression::All(operands) => {
                let operands = operands.iter().map(|operand| self.truth(operand)).collect();
                Value::Truth(self.all(operands))
            }
            Expression::Any(operands) => {
                let operands = operands.iter().map(|operand| self.truth(operand)).collect();
                Value::Truth(self.any(operands))
            }
        }
    }

    /// What is no bool is not true.
    fn truth(&mut self, expression: &Expression) -> TruthId {
        match self.value(expression) {
            Value::Truth(truth) => truth,
            _ => self.always(false),
        }
    }

    fn literal(&mut self, text: &str) -> Value {
        self.text(Text::Literal(text.into()))
    }

    fn text(&mut self, text: Text) -> Value {
        let cost = self.program.cost_of(&text);
        let id = place(&mut self.texts, &mut self.program.texts, text);
        if id == self.program.text_costs.len() {
            self.program.text_costs.push(cost);
        }
        Value::Text(id)
    }

    fn number(&mut self, number: Number) -> Value {
        Value::Number(place(&mut self.numbers, &mut self.program.numbers, number))
    }

    fn text_literal(&self, id: TextId) -> Option<&str> {
        match &self.program.texts[id] {
            Text::Literal(text) => Some(text),
            _ => None,
        }
    }

    fn number_literal(&self, id: NumberId) -> Option<i64> {
        match self.program.numbers[id] {
            Number::Literal(number) => Some(number),
            _ => None,
        }
    }

    // Truths.

    fn add(&mut self, truth: Truth) -> TruthId {
        let own = self.program.values_of(&truth);
        let parts = match &truth {
            Truth::Not(of) => self.costs[*of],
            Truth::All(of) | Truth::Any(of) => {
                of.iter().fold(0, |sum, id| self.costs[*id].saturating_add(sum))
            }
            Truth::Same(a, b) => self.costs[*a].saturating_add(self.costs[*b]),
            _ => 0,
        };
        let id = place(&mut self.truths, &mut self.program.truths, truth);
        if id == self.costs.len() {
            self.costs.push(own.saturating_add(parts));
        }
        id
    }

    fn always(&mut self, is: bool) -> TruthId {
        self.add(Truth::Always(is))
    }

    fn is_always(&self, id: TruthId) -> Option<bool> {
        match self.program.truths[id] {
            Truth::Always(is) => Some(is),
            _ => None,
        }
    }

    fn not(&mut self, of: TruthId) -> TruthId {
        match self.program.truths[of] {
            Truth::Always(is) => self.always(!is),
            Truth::Not(inner) => inner,
            _ => self.add(Truth::Not(of)),
        }
    }

    fn all(&mut self, operands: Vec<TruthId>) -> TruthId {
        self.chain(operands, true)
    }

    fn any(&mut self, operands: Vec<TruthId>) -> TruthId {
        self.chain(operands, false)
    }

    /// All or any of some; `neutral` is what changes nothing among them, and its opposite decides.
    fn chain(&mut self, operands: Vec<TruthId>, neutral: bool) -> TruthId {
        let mut flat = BTreeSet::new();
        for operand in operands {
            match &self.program.truths[operand] {
                Truth::Always(is) if *is == neutral => {}
                Truth::Always(_) => return operand,
                Truth::All(inner) if neutral => flat.extend(inner.iter().copied()),
                Truth::Any(inner) if !neutral => flat.extend(inner.iter().copied()),
                _ => {
                    flat.insert(operand);
                }
            }
        }
        let mut flat: Vec<TruthId> = flat.into_iter().collect();
        flat.sort_by_key(|id| self.costs[*id]);
        match (&*flat, neutral) {
            ([], _) => self.always(neutral),
            ([one], _) => *one,
            (_, true) => self.add(Truth::All(flat)),
            (_, false) => self.add(Truth::Any(flat)),
        }
    }

    fn compare(&mut self, comparison: Comparison, left: Value, right: Value) -> TruthId {
        match (comparison, left, right) {
            (Comparison::Equal, ..) => self.equal(left, right),
            (Comparison::NotEqual, ..) => {
                let equal = self.equal(left, right);
                self.not(equal)
            }
            (_, Value::Number(a), Value::Number(b)) => self.compare_numbers(comparison, a, b),
            _ => self.always(false),
        }
    }

    fn compare_numbers(&mut self, comparison: Comparison, a: NumberId, b: NumberId) -> TruthId {
        match (self.number_literal(a), self.number_literal(b)) {
            (Some(a), Some(b)) => self.always(comparison.holds(Some(a), Some(b))),
            _ => self.add(Truth::Compare(comparison, a, b)),
        }
    }

    fn equal(&mut self, left: Value, right: Value) -> TruthId {
        match (left, right) {
            (Value::Null, Value::Null) => self.always(true),
            (Value::Null, Value::Text(text)) | (Value::Text(text), Value::Null) => self.is(text, None),
            (Value::Null, Value::Number(number)) | (Value::Number(number), Value::Null) => {
                match self.program.numbers[number] {
                    Number::Length(text) => self.is(text, None),
                    Number::Literal(_) | Number::GroupCount | Number::IndexOf(..) => self.always(false),
                }
            }
            (Value::Text(a), Value::Text(b)) => self.equal_texts(a, b),
            // A null is a null, whatever it stands for.
            (Value::Text(text), number @ Value::Number(_))
            | (number @ Value::Number(_), Value::Text(text)) => {
                let both = vec![self.is(text, None), self.equal(number, Value::Null)];
                self.all(both)
            }
            (Value::Number(a), Value::Number(b)) if a == b => self.always(true),
            (Value::Number(a), Value::Number(b)) => {
                self.compare_numbers(Comparison::Equal, a.min(b), a.max(b))
            }
            (Value::Truth(a), Value::Truth(b)) => match (self.is_always(a), self.is_always(b)) {
                _ if a == b => self.always(true),
                (Some(true), _) => b,
                (_, Some(true)) => a,
                (Some(false), _) => self.not(b),
                (_, Some(false)) => self.not(a),
                (None, None) => self.add(Truth::Same(a.min(b), a.max(b))),
            },
            _ => self.always(false),
        }
    }

    fn equal_texts(&mut self, a: TextId, b: TextId) -> TruthId {
        match (self.text_literal(a).map(Box::from), self.text_literal(b).map(Box::from)) {
            _ if a == b => self.always(true),
            (Some(_), Some(_)) => self.always(false),
            (Some(value), None) => self.is(b, Some(value)),
            (None, Some(value)) => self.is(a, Some(value)),
            (None, None) => self.add(Truth::SameText(a.min(b), a.max(b))),
        }
    }

    /// Whether a text is this one, or null.
    fn is(&mut self, text: TextId, value: Option<Box<str>>) -> TruthId {
        if self.text_literal(text).is_some() {
            // A literal with another one has been compared.
            return self.always(false);
        }
        let list = &mut self.program.asked;
        let asked = *self.asked.entry(text).or_insert_with(|| {
            list.push(Asked { text, values: Vec::new(), sorted: Vec::new() });
            list.len() - 1
        });
        let values = &mut self.program.asked[asked].values;
        let value = *self.values.entry((asked, value)).or_insert_with_key(|(_, value)| {
            values.push(value.clone());
            values.len() - 1
        });
        self.add(Truth::Is(asked, value))
    }

    fn in_group(&mut self, text: TextId) -> TruthId {
        match self.text_literal(text).map(Box::from) {
            Some(name) => {
                let group = place(&mut self.groups, &mut self.program.groups, name);
                self.add(Truth::InGroup(group))
            }
            None => self.add(Truth::InGroupNamed(text)),
        }
    }

    // Functions.

    fn call(&mut self, function: Function, arguments: &[Expression]) -> Value {
        let values: Vec<Value> = arguments.iter().map(|argument| self.value(argument)).collect();
        match (function, &*values) {
            (Function::Length, [Value::Groups]) => self.number(Number::GroupCount),
            (Function::Length, [Value::Text(text)]) => match self.text_literal(*text).map(utf16_len) {
                Some(length) => self.number(Number::Literal(length)),
                None => self.number(Number::Length(*text)),
            },
            (Function::ToLower, [Value::Text(text)]) => self.changed(*text, lower, Text::Lower),
            (Function::ToUpper, [Value::Text(text)]) => self.changed(*text, upper, Text::Upper),
            (Function::Trim, [Value::Text(text)]) => {
                self.changed(*text, |text| text.trim().to_owned(), Text::Trim)
            }
            (Function::Substring, [Value::Text(text), Value::Number(start)]) => {
                self.substring(*text, *start, None)
            }
            (Function::Substring, [Value::Text(text), Value::Number(start), Value::Number(length)]) => {
                self.substring(*text, *start, Some(*length))
            }
            (Function::Concat, [Value::Text(a), Value::Text(b)]) => {
                match (self.text_literal(*a), self.text_literal(*b)) {
                    (Some(a), Some(b)) => {
                        let both = [a, b].concat();
                        self.literal(&both)
                    }
                    _ => self.text(Text::Concat(*a, *b)),
                }
            }
            (Function::Concat, [Value::Text(text), _] | [_, Value::Text(text)]) => Value::Text(*text),
            (Function::IndexOf, [Value::Text(a), Value::Text(b)]) => match self.literals(*a, *b, index_of) {
                Some(at) => self.number(Number::Literal(at)),
                None => self.number(Number::IndexOf(*a, *b)),
            },
            (Function::IndexOf, _) => self.number(Number::Literal(-1)),
            (Function::Contains, [Value::Text(a), Value::Text(b)]) => {
                let is = self.literals(*a, *b, |text, part| text.contains(part));
                Value::Truth(self.known_or(is, Truth::Contains(*a, *b)))
            }
            (Function::StartsWith, [Value::Text(a), Value::Text(b)]) => {
                let is = self.literals(*a, *b, |text, part| text.starts_with(part));
                Value::Truth(self.known_or(is, Truth::StartsWith(*a, *b)))
            }
            (Function::EndsWith, [Value::Text(a), Value::Text(b)]) => {
                let is = self.literals(*a, *b, |text, part| text.ends_with(part));
                Value::Truth(self.known_or(is, Truth::EndsWith(*a, *b)))
            }
            (Function::Contains | Function::StartsWith | Function::EndsWith, _) => {
                Value::Truth(self.always(false))
            }
            // A null gives null.
            _ => Value::Null,
        }
    }

    fn known_or(&mut self, is: Option<bool>, truth: Truth) -> TruthId {
        match is {
            Some(is) => self.always(is),
            None => self.add(truth),
        }
    }

    /// What two literals give.
    fn literals<T>(&self, a: TextId, b: TextId, of: impl Fn(&str, &str) -> T) -> Option<T> {
        Some(of(self.text_literal(a)?, self.text_literal(b)?))
    }

    fn changed(
        &mut self,
        text: TextId,
        change: impl Fn(&str) -> String,
        changed: fn(TextId) -> Text,
    ) -> Value {
        match self.text_literal(text).map(change) {
            Some(literal) => self.literal(&literal),
            None => self.text(changed(text)),
        }
    }

    fn substring(&mut self, text: TextId, start: NumberId, length: Option<NumberId>) -> Value {
        let known_length = length.map(|length| self.number_literal(length));
        let known = match (self.text_literal(text), self.number_literal(start), known_length) {
            (Some(text), Some(start), None) => Some(substring(text, start, None)),
            (Some(text), Some(start), Some(Some(length))) => Some(substring(text, start, Some(length))),
            _ => None,
        };
        match known {
            Some(Some(literal)) => self.literal(&literal),
            Some(None) => Value::Null,
            None => self.text(Text::Substring(text, start, length)),
        }
    }
}

impl Comparison {
    /// Whether it holds between two numbers, of which each may be null.
    pub fn holds(self, left: Option<i64>, right: Option<i64>) -> bool {
        let both = left.zip(right);
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Greater => both.is_some_and(|(left, right)| left > right),
            Self::GreaterOrEqual => both.is_some_and(|(left, right)| left >= right),
            Self::Less => both.is_some_and(|(left, right)| left < right),
            Self::LessOrEqual => both.is_some_and(|(left, right)| left <= right),
        }
    }
}

impl Number {
    /// How many groups there are, as the language counts.
    pub fn of_groups(groups: usize) -> i64 {
        count(groups)
    }
}

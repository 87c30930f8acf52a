//! A filter as it is carried out: what it asks, each question once.
//!
//! [`compile`](super::compile) makes it, [`run`](super::run) carries it out for many connections at once.

use std::cmp::Ordering;

use super::expression::Comparison;

/// A text's place among [`Program::texts`].
pub type TextId = usize;
/// A number's place among [`Program::numbers`].
pub type NumberId = usize;
/// A truth's place among [`Program::truths`].
pub type TruthId = usize;

/// See the module. What stands for a part has a smaller place than the whole.
#[derive(Debug, Default)]
pub struct Program {
    /// The filter.
    pub root: TruthId,
    /// Whatever is true or false.
    pub truths: Vec<Truth>,
    /// Texts or null.
    pub texts: Vec<Text>,
    /// What each text costs.
    pub text_costs: Vec<TextCost>,
    /// Numbers or null.
    pub numbers: Vec<Number>,
    /// Texts that are compared with literals.
    pub asked: Vec<Asked>,
    /// Names of groups; a connection is asked about each at most once.
    pub groups: Vec<Box<str>>,
}

/// A text or null.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// The same for all.
    Literal(Box<str>),
    /// Of a connection.
    ConnectionId,
    /// Of a connection.
    UserId,
    /// Of a connection.
    Protocol,
    /// In lower case.
    Lower(TextId),
    /// In upper case.
    Upper(TextId),
    /// Without white space around it.
    Trim(TextId),
    /// From a position on, and how much.
    Substring(TextId, NumberId, Option<NumberId>),
    /// Null only when both are.
    Concat(TextId, TextId),
}

/// What a text costs, in values of a connection.
#[derive(Debug, Clone, Copy)]
pub struct TextCost {
    /// What computing it costs, its parts included.
    values: usize,
    /// How long it may be.
    width: usize,
}

/// A number or null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// The same for all.
    Literal(i64),
    /// How many groups a connection is in.
    GroupCount,
    /// Null for a null.
    Length(TextId),
    /// -1 for a null.
    IndexOf(TextId, TextId),
}

/// True or false, never null.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// The same for all.
    Always(bool),
    /// The opposite.
    Not(TruthId),
    /// Whether all are true; at least two, those that cost least first.
    All(Vec<TruthId>),
    /// Whether one is true; at least two, those that cost least first.
    Any(Vec<TruthId>),
    /// Whether both are true or both false.
    Same(TruthId, TruthId),
    /// Whether a text of [`Program::asked`] is this one of its values.
    Is(usize, usize),
    /// Whether two texts are the same, or both null.
    SameText(TextId, TextId),
    /// Two numbers compared.
    Compare(Comparison, NumberId, NumberId),
    /// Whether it is in this one of [`Program::groups`].
    InGroup(usize),
    /// Whether it is in the group of this name.
    InGroupNamed(TextId),
    /// False for a null.
    Contains(TextId, TextId),
    /// False for a null.
    StartsWith(TextId, TextId),
    /// False for a null.
    EndsWith(TextId, TextId),
}

/// A text that is compared with literals: one search among them answers all of the comparisons.
#[derive(Debug)]
pub struct Asked {
    /// Which text.
    pub text: TextId,
    /// With what; none is null.
    pub values: Vec<Option<Box<str>>>,
    /// Places among the values, in the order of [`Asked::order`].
    pub sorted: Vec<usize>,
}

impl Asked {
    /// By length first, so that most comparisons are those of two numbers.
    pub fn order(a: Option<&str>, b: Option<&str>) -> Ordering {
        let key = |text: Option<&'_ str>| text.map(str::len);
        key(a).cmp(&key(b)).then_with(|| a.cmp(&b))
    }

    /// Which value a text is.
    pub fn find(&self, text: Option<&str>) -> Option<usize> {
        let at = self.sorted.binary_search_by(|at| Self::order(self.values[*at].as_deref(), text));
        Some(self.sorted[at.ok()?])
    }
}

/// So many bytes of a literal count like one value of a connection.
const LITERAL_BYTES_PER_VALUE: usize = 256;

impl Program {
    /// How many values of one connection are computed at most; see [`FILTER_VALUES_MAX`](super::FILTER_VALUES_MAX).
    pub fn values(&self) -> usize {
        let mut is_needed = vec![false; self.truths.len()];
        is_needed[self.root] = true;
        let mut is_asked = vec![false; self.asked.len()];
        let mut values = 0;
        for id in (0..=self.root).rev() {
            if !is_needed[id] {
                continue;
            }
            match &self.truths[id] {
                Truth::Not(of) => is_needed[*of] = true,
                Truth::All(of) | Truth::Any(of) => of.iter().for_each(|id| is_needed[*id] = true),
                Truth::Same(a, b) => [a, b].into_iter().for_each(|id| is_needed[*id] = true),
                Truth::Is(asked, _) => is_asked[*asked] = true,
                leaf => values += self.values_of(leaf),
            }
        }
        let of_asked = |(asked, _): (&Asked, _)| self.text_values(asked.text).max(1);
        values + self.asked.iter().zip(is_asked).filter(|(_, is)| *is).map(of_asked).sum::<usize>()
    }

    /// What computing one truth for a connection costs beside the truths that it is made of, in values.
    pub fn values_of(&self, truth: &Truth) -> usize {
        match truth {
            Truth::Always(_)
            | Truth::Not(_)
            | Truth::All(_)
            | Truth::Any(_)
            | Truth::Same(..)
            | Truth::InGroup(_) => 0,
            Truth::Is(asked, _) => self.text_values(self.asked[*asked].text),
            Truth::Compare(_, a, b) => 1 + self.number_values(*a) + self.number_values(*b),
            Truth::InGroupNamed(text) => 1 + self.text_values(*text),
            Truth::SameText(a, b)
            | Truth::Contains(a, b)
            | Truth::StartsWith(a, b)
            | Truth::EndsWith(a, b) => self.width(*a) + self.text_values(*a) + self.text_values(*b),
        }
    }

    fn number_values(&self, id: NumberId) -> usize {
        match self.numbers[id] {
            Number::Literal(_) | Number::GroupCount => 0,
            Number::Length(text) => self.width(text) + self.text_values(text),
            Number::IndexOf(a, b) => self.width(a) + self.text_values(a) + self.text_values(b),
        }
    }

    /// What a text costs whose parts have their places already.
    pub fn cost_of(&self, text: &Text) -> TextCost {
        let cost = |id: &TextId| self.text_costs[*id];
        let (parts, width) = match text {
            Text::Literal(text) => {
                return TextCost { values: 0, width: text.len() / LITERAL_BYTES_PER_VALUE };
            }
            Text::ConnectionId | Text::UserId | Text::Protocol => return TextCost { values: 0, width: 1 },
            Text::Lower(of) | Text::Upper(of) | Text::Trim(of) => (cost(of).values, cost(of).width),
            Text::Substring(of, start, length) => {
                let length = length.map_or(0, |length| self.number_values(length));
                (cost(of).values + self.number_values(*start) + length, cost(of).width)
            }
            Text::Concat(a, b) => (cost(a).values + cost(b).values, cost(a).width + cost(b).width),
        };
        TextCost { values: parts + width, width }
    }

    /// A text is computed anew for each that asks for it.
    fn text_values(&self, id: TextId) -> usize {
        self.text_costs[id].values
    }

    fn width(&self, id: TextId) -> usize {
        self.text_costs[id].width
    }
}

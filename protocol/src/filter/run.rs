//! Carries a program out for up to 64 connections at once.
//!
//! A truth of all of them is one word, a bit for each, so that `and`, `or` and `not` cost the same for 64 as for one. What
//! is asked of a connection is asked only if the answer may still decide, and once.

use std::borrow::Cow;

use super::program::{Number, NumberId, Program, Text, TextId, Truth, TruthId};
use super::text::{contains, index_of, lower, substring, upper, utf16_len};
use super::{SUBJECTS_MAX, Subject};

/// So many bytes of a text that is computed are a step.
const BYTES_PER_STEP: usize = 16;

/// Answers for some connections.
pub struct Run<'p, S> {
    program: &'p Program,
    subjects: &'p [S],
    /// For each of the program's groups who is in it.
    members: &'p [u64],
    /// For each truth of whom it is known.
    known: Vec<u64>,
    /// For each truth of whom it is true, as far as it is known.
    truths: Vec<u64>,
    /// For each text that is compared with literals of whom it has been looked up, and who has which value.
    looked_up: Vec<u64>,
    holders: Vec<Vec<u64>>,
    steps: usize,
}

impl<'p, S: Subject> Run<'p, S> {
    /// Nothing is known yet. Connections beyond [`SUBJECTS_MAX`] are passed over.
    pub fn new(program: &'p Program, subjects: &'p [S], members: &'p [u64]) -> Self {
        let truths = program.truths.len();
        Self {
            program,
            subjects,
            members,
            known: vec![0; truths],
            truths: vec![0; truths],
            looked_up: vec![0; program.asked.len()],
            holders: program.asked.iter().map(|asked| vec![0; asked.values.len()]).collect(),
            steps: 0,
        }
    }

    /// Whom the filter selects, a bit for each, and how many steps it took.
    pub fn selected(mut self) -> (u64, usize) {
        let all = match self.subjects.len() {
            SUBJECTS_MAX.. => u64::MAX,
            count => (1 << count) - 1,
        };
        let selected = self.truth(self.program.root, all);
        // What is set up for each truth is a step too, and what is looked at for each connection.
        (selected, self.steps + self.known.len() + self.subjects.len())
    }

    /// Of which of the needed connections this is true.
    fn truth(&mut self, id: TruthId, need: u64) -> u64 {
        let unknown = need & !self.known[id];
        if unknown != 0 {
            self.steps += 1;
            let is = self.found(id, unknown);
            self.truths[id] |= is & unknown;
            self.known[id] |= unknown;
        }
        self.truths[id] & need
    }

    fn found(&mut self, id: TruthId, need: u64) -> u64 {
        let program = self.program;
        match &program.truths[id] {
            Truth::Always(is) => {
                if *is {
                    need
                } else {
                    0
                }
            }
            Truth::Not(of) => need & !self.truth(*of, need),
            Truth::All(operands) => {
                let mut all = need;
                for operand in operands {
                    if all == 0 {
                        break;
                    }
                    all = self.truth(*operand, all);
                }
                all
            }
            Truth::Any(operands) => {
                let mut any = 0;
                for operand in operands {
                    if any == need {
                        break;
                    }
                    any |= self.truth(*operand, need & !any);
                }
                any
            }
            Truth::Same(a, b) => need & !(self.truth(*a, need) ^ self.truth(*b, need)),
            Truth::Is(asked, value) => self.has_value(*asked, *value, need),
            Truth::InGroup(group) => self.members.get(*group).copied().unwrap_or_default() & need,
            leaf => {
                let mut is = 0;
                for at in bits(need) {
                    is |= u64::from(self.answer(leaf, at)) << at;
                }
                is
            }
        }
    }

    fn has_value(&mut self, asked: usize, value: usize, need: u64) -> u64 {
        let known = &self.program.asked[asked];
        for at in bits(need & !self.looked_up[asked]) {
            let text = self.text(known.text, at);
            // A search among a thousand is ten comparisons.
            self.steps += 4;
            if let Some(value) = known.find(text.as_deref()) {
                self.holders[asked][value] |= 1 << at;
            }
        }
        self.looked_up[asked] |= need;
        self.holders[asked][value] & need
    }

    /// The answer of one connection to a question that is no other truth's.
    fn answer(&mut self, leaf: &Truth, at: usize) -> bool {
        self.steps += 1;
        match leaf {
            Truth::SameText(a, b) => self.text(*a, at) == self.text(*b, at),
            Truth::Compare(comparison, a, b) => {
                let (a, b) = (self.number(*a, at), self.number(*b, at));
                comparison.holds(a, b)
            }
            Truth::InGroupNamed(text) => {
                self.steps += 2;
                let subject = &self.subjects[at];
                self.text(*text, at).is_some_and(|name| subject.is_in_group(&name))
            }
            Truth::Contains(a, b) => self.both(*a, *b, at, contains),
            Truth::StartsWith(a, b) => self.both(*a, *b, at, |text, part| text.starts_with(part)),
            Truth::EndsWith(a, b) => self.both(*a, *b, at, |text, part| text.ends_with(part)),
            Truth::Always(_)
            | Truth::Not(_)
            | Truth::All(_)
            | Truth::Any(_)
            | Truth::Same(..)
            | Truth::Is(..)
            | Truth::InGroup(_) => false,
        }
    }

    fn both(&mut self, a: TextId, b: TextId, at: usize, of: impl Fn(&str, &str) -> bool) -> bool {
        let Some((a, b)) = self.text(a, at).zip(self.text(b, at)) else { return false };
        self.steps += 1 + a.len() / BYTES_PER_STEP;
        of(&a, &b)
    }

    fn text(&mut self, id: TextId, at: usize) -> Option<Cow<'p, str>> {
        let subject = &self.subjects[at];
        let text: Cow<'p, str> = match &self.program.texts[id] {
            Text::Literal(text) => return Some(Cow::Borrowed(text)),
            Text::ConnectionId => return Some(subject.connection_id().into()),
            Text::UserId => return subject.user_id().map(Cow::from),
            Text::Protocol => return subject.protocol().map(Cow::from),
            Text::Lower(of) => lower(&self.text(*of, at)?).into(),
            Text::Upper(of) => upper(&self.text(*of, at)?).into(),
            Text::Trim(of) => match self.text(*of, at)? {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_owned().into(),
            },
            Text::Substring(of, start, length) => {
                let text = self.text(*of, at)?;
                let start = self.number(*start, at)?;
                let length = match length {
                    Some(length) => Some(self.number(*length, at)?),
                    None => None,
                };
                self.steps += text.len() / BYTES_PER_STEP;
                substring(&text, start, length)?.into()
            }
            Text::Concat(a, b) => match (self.text(*a, at), self.text(*b, at)) {
                (None, None) => return None,
                (first, second) => [first.unwrap_or_default(), second.unwrap_or_default()].concat().into(),
            },
        };
        self.steps += 2 + text.len() / BYTES_PER_STEP;
        Some(text)
    }

    fn number(&mut self, id: NumberId, at: usize) -> Option<i64> {
        match self.program.numbers[id] {
            Number::Literal(number) => Some(number),
            Number::GroupCount => Some(Number::of_groups(self.subjects[at].group_count())),
            Number::Length(text) => {
                let text = self.text(text, at)?;
                self.steps += text.len() / BYTES_PER_STEP;
                Some(utf16_len(&text))
            }
            Number::IndexOf(a, b) => {
                let Some((a, b)) = self.text(a, at).zip(self.text(b, at)) else { return Some(-1) };
                self.steps += 1 + a.len() / BYTES_PER_STEP;
                Some(index_of(&a, &b))
            }
        }
    }
}

/// The places of the bits that are set, from the lowest on.
pub fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = word.trailing_zeros();
        // The lowest bit is taken away.
        word &= word.checked_sub(1)?;
        Some(at as usize)
    })
}

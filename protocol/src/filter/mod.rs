//! The filter language with which an application chooses connections: OData expressions over one connection.
//!
//! ```text
//! filter   = or                                       the whole has to be a bool
//! or       = and  { "or"  and }
//! and      = compared { "and" compared }
//! compared = negated { ("eq"|"ne"|"gt"|"ge"|"lt"|"le") negated }
//! negated  = "not" negated | contained
//! contained= primary [ "in" ( list | "groups" ) ]
//! list     = "(" [ or ] { "," [ or ] } ")"            blank items are passed over
//! primary  = string | int32 | "true" | "false" | "null" | identifier | function "(" [ or { "," or } ] ")" | "(" or ")"
//! ```
//! Identifiers are `connectionId`, `userId`, `groups` and `protocol`, in any case; everything else is written as above.
//! A string stands in single quotes, a quote in it twice. So `not userId eq 'a'` negates a string, and is refused.
//!
//! Every expression has a type that is known before there is a connection, so that what is wrong is refused at once, with
//! its position; evaluating cannot fail. Lengths and positions of strings count UTF-16 code units, and comparisons are
//! ordinal, whatever the locale.
//!
//! A record holds a filter as its text, so the language is part of the record format: what a text selects never changes
//! within a record version.
//!
//! A filter is compiled when it is read and carried out for 64 connections at a time, so that a long one costs little more
//! than a short one: see `program.rs`. What would not become cheap, texts that are computed of each connection, is bounded
//! where a filter comes in; one that is in a record was let in once, and is taken as it is.
//!
//! This module knows connections as [`Subject`]s. It does not know sessions, hubs or who asks.

mod compile;
mod expression;
mod parse;
#[cfg(test)]
mod plain;
mod program;
mod run;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use program::{Program, Text, Truth};
pub use run::bits;

/// A filter's text, in bytes.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
/// Values that a filter computes of each connection: a function, a comparison of numbers or a comparison of two texts of
/// which none is a literal counts for each `connectionId`, `userId` and `protocol` that it goes over, and for one at least.
/// Equal ones count once. What a text is compared with counts once, however many literals these are, and the names of groups
/// not at all.
pub const FILTER_VALUES_MAX: usize = 100;
/// Connections that [`Filter::select`] takes at once.
pub const SUBJECTS_MAX: usize = 64;
/// How deep a filter's expressions may be nested: each bracket, call, list, `not` and chained comparison counts.
pub const FILTER_DEPTH_MAX: usize = 64;

/// What a filter may ask about a connection.
pub trait Subject {
    /// Its id.
    fn connection_id(&self) -> &str;
    /// Its user; none for an anonymous one.
    fn user_id(&self) -> Option<&str>;
    /// The subprotocol that was negotiated; none for a raw client.
    fn protocol(&self) -> Option<&str>;
    /// How many groups it is in.
    fn group_count(&self) -> usize;
    /// Whether it is in a group.
    fn is_in_group(&self, group: &str) -> bool;
}

impl<S: Subject> Subject for &S {
    fn connection_id(&self) -> &str {
        (**self).connection_id()
    }

    fn user_id(&self) -> Option<&str> {
        (**self).user_id()
    }

    fn protocol(&self) -> Option<&str> {
        (**self).protocol()
    }

    fn group_count(&self) -> usize {
        (**self).group_count()
    }

    fn is_in_group(&self, group: &str) -> bool {
        (**self).is_in_group(group)
    }
}

/// A filter that was checked. `Debug` shows its size, never its text, which names users.
#[derive(Clone)]
pub struct Filter {
    text: Arc<str>,
    program: Arc<Program>,
}

/// Where all are found that a filter selects; see [`Filter::narrowed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrowed<'f> {
    /// It is this connection.
    Connection(&'f str),
    /// It is one of this user's.
    User(&'f str),
    /// It is in this group.
    Group(&'f str),
}

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Invalid filter at position {position}: {problem}.")]
pub struct FilterError {
    /// Where, in characters from 0.
    pub position: usize,
    /// What is wrong there.
    pub problem: FilterProblem,
}

/// What is wrong in a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterProblem {
    /// More than [`FILTER_BYTES_MAX`].
    #[error("the filter is longer than {FILTER_BYTES_MAX} bytes")]
    TooLong,
    /// More than [`FILTER_DEPTH_MAX`].
    #[error("expressions are nested deeper than {FILTER_DEPTH_MAX}")]
    TooDeep,
    /// More than [`FILTER_VALUES_MAX`].
    #[error("the filter computes more than {FILTER_VALUES_MAX} values of each connection")]
    TooCostly,
    /// Something else has to stand here.
    #[error("{0} is expected")]
    Expected(&'static str),
    /// No identifier, literal or function of the language.
    #[error("'{0}' is not supported")]
    Unsupported(String),
    /// A number outside of 32 bits.
    #[error("the number is not a 32-bit integer")]
    NotInt32,
    /// A function with too few or too many arguments.
    #[error("the function takes another number of arguments")]
    Arguments,
    /// An expression of another type than is possible here.
    #[error("type '{actual}', expected '{expected}'")]
    Type {
        /// What the expression is.
        actual: &'static str,
        /// What is possible.
        expected: &'static str,
    },
}

impl Filter {
    /// Reads and checks a filter that comes in.
    ///
    /// # Errors
    /// When the text is no filter, or is over a bound.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let filter = Self::stored(text)?;
        if filter.program.values() > FILTER_VALUES_MAX {
            return Err(FilterError { position: 0, problem: FilterProblem::TooCostly });
        }
        Ok(filter)
    }

    /// Reads a filter that was let in before, whatever it costs.
    ///
    /// # Errors
    /// When the text is no filter, is too long or nested too deep.
    pub fn stored(text: &str) -> Result<Self, FilterError> {
        let program = Arc::new(compile::compile(&parse::parse(text)?));
        Ok(Self { text: text.into(), program })
    }

    /// The text, letter by letter.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The groups that it asks for by name, each once.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &str> {
        self.program.groups.iter().map(|name| &**name)
    }

    /// The group at this place among them.
    pub(crate) fn group(&self, at: usize) -> Option<&str> {
        self.program.groups.get(at).map(|name| &**name)
    }

    /// Which of some connections it selects, a bit for each, and how many steps that took, each some nanoseconds. Of more
    /// than [`SUBJECTS_MAX`] those behind are not selected. `members` has for each of its groups who is in it.
    pub fn select(&self, subjects: &[impl Subject], members: &[u64]) -> (u64, usize) {
        let subjects = &subjects[..subjects.len().min(SUBJECTS_MAX)];
        run::Run::new(&self.program, subjects, members).selected()
    }

    /// Whether it selects a connection.
    pub fn selects(&self, subject: &impl Subject) -> bool {
        let members: Vec<u64> = self.groups().map(|group| u64::from(subject.is_in_group(group))).collect();
        self.select(&[subject], &members).0 != 0
    }

    /// Where all are found that it selects, if they need not be looked for among all.
    pub fn narrowed(&self) -> Option<Vec<Narrowed<'_>>> {
        let root = &self.program.truths[self.program.root];
        match root {
            Truth::All(operands) => {
                operands.iter().find_map(|operand| self.narrowed_by(&self.program.truths[*operand]))
            }
            other => self.narrowed_by(other),
        }
    }

    fn narrowed_by<'f>(&'f self, truth: &'f Truth) -> Option<Vec<Narrowed<'f>>> {
        match truth {
            Truth::Any(operands) => {
                operands.iter().map(|operand| self.narrowed_to(&self.program.truths[*operand])).collect()
            }
            other => Some(vec![self.narrowed_to(other)?]),
        }
    }

    fn narrowed_to<'f>(&'f self, truth: &'f Truth) -> Option<Narrowed<'f>> {
        match truth {
            Truth::InGroup(group) => Some(Narrowed::Group(&self.program.groups[*group])),
            Truth::Is(asked, value) => {
                let asked = &self.program.asked[*asked];
                let value = asked.values[*value].as_deref()?;
                match self.program.texts[asked.text] {
                    Text::ConnectionId => Some(Narrowed::Connection(value)),
                    Text::UserId => Some(Narrowed::User(value)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filter({} bytes)", self.text.len())
    }
}

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
//! This module knows one connection at a time, as a [`Subject`]. It does not know sessions, hubs or who asks.

mod evaluate;
mod expression;
mod parse;
#[cfg(test)]
mod tests;
mod together;

use std::collections::BTreeSet;
use std::sync::Arc;

use expression::Expression;

/// A filter's text, in bytes.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
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
    /// Whether it is in one of these groups.
    fn is_in_any_group(&self, groups: &BTreeSet<String>) -> bool {
        groups.iter().any(|group| self.is_in_group(group))
    }
}

/// A filter that was checked. `Debug` shows its size, never its text, which names users.
#[derive(Clone)]
pub struct Filter {
    text: Arc<str>,
    expression: Arc<Expression>,
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
    /// Reads and checks a filter.
    ///
    /// # Errors
    /// When the text is no filter, or is over a bound.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let expression = Arc::new(together::put_together(parse::parse(text)?));
        Ok(Self { text: text.into(), expression })
    }

    /// The text, letter by letter.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it selects a connection.
    pub fn selects(&self, subject: &impl Subject) -> bool {
        evaluate::is_true(&self.expression, subject)
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

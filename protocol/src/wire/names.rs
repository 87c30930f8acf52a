//! The names that travel on the wire, each checked once, where it enters.

use std::fmt;
use std::sync::Arc;

use super::limits::{EVENT_NAME_CHARS_MAX, GROUP_NAME_UTF16_MAX, HUB_NAME_CHARS_MAX};

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing, or only white space.
    #[error("the name is blank")]
    Blank,
    /// More characters than the limit of its kind allows.
    #[error("the name is too long")]
    TooLong,
    /// A character that its kind does not allow.
    #[error("{character:?} is not allowed where it stands: the name has to be {allowed}")]
    BadCharacter {
        /// The first one.
        character: char,
        /// What the name may be, in words.
        allowed: &'static str,
    },
}

#[cfg(test)]
thread_local! {
    static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How often this thread has read a name: what a test counts where the time that something takes is to stay the same.
#[cfg(test)]
pub fn names_read() -> usize {
    READ.with(std::cell::Cell::get)
}

macro_rules! shared_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as it stands on the wire.
            pub fn as_str(&self) -> &str {
                #[cfg(test)]
                READ.with(|read| read.set(read.get() + 1));
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

shared_name! {
    /// A group: case-sensitive, any characters but not white space alone, at most [`GROUP_NAME_UTF16_MAX`] UTF-16 code
    /// units. So says the service's WebSocket protocol; the pattern of its REST API, `^(?!\s+$).+$`, leaves line feeds
    /// out. Here both take the same names: a group that clients can join must be within the application's reach.
    GroupName
}
shared_name! {
    /// A user event: a letter, then letters, digits, `_`, `.` or `-`.
    EventName
}
shared_name! {
    /// A hub, folded to lower case: hubs are looked up without regard to case.
    HubName
}
shared_name! {
    /// The wire's name of a session: opaque to clients, unique within its hub.
    ConnectionId
}
shared_name! {
    /// The user that a session acts for; case-sensitive, no limit is documented.
    UserId
}

impl GroupName {
    /// Checks a group's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        // No UTF-8 text has more UTF-16 units than bytes, so most names need no count.
        if name.len() > GROUP_NAME_UTF16_MAX && name.encode_utf16().count() > GROUP_NAME_UTF16_MAX {
            return Err(NameError::TooLong);
        }
        if name.trim().is_empty() {
            return Err(NameError::Blank);
        }
        Ok(Self(name.into()))
    }
}

impl EventName {
    /// Checks an event's name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let allowed = "a letter (A to Z, a to z), then letters, digits, and _ . -";
        checked(name, EVENT_NAME_CHARS_MAX, "_.-", allowed)?;
        Ok(Self(name.into()))
    }

    /// The event that a raw client's frames are.
    pub fn raw() -> Self {
        Self("message".into())
    }
}

impl HubName {
    /// Checks a hub's name and folds it to lower case.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let allowed = "a letter (A to Z, a to z), then letters, digits, and _ ` , . [ ]";
        checked(name, HUB_NAME_CHARS_MAX, "_`,.[]", allowed)?;
        Ok(Self(name.to_ascii_lowercase().into()))
    }
}

impl ConnectionId {
    /// Takes an id as it is: the gateway makes them, clients only repeat them.
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }
}

impl UserId {
    /// Takes an id as it is: access tokens and event handlers name users.
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }
}

/// `allowed` says in words what is checked.
fn checked(name: &str, chars_max: usize, signs: &str, allowed: &'static str) -> Result<(), NameError> {
    let Some(first) = name.chars().next() else {
        return Err(NameError::Blank);
    };
    if name.trim().is_empty() {
        return Err(NameError::Blank);
    }
    if name.len() > chars_max {
        return Err(NameError::TooLong);
    }
    let is_bad = |c: &char| !c.is_ascii_alphanumeric() && !signs.contains(*c);
    let bad = if first.is_ascii_alphabetic() { name.chars().find(is_bad) } else { Some(first) };
    bad.map_or(Ok(()), |character| Err(NameError::BadCharacter { character, allowed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_length_counts_utf16_units() {
        let two_units_each = "\u{1F600}".repeat(GROUP_NAME_UTF16_MAX / 2);
        assert!(GroupName::new(&two_units_each).is_ok());
        assert_eq!(GroupName::new(&format!("{two_units_each}x")), Err(NameError::TooLong));
        let one_unit_two_bytes = "é".repeat(GROUP_NAME_UTF16_MAX);
        assert!(GroupName::new(&one_unit_two_bytes).is_ok());
        assert_eq!(GroupName::new(&format!("{one_unit_two_bytes}é")), Err(NameError::TooLong));
    }

    #[test]
    fn blank_groups_are_refused() {
        assert_eq!(GroupName::new(""), Err(NameError::Blank));
        assert_eq!(GroupName::new(" \t\u{3000}"), Err(NameError::Blank));
        assert!(GroupName::new(" a ").is_ok());
    }

    #[test]
    fn event_and_hub_names_hold_their_alphabets_and_lengths() {
        assert!(EventName::new("Order.placed-2_x").is_ok());
        let bad_character = |error| match error {
            NameError::BadCharacter { character, .. } => character,
            error => panic!("{error}"),
        };
        for (bad, character) in [("1st", '1'), ("_a", '_'), ("a b", ' '), ("a/b-", '/'), ("é", 'é')] {
            assert_eq!(EventName::new(bad).map_err(bad_character), Err(character), "{bad}");
        }
        for (bad, character) in [("a-b", '-'), ("a\nb", '\n'), ("[a]", '[')] {
            assert_eq!(HubName::new(bad).map_err(bad_character), Err(character), "{bad}");
        }
        assert!(HubName::new("a\nb").unwrap_err().to_string().starts_with("'\\n' is not allowed"));
        assert!(EventName::new(&"a".repeat(EVENT_NAME_CHARS_MAX)).is_ok());
        assert_eq!(EventName::new(&"a".repeat(EVENT_NAME_CHARS_MAX + 1)), Err(NameError::TooLong));
        assert_eq!(HubName::new("Chat[1],`x`.y").map(|hub| hub.to_string()), Ok("chat[1],`x`.y".to_owned()));
        assert_eq!(HubName::new(""), Err(NameError::Blank));
    }
}

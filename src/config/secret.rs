//! A text that must not be shown.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// A secret text: `Debug` does not show it, and no error of reading it does either.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, named so that each use of it is easy to find.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Any other type would be quoted with its value in serde's own message.
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(secret) => Ok(Self(secret)),
            _ => Err(D::Error::custom("expected a string in quotes")),
        }
    }
}

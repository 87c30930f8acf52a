//! What is told of access tokens that are refused: a count for each, and a warning for each episode that is likely a fault
//! of the deployment rather than of one client.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use super::TokenError;
use crate::telemetry::{Counters, Episode, TokenRefusal};

/// The refusals at one door: that of clients, or that of the application.
pub struct TokenRefusals {
    counters: Arc<Counters>,
    door: &'static str,
    other_key: Episode,
    other_audience: Episode,
}

impl TokenRefusals {
    /// None yet. `door` is what the tokens are for.
    pub fn new(door: &'static str, counters: Arc<Counters>) -> Self {
        let other_key = Episode::new("access tokens are signed with another access key", door);
        let other_audience = Episode::new("access tokens are for another URL", door);
        Self { counters, door, other_key, other_audience }
    }

    /// Takes note of a refusal; without an error there was no token. `of` says what was asked for. The caller writes the line
    /// of the request itself.
    pub fn tell(&self, error: Option<&TokenError>, of: &dyn Display) {
        self.counters.tokens_refused.count(error.map_or(TokenRefusal::Missing, TokenRefusal::from));
        let (door, now) = (self.door, Instant::now());
        match error {
            Some(TokenError::BadSignature) if self.other_key.is_news(now) => tracing::warn!(
                door, %of,
                "requests are refused: their access tokens are signed with another access key than this gateway has"
            ),
            Some(TokenError::WrongAudience(wanted)) if self.other_audience.is_news(now) => tracing::warn!(
                door, %of, %wanted,
                "requests are refused: their access tokens are for another URL than the wanted one, which is one of \
                 public_urls, or where there are none the one that was dialled"
            ),
            _ => {}
        }
    }
}

impl From<&TokenError> for TokenRefusal {
    fn from(error: &TokenError) -> Self {
        match error {
            TokenError::Malformed => Self::Malformed,
            TokenError::UnsupportedAlgorithm => Self::Algorithm,
            TokenError::BadSignature => Self::WrongKey,
            TokenError::NoExpiry => Self::NoExpiry,
            TokenError::Expired => Self::Expired,
            TokenError::NotYetValid => Self::NotYetValid,
            TokenError::BadUser => Self::BadUser,
            TokenError::WrongAudience(_) => Self::WrongAudience,
        }
    }
}

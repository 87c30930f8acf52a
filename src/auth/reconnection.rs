//! Reconnection tokens: the proof that a socket may resume a session.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// How long a reconnection token is good: 365 days.
///
/// A session gets its token once, when it opens, so this bounds how long a session may live and still resume after a
/// drop; the protocol asks for a week. A longer time costs nothing: the token is worthless once its session has
/// ended or its log has got another epoch.
pub const RECONNECTION_TOKEN_VALIDITY_SECONDS: u64 = 365 * 24 * 60 * 60;

const VERSION: u8 = 1;
/// Keeps these codes apart from anything else that might ever be keyed with the same secret.
const DOMAIN: &[u8] = b"oncewire reconnection token";
const EXPIRY_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
const TOKEN_BYTES: usize = 1 + EXPIRY_BYTES + MAC_BYTES;

/// Issues and verifies reconnection tokens.
///
/// A token is bound to its hub, its session and the epoch of the hub's log. It may be used any number of times. The
/// secret must be random, must not be one of the access keys, and must live as long as the log: rotating an access
/// key then cuts nobody off, and a restart over a durable log keeps the tokens good. `Debug` shows no secret.
///
/// ```text
/// token (base64, URL-safe, unpadded):  version u8 | expiry u64, Unix seconds | code 32 bytes
/// code = HMAC-SHA256(secret, domain | version | expiry | epoch u128 | hub length u64 | hub | connection id)
/// ```
/// Integers are big-endian; every part but the last has a fixed or a written length, so no two inputs share a code.
#[derive(Clone)]
pub struct ReconnectionTokens {
    keyed: Hmac<Sha256>,
}

/// Why a reconnection token was refused.
///
/// Every variant is a definite refusal, which no later attempt with the same token can change: the client gets 101
/// and then close code 1008. What can't be decided yet (a log whose epoch is still unknown) must be answered with 503
/// before a token is verified at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReconnectionError {
    /// Not a token of a format that this gateway has ever issued.
    #[error("the reconnection token is malformed")]
    Malformed,
    /// Forged, or issued for another hub, session or log epoch, or under another secret.
    #[error("the reconnection token does not belong to this session")]
    Mismatch,
    /// Genuine, but older than [`RECONNECTION_TOKEN_VALIDITY_SECONDS`].
    #[error("the reconnection token has expired")]
    Expired,
}

impl ReconnectionTokens {
    /// Takes the secret, which must be random.
    pub fn new(secret: [u8; 32]) -> Self {
        // A key no longer than the hash's block (64 bytes for SHA-256) is padded with zeros by HMAC itself.
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..secret.len()].copy_from_slice(&secret);
        Self { keyed: hmac::digest::KeyInit::new(&block) }
    }

    /// A token for the session `connection_id` of `hub`, whose log has the epoch `log_epoch`.
    pub fn issue(&self, hub: &str, connection_id: &str, log_epoch: u128, now_unix_seconds: u64) -> String {
        let expiry = now_unix_seconds.saturating_add(RECONNECTION_TOKEN_VALIDITY_SECONDS);
        let mut token = Vec::with_capacity(TOKEN_BYTES);
        token.push(VERSION);
        token.extend_from_slice(&expiry.to_be_bytes());
        token.extend_from_slice(&self.code(hub, connection_id, log_epoch, expiry).finalize().into_bytes());
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Checks that `token` was issued for this session, in constant time as far as the secret is concerned.
    ///
    /// # Errors
    /// Each is definite, see [`ReconnectionError`].
    pub fn verify(
        &self,
        token: &str,
        hub: &str,
        connection_id: &str,
        log_epoch: u128,
        now_unix_seconds: u64,
    ) -> Result<(), ReconnectionError> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| ReconnectionError::Malformed)?;
        let Some((&VERSION, rest)) = bytes.split_first() else { return Err(ReconnectionError::Malformed) };
        let Some((expiry, code)) = rest.split_first_chunk::<EXPIRY_BYTES>() else {
            return Err(ReconnectionError::Malformed);
        };
        if code.len() != MAC_BYTES {
            return Err(ReconnectionError::Malformed);
        }
        let expiry = u64::from_be_bytes(*expiry);
        self.code(hub, connection_id, log_epoch, expiry)
            .verify_slice(code)
            .map_err(|_| ReconnectionError::Mismatch)?;
        if now_unix_seconds > expiry {
            return Err(ReconnectionError::Expired);
        }
        Ok(())
    }

    fn code(&self, hub: &str, connection_id: &str, log_epoch: u128, expiry: u64) -> Hmac<Sha256> {
        let hub = hub.to_ascii_lowercase();
        let mut code = self.keyed.clone();
        code.update(DOMAIN);
        code.update(&[VERSION]);
        code.update(&expiry.to_be_bytes());
        code.update(&log_epoch.to_be_bytes());
        code.update(&(hub.len() as u64).to_be_bytes());
        code.update(hub.as_bytes());
        code.update(connection_id.as_bytes());
        code
    }
}

impl fmt::Debug for ReconnectionTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectionTokens").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_900_000_000;
    const WEEK_SECONDS: u64 = 7 * 24 * 60 * 60;

    fn tokens() -> ReconnectionTokens {
        ReconnectionTokens::new([7; 32])
    }

    #[test]
    fn a_token_opens_its_own_session_any_number_of_times() {
        let token = tokens().issue("chat", "c1", 5, NOW);
        for _ in 0..3 {
            assert_eq!(tokens().verify(&token, "chat", "c1", 5, NOW), Ok(()));
        }
    }

    #[test]
    fn hubs_are_compared_without_regard_to_case_and_connection_ids_with() {
        let token = tokens().issue("Chat", "c1", 5, NOW);
        assert_eq!(tokens().verify(&token, "cHAT", "c1", 5, NOW), Ok(()));
        assert_eq!(tokens().verify(&token, "chat", "C1", 5, NOW), Err(ReconnectionError::Mismatch));
    }

    #[test]
    fn a_token_of_another_session_hub_epoch_or_secret_is_refused() {
        let tokens = tokens();
        let token = tokens.issue("chat", "c1", 5, NOW);
        for (hub, id, epoch) in [("chat", "c2", 5), ("other", "c1", 5), ("chat", "c1", 6), ("chat", "", 5)] {
            assert_eq!(tokens.verify(&token, hub, id, epoch, NOW), Err(ReconnectionError::Mismatch));
        }
        let foreign = ReconnectionTokens::new([8; 32]);
        assert_eq!(foreign.verify(&token, "chat", "c1", 5, NOW), Err(ReconnectionError::Mismatch));
    }

    #[test]
    fn the_border_between_hub_and_connection_id_counts() {
        let token = tokens().issue("ab", "cd", 5, NOW);
        assert_eq!(tokens().verify(&token, "abc", "d", 5, NOW), Err(ReconnectionError::Mismatch));
        assert_eq!(tokens().verify(&token, "a", "bcd", 5, NOW), Err(ReconnectionError::Mismatch));
    }

    #[test]
    fn a_token_is_good_for_its_validity_to_the_second() {
        let tokens = tokens();
        let token = tokens.issue("chat", "c1", 5, NOW);
        let last = NOW + RECONNECTION_TOKEN_VALIDITY_SECONDS;
        assert_eq!(tokens.verify(&token, "chat", "c1", 5, NOW + WEEK_SECONDS), Ok(()));
        assert_eq!(tokens.verify(&token, "chat", "c1", 5, last), Ok(()));
        assert_eq!(tokens.verify(&token, "chat", "c1", 5, last + 1), Err(ReconnectionError::Expired));
    }

    #[test]
    fn a_clock_that_went_back_refuses_nobody() {
        let token = tokens().issue("chat", "c1", 5, NOW);
        assert_eq!(tokens().verify(&token, "chat", "c1", 5, NOW - 3600), Ok(()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let tokens = tokens();
        let bytes = URL_SAFE_NO_PAD.decode(tokens.issue("chat", "c1", 5, NOW)).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 8 { ReconnectionError::Malformed } else { ReconnectionError::Mismatch };
            let forged = URL_SAFE_NO_PAD.encode(forged);
            assert_eq!(tokens.verify(&forged, "chat", "c1", 5, NOW), Err(expected), "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let tokens = tokens();
        let token = tokens.issue("chat", "c1", 5, NOW);
        let longer = {
            let mut bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
            bytes.push(0);
            URL_SAFE_NO_PAD.encode(bytes)
        };
        for bad in ["", "x", "AQ", "not base64!", &token[..token.len() - 4], &longer, &format!("{token}=")] {
            assert_eq!(
                tokens.verify(bad, "chat", "c1", 5, NOW),
                Err(ReconnectionError::Malformed),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_token_goes_into_a_url_as_it_stands() {
        let token = tokens().issue("chat", "c1", u128::MAX, NOW);
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{token}");
    }

    /// Sessions outlive the process and its version: what was once issued must stay good. (The value was computed
    /// from the layout with another HMAC implementation.)
    #[test]
    fn the_encoding_is_fixed() {
        let secret: [u8; 32] = std::array::from_fn(|i| i as u8);
        let token = ReconnectionTokens::new(secret).issue("Chat", "c-1", 0x0102_0304, NOW);
        assert_eq!(token, "AQAAAABzIOaAViWb8UFXw4TCGO_Kj3S7t9-jHq5B571i7xs036p5IkI");
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(format!("{:?}", tokens()), "ReconnectionTokens { .. }");
    }
}

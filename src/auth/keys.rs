//! The access keys: one primary, and a secondary one while keys are being rotated.

use std::fmt;

use data_encoding::HEXLOWER;
use hmac::{Hmac, Mac};
use jsonwebtoken::{DecodingKey, EncodingKey};
use sha2::Sha256;

/// The fewest bytes that an access key may have: the output size of SHA-256, below which HMAC-SHA256 is weakened.
pub const ACCESS_KEY_BYTES_MIN: usize = 32;

/// The keys that sign and verify access tokens.
///
/// The HMAC key is the UTF-8 text of the key as it stands, also where it looks like base64: that is how the official
/// server SDKs sign. Tokens name no key, so each active key is tried. `Debug` shows no key.
#[derive(Clone)]
pub struct AccessKeys {
    signing: EncodingKey,
    primary: DecodingKey,
    secondary: Option<DecodingKey>,
    /// Both keys, as they sign events.
    events: Vec<Hmac<Sha256>>,
}

/// Which of the two keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyName {
    /// The key that signs and verifies.
    Primary,
    /// The other key while rotating: it verifies only.
    Secondary,
}

/// Why a text can't serve as an access key. Never holds the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessKeyError {
    /// Fewer than [`ACCESS_KEY_BYTES_MIN`] bytes.
    #[error("the {0} access key is too short: it needs at least {ACCESS_KEY_BYTES_MIN} bytes")]
    TooShort(KeyName),
    /// A control character, a `;` or an outer blank: a connection string could not carry the key.
    #[error("the {0} access key holds a control character, a semicolon or an outer blank")]
    BadCharacter(KeyName),
}

impl AccessKeys {
    /// Takes the text of the primary and, while rotating, of the secondary key.
    ///
    /// # Errors
    /// When a key is too short or could not be written into a connection string.
    pub fn new(primary: &str, secondary: Option<&str>) -> Result<Self, AccessKeyError> {
        check(primary, KeyName::Primary)?;
        if let Some(secondary) = secondary {
            check(secondary, KeyName::Secondary)?;
        }
        let keyed = |key: &str| Hmac::new_from_slice(key.as_bytes());
        let keys = std::iter::once(primary).chain(secondary);
        Ok(Self {
            // A key of any length can be used.
            events: keys.filter_map(|key| keyed(key).ok()).collect(),
            signing: EncodingKey::from_secret(primary.as_bytes()),
            primary: DecodingKey::from_secret(primary.as_bytes()),
            secondary: secondary.map(|key| DecodingKey::from_secret(key.as_bytes())),
        })
    }

    /// Signs what event handlers are told about a session (`ce-signature`): the HMAC-SHA256 of its name under each of the
    /// keys, in hexadecimal. It tells who sends, not what is sent.
    pub fn event_signature(&self, connection_id: &str) -> String {
        let mut signature = String::with_capacity(self.events.len() * 72);
        for key in &self.events {
            let mac = key.clone().chain_update(connection_id).finalize().into_bytes();
            signature.push_str(if signature.is_empty() { "sha256=" } else { ",sha256=" });
            HEXLOWER.encode_append(&mac, &mut signature);
        }
        signature
    }

    pub(super) fn signing(&self) -> &EncodingKey {
        &self.signing
    }

    pub(super) fn verifying(&self) -> impl Iterator<Item = &DecodingKey> {
        std::iter::once(&self.primary).chain(&self.secondary)
    }
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKeys").field("rotating", &self.secondary.is_some()).finish_non_exhaustive()
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
        })
    }
}

fn check(key: &str, name: KeyName) -> Result<(), AccessKeyError> {
    if key.len() < ACCESS_KEY_BYTES_MIN {
        return Err(AccessKeyError::TooShort(name));
    }
    if key.trim() != key || key.contains(|c: char| c == ';' || c.is_control()) {
        return Err(AccessKeyError::BadCharacter(name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_key_needs_32_bytes() {
        assert!(AccessKeys::new(KEY, None).is_ok());
        assert_eq!(AccessKeys::new(&KEY[1..], None).err(), Some(AccessKeyError::TooShort(KeyName::Primary)));
        assert_eq!(AccessKeys::new("", None).err(), Some(AccessKeyError::TooShort(KeyName::Primary)));
        assert_eq!(
            AccessKeys::new(KEY, Some(&KEY[1..])).err(),
            Some(AccessKeyError::TooShort(KeyName::Secondary))
        );
    }

    #[test]
    fn bytes_count_not_characters() {
        assert!(AccessKeys::new(&"ä".repeat(16), None).is_ok());
    }

    #[test]
    fn a_key_must_fit_into_a_connection_string() {
        for bad in [format!("{KEY};"), format!(" {KEY}"), format!("{KEY} "), format!("{KEY}\n{KEY}")] {
            assert_eq!(
                AccessKeys::new(&bad, None).err(),
                Some(AccessKeyError::BadCharacter(KeyName::Primary))
            );
        }
        assert!(AccessKeys::new(&format!("{KEY}=="), None).is_ok());
    }

    #[test]
    fn events_are_signed_with_both_keys() {
        const OLD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGH";
        const BY_OLD: &str = "sha256=261f7f58ff9fb9bb8be7e4951a807fe6091e5c074885bf63b865eccd28728881";
        assert_eq!(AccessKeys::new(OLD, None).unwrap().event_signature("conn-1"), BY_OLD);
        let by_new = AccessKeys::new(KEY, None).unwrap().event_signature("conn-1");
        assert_ne!(by_new, BY_OLD);
        let both = AccessKeys::new(KEY, Some(OLD)).unwrap().event_signature("conn-1");
        assert_eq!(both, format!("{by_new},{BY_OLD}"));
    }

    #[test]
    fn debug_and_errors_show_no_key() {
        let keys = AccessKeys::new(KEY, Some(&KEY.to_uppercase())).unwrap();
        let shown = format!("{keys:?}");
        assert!(!shown.contains(KEY) && !shown.contains(&KEY.to_uppercase()), "{shown}");
        let error = AccessKeys::new("short-secret", None).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("short-secret"));
    }
}

//! Continuation tokens: where the next page of a list begins.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// A token that is longer is none of this gateway's.
const TOKEN_CHARS_MAX: usize = 2048;
/// Keeps these codes apart from anything else that is keyed with the same secret.
const DOMAIN: &[u8] = b"oncewire continuation token";
const MAC_BYTES: usize = 32;

/// Issues and verifies continuation tokens: a token is bound to its hub and group, so that it says nothing elsewhere.
/// `Debug` shows no secret.
///
/// ```text
/// token (base64, URL-safe, unpadded):  code 32 bytes | connection id
/// code = HMAC-SHA256(secret, domain | hub length u64 | hub | group length u64 | group | connection id)
/// ```
#[derive(Clone)]
pub struct ContinuationTokens {
    keyed: Hmac<Sha256>,
}

impl ContinuationTokens {
    /// Takes the secret, which must be random.
    pub fn new(secret: [u8; 32]) -> Self {
        // A key no longer than the hash's block is padded with zeros by HMAC itself.
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..secret.len()].copy_from_slice(&secret);
        Self { keyed: hmac::digest::KeyInit::new(&block) }
    }

    /// The token for what comes behind a connection.
    pub fn issue(&self, hub: &str, group: &str, connection_id: &str) -> String {
        let code = self.code(hub, group, connection_id).finalize().into_bytes();
        URL_SAFE_NO_PAD.encode([&code[..], connection_id.as_bytes()].concat())
    }

    /// The connection behind which the list goes on; none when the token was not issued for this group.
    pub fn verify(&self, token: &str, hub: &str, group: &str) -> Option<String> {
        let bytes = Some(token).filter(|token| token.len() <= TOKEN_CHARS_MAX)?;
        let bytes = URL_SAFE_NO_PAD.decode(bytes).ok()?;
        let (code, connection_id) = bytes.split_at_checked(MAC_BYTES)?;
        let connection_id = std::str::from_utf8(connection_id).ok()?;
        self.code(hub, group, connection_id).verify_slice(code).ok()?;
        Some(connection_id.to_owned())
    }

    fn code(&self, hub: &str, group: &str, connection_id: &str) -> Hmac<Sha256> {
        let mut code = self.keyed.clone();
        code.update(DOMAIN);
        for part in [hub, group] {
            code.update(&(part.len() as u64).to_be_bytes());
            code.update(part.as_bytes());
        }
        code.update(connection_id.as_bytes());
        code
    }
}

impl std::fmt::Debug for ContinuationTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ContinuationTokens(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_group_alone() {
        let tokens = ContinuationTokens::new([7; 32]);
        let token = tokens.issue("chat", "g", "c-1");
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{token}");
        assert_eq!(tokens.verify(&token, "chat", "g").as_deref(), Some("c-1"));
        assert_eq!(tokens.verify(&token, "chat", "h"), None);
        assert_eq!(tokens.verify(&token, "chatg", ""), None);
        assert_eq!(ContinuationTokens::new([8; 32]).verify(&token, "chat", "g"), None);
        for forged in ["", "x", "AbC_d", &token[1..], &format!("{token}A"), &"A".repeat(2049)] {
            assert_eq!(tokens.verify(forged, "chat", "g"), None, "{forged}");
        }
    }
}

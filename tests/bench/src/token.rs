//! Access tokens: JSON Web Tokens signed with HS256, with the claims of the Web PubSub service.
//!
//! Knows how to make one, and, for the floor program, whether one holds a group. Does not check signatures.

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use serde::Serialize;
use sha2::Sha256;

/// What a token says.
#[derive(Debug, Serialize)]
pub struct Claims {
    /// The client endpoint, `http://HOST:PORT/client/hubs/HUB`, or the URL of an application's request.
    #[serde(rename = "aud")]
    pub audience: String,
    /// Expiry, in seconds since the Unix epoch.
    #[serde(rename = "exp")]
    pub expires_at_seconds: u64,
    /// The client's user.
    #[serde(rename = "sub", skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Roles, for example `webpubsub.sendToGroup`.
    #[serde(rename = "role", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Groups that the client is in from the start.
    #[serde(rename = "webpubsub.group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// Signs `claims` with the access key's UTF-8 bytes.
///
/// # Errors
/// Only if the claims cannot be written as JSON.
pub fn sign(claims: &Claims, access_key: &str) -> Result<String> {
    let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims)?));
    let signature = signature(&input, access_key.as_bytes())?;
    Ok(format!("{input}.{signature}"))
}

/// Whether the token in the query of a request target names a group. False for anything that is no token.
pub fn names_a_group(target: &str) -> bool {
    let claims = target
        .split_once("access_token=")
        .and_then(|(_, token)| token.split('.').nth(1))
        .and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
    claims.is_some_and(|claims| memchr::memmem::find(&claims, br#""webpubsub.group""#).is_some())
}

fn signature(input: &str, key: &[u8]) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
    mac.update(input.as_bytes());
    Ok(URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_like_the_sample_of_rfc_7515() {
        let key = URL_SAFE_NO_PAD
            .decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
            .unwrap();
        let input = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        assert_eq!(signature(input, &key).unwrap(), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    }

    #[test]
    fn the_floor_recognises_subscribers() {
        let claims = |groups: &[&str]| Claims {
            audience: "http://127.0.0.1:1/client/hubs/bench".into(),
            expires_at_seconds: 1,
            user: None,
            roles: Vec::new(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        };
        let target =
            |groups| format!("/client/hubs/b?access_token={}", sign(&claims(groups), "key").unwrap());
        assert!(names_a_group(&target(&["bench"])));
        assert!(!names_a_group(&target(&[])));
        assert!(!names_a_group("/client/hubs/b"));
        assert!(!names_a_group("/client/hubs/b?access_token=a.!.c"));
    }
}

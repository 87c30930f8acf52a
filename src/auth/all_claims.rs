//! What an access token says, word for word, for whoever gives its claims a meaning of his own.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::value::RawValue;

/// All claims of a token that has been verified, by name, each with all its values as text: those of a list one by one,
/// and the JSON text of whatever is not a string. Empty if this is no token.
pub fn all_claims(verified_token: &str) -> Vec<(String, Vec<String>)> {
    let payload = verified_token.split('.').nth(1).unwrap_or_default();
    let payload = URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
    let claims: BTreeMap<String, &RawValue> = serde_json::from_slice(&payload).unwrap_or_default();
    claims.into_iter().map(|(name, value)| (name, values(value))).collect()
}

fn values(claim: &RawValue) -> Vec<String> {
    match serde_json::from_str::<Vec<&RawValue>>(claim.get()) {
        Ok(list) => list.into_iter().map(text).collect(),
        Err(_) => vec![text(claim)],
    }
}

fn text(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("header.{}.signature", URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn strings_stand_for_themselves_and_all_else_for_its_json() {
        let claims = all_claims(&token(
            r#"{"sub":"a\u00e9\"n","exp":1900000000,"nbf":1.50,"admin":true,"none":null,
                "role":["a","b"],"mixed":["x",7,[1, 2],{"k":"v"}],"deep":{"k": 1},"empty":[]}"#,
        ));
        let claims: Vec<_> = claims.iter().map(|(name, values)| (name.as_str(), values.join("|"))).collect();
        assert_eq!(
            claims,
            [
                ("admin", "true".to_owned()),
                ("deep", r#"{"k": 1}"#.to_owned()),
                ("empty", String::new()),
                ("exp", "1900000000".to_owned()),
                ("mixed", r#"x|7|[1, 2]|{"k":"v"}"#.to_owned()),
                ("nbf", "1.50".to_owned()),
                ("none", "null".to_owned()),
                ("role", "a|b".to_owned()),
                ("sub", "aé\"n".to_owned()),
            ]
        );
        assert_eq!(all_claims(&token(r#"{"empty":[]}"#)), [("empty".to_owned(), Vec::new())]);
    }

    #[test]
    fn what_is_no_token_claims_nothing() {
        for odd in ["", "a", "a.b.c", "..", &token("[]"), &token("{")] {
            assert_eq!(all_claims(odd), [], "{odd}");
        }
    }
}

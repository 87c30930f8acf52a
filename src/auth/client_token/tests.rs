use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::{Sha256, Sha512};

use super::*;

const PRIMARY: &str = "primary-key-0123456789abcdef-0123456789";
const SECONDARY: &str = "secondary-key-0123456789abcdef-012345678";
const NOW: u64 = 1_900_000_000;
const AUDIENCE: &str = "http://gw.example:8080/client/hubs/chat";
const NAME_IDENTIFIER: &str = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/nameidentifier";

/// Puts a token together by hand, so that the checks don't rest on the library that they are made with.
fn token(header: &Value, claims: &Value, key: &str) -> String {
    let signed = signed_part(header, claims);
    let mut code = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    code.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(code.finalize().into_bytes()))
}

fn signed_part(header: &Value, claims: &Value) -> String {
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

fn hs256() -> Value {
    json!({"alg": "HS256", "typ": "JWT"})
}

/// Claims that are good, with `changes` laid over them; null takes a claim away.
fn claims(changes: Value) -> Value {
    let mut claims = json!({"aud": AUDIENCE, "exp": NOW + 3600});
    let map = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => map.remove(name),
            value => map.insert(name.clone(), value.clone()),
        };
    }
    claims
}

fn verify(token: &str) -> Result<ClientClaims, TokenError> {
    let audience = AudienceContext { public_urls: &[], host: Some("gw.example:8080"), hub: "chat" };
    AccessKeys::new(PRIMARY, Some(SECONDARY)).unwrap().verify_client_token(token, &audience, NOW)
}

fn verify_claims(changes: Value) -> Result<ClientClaims, TokenError> {
    verify(&token(&hs256(), &claims(changes), PRIMARY))
}

#[test]
fn the_smallest_good_token_is_an_anonymous_user_without_rights() {
    assert_eq!(verify_claims(json!({})), Ok(ClientClaims::default()));
}

#[test]
fn both_keys_verify_and_no_other_does() {
    for key in [PRIMARY, SECONDARY] {
        assert!(verify(&token(&hs256(), &claims(json!({})), key)).is_ok());
    }
    let foreign = token(&hs256(), &claims(json!({})), "a-foreign-key-0123456789abcdef-0123456789");
    assert_eq!(verify(&foreign), Err(TokenError::BadSignature));
}

#[test]
fn without_a_secondary_key_only_the_primary_verifies() {
    let keys = AccessKeys::new(PRIMARY, None).unwrap();
    let audience = AudienceContext { public_urls: &[], host: Some("gw.example:8080"), hub: "chat" };
    let verify = |key| keys.verify_client_token(&token(&hs256(), &claims(json!({})), key), &audience, NOW);
    assert!(verify(PRIMARY).is_ok());
    assert_eq!(verify(SECONDARY), Err(TokenError::BadSignature));
}

#[test]
fn a_key_is_its_text_and_not_what_base64_makes_of_it() {
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let audience = AudienceContext { public_urls: &[], host: Some("gw.example:8080"), hub: "chat" };
    let keys = AccessKeys::new(key, None).unwrap();
    assert!(keys.verify_client_token(&token(&hs256(), &claims(json!({})), key), &audience, NOW).is_ok());
}

#[test]
fn tokens_without_signature_are_refused() {
    for alg in ["none", "None", "NONE", ""] {
        let signed = signed_part(&json!({"alg": alg, "typ": "JWT"}), &claims(json!({})));
        assert_eq!(verify(&format!("{signed}.")), Err(TokenError::UnsupportedAlgorithm), "{alg}");
        let code = token(&json!({"alg": alg}), &claims(json!({})), PRIMARY);
        assert_eq!(verify(&code), Err(TokenError::UnsupportedAlgorithm), "{alg}");
    }
    let signed = signed_part(&hs256(), &claims(json!({})));
    assert_eq!(verify(&format!("{signed}.")), Err(TokenError::BadSignature));
}

#[test]
fn other_algorithms_are_refused_even_when_the_signature_fits() {
    let signed = signed_part(&json!({"alg": "HS512", "typ": "JWT"}), &claims(json!({})));
    let mut code = Hmac::<Sha512>::new_from_slice(PRIMARY.as_bytes()).unwrap();
    code.update(signed.as_bytes());
    let hs512 = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(code.finalize().into_bytes()));
    assert_eq!(verify(&hs512), Err(TokenError::UnsupportedAlgorithm));

    for alg in ["HS384", "RS256", "PS256", "ES256", "EdDSA", "hs256", "HS256 "] {
        let confused = token(&json!({"alg": alg, "typ": "JWT"}), &claims(json!({})), PRIMARY);
        assert_eq!(verify(&confused), Err(TokenError::UnsupportedAlgorithm), "{alg}");
    }
}

#[test]
fn header_fields_of_other_signers_do_no_harm_but_critical_ones_are_refused() {
    let with = |header| verify(&token(&header, &claims(json!({})), PRIMARY));
    assert!(with(json!({"alg": "HS256"})).is_ok());
    assert!(with(json!({"alg": "HS256", "typ": "JWT", "kid": "s-0001", "x": 1})).is_ok());
    assert_eq!(with(json!({"alg": "HS256", "crit": ["b64"]})), Err(TokenError::UnsupportedAlgorithm));
}

#[test]
fn a_tampered_token_is_refused() {
    let good = token(&hs256(), &claims(json!({"sub": "ann"})), PRIMARY);
    let parts: Vec<&str> = good.split('.').collect();
    let others = URL_SAFE_NO_PAD.encode(claims(json!({"sub": "bob"})).to_string());
    let swapped = format!("{}.{others}.{}", parts[0], parts[2]);
    assert_eq!(verify(&swapped), Err(TokenError::BadSignature));
    let mut code = URL_SAFE_NO_PAD.decode(parts[2]).unwrap();
    code[0] ^= 1;
    let flipped = format!("{}.{}.{}", parts[0], parts[1], URL_SAFE_NO_PAD.encode(code));
    assert_eq!(verify(&flipped), Err(TokenError::BadSignature));
    let cut = URL_SAFE_NO_PAD.encode(&URL_SAFE_NO_PAD.decode(parts[2]).unwrap()[..16]);
    assert_eq!(verify(&format!("{}.{}.{cut}", parts[0], parts[1])), Err(TokenError::BadSignature));
}

#[test]
fn what_is_no_token_is_refused() {
    for bad in ["", ".", "..", "...", "a.b", "a.b.c", "a.b.c.d", "\u{0}", "ä.ö.ü"] {
        assert!(verify(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn exp_is_required_and_allows_for_the_skew() {
    assert_eq!(verify_claims(json!({"exp": null})), Err(TokenError::NoExpiry));
    assert!(verify_claims(json!({"exp": NOW})).is_ok());
    assert!(verify_claims(json!({"exp": NOW - CLOCK_SKEW_SECONDS})).is_ok());
    assert_eq!(verify_claims(json!({"exp": NOW - CLOCK_SKEW_SECONDS - 1})), Err(TokenError::Expired));
    assert_eq!(verify_claims(json!({"exp": 0})), Err(TokenError::Expired));
    assert_eq!(verify_claims(json!({"exp": -1})), Err(TokenError::Expired));
    assert!(verify_claims(json!({"exp": u64::MAX})).is_ok());
    assert!(verify_claims(json!({"exp": NOW as f64 + 0.5})).is_ok());
}

#[test]
fn nbf_is_honoured_when_present_and_allows_for_the_skew() {
    assert!(verify_claims(json!({"nbf": NOW - 10, "iat": NOW - 10})).is_ok());
    assert!(verify_claims(json!({"nbf": NOW + CLOCK_SKEW_SECONDS})).is_ok());
    assert_eq!(verify_claims(json!({"nbf": NOW + CLOCK_SKEW_SECONDS + 1})), Err(TokenError::NotYetValid));
}

#[test]
fn iat_and_iss_are_not_judged() {
    assert!(verify_claims(json!({"iat": NOW + 86_400, "iss": "anyone", "jti": "x"})).is_ok());
}

#[test]
fn times_must_be_numbers() {
    for claim in ["exp", "nbf"] {
        for value in [json!("1900003600"), json!(true), json!([NOW]), json!({})] {
            assert_eq!(verify_claims(json!({claim: value})), Err(TokenError::Malformed), "{claim} {value}");
        }
    }
}

fn wrong_audience() -> Result<ClientClaims, TokenError> {
    Err(TokenError::WrongAudience(Wanted::one_of(std::iter::once(AUDIENCE.to_owned()))))
}

#[test]
fn aud_is_required_and_may_be_a_list() {
    assert_eq!(verify_claims(json!({"aud": null})), wrong_audience());
    assert_eq!(verify_claims(json!({"aud": []})), wrong_audience());
    assert!(verify_claims(json!({"aud": ["https://elsewhere.example", AUDIENCE]})).is_ok());
    assert_eq!(verify_claims(json!({"aud": ["https://elsewhere.example"]})), wrong_audience());
    assert_eq!(verify_claims(json!({"aud": 7})), Err(TokenError::Malformed));
}

#[test]
fn aud_must_name_this_endpoint_and_hub() {
    for wrong in [
        "http://gw.example:8080/client/hubs/other",
        "http://gw.example:8080/api/hubs/chat",
        "http://gw.example:8081/client/hubs/chat",
        "ftp://gw.example:8080/client/hubs/chat",
        "https://webpubsub.azure.com",
    ] {
        assert_eq!(verify_claims(json!({"aud": wrong})), wrong_audience(), "{wrong}");
    }
    for right in ["http://GW.example:8080/client/hubs/CHAT/?x=1", "ws://gw.example:8080/client/hubs/chat"] {
        assert!(verify_claims(json!({"aud": right})).is_ok(), "{right}");
    }
}

#[test]
fn the_user_comes_from_sub_and_else_from_the_long_claim() {
    let user = |changes| verify_claims(changes).map(|claims| claims.user_id);
    assert_eq!(user(json!({"sub": "ann"})), Ok(Some("ann".into())));
    assert_eq!(user(json!({NAME_IDENTIFIER: "bob"})), Ok(Some("bob".into())));
    assert_eq!(user(json!({"sub": "ann", NAME_IDENTIFIER: "bob"})), Ok(Some("ann".into())));
    assert_eq!(user(json!({"sub": "", NAME_IDENTIFIER: "bob"})), Ok(Some("bob".into())));
    assert_eq!(user(json!({"sub": ""})), Ok(None));
    assert_eq!(user(json!({"sub": "Åse 王"})), Ok(Some("Åse 王".into())));
    for control in ["a\r\nce-hub: b", "\n", "a\0", "\u{7f}", "\u{85}"] {
        assert_eq!(user(json!({"sub": control})), Err(TokenError::BadUser));
        assert_eq!(user(json!({NAME_IDENTIFIER: control})), Err(TokenError::BadUser));
    }
}

#[test]
fn a_user_whose_application_signs_a_number_was_refused() {
    let user = |changes| verify_claims(changes).map(|claims| claims.user_id);
    assert_eq!(user(json!({"sub": 7})), Ok(Some("7".into())));
    assert_eq!(user(json!({"sub": -12})), Ok(Some("-12".into())));
    assert_eq!(user(json!({"sub": 9007199254740993_u64})), Ok(Some("9007199254740993".into())));
    assert_eq!(user(json!({"sub": null, NAME_IDENTIFIER: 8})), Ok(Some("8".into())));
    for other in [json!(true), json!(["ann"]), json!({"name": "ann"})] {
        assert_eq!(user(json!({"sub": other})), Err(TokenError::Malformed), "{other}");
    }
}

#[test]
fn a_token_was_made_for_a_user_whom_the_gateway_then_refused() {
    let endpoint: Url = "http://gw.example:8080".parse().unwrap();
    let keys = AccessKeys::new(PRIMARY, None).unwrap();
    for user in ["a\r\nce-hub: b", "\n", "a\0", "\u{85}"] {
        let grant = ClientGrant {
            endpoint: &endpoint,
            hub: "chat",
            user_id: Some(user),
            roles: &[],
            groups: &[],
            validity_seconds: 60,
        };
        assert_eq!(keys.sign_client_token(&grant, NOW), Err(SignError::BadUser), "{user:?}");
    }
}

#[test]
fn roles_and_groups_are_a_string_or_a_list() {
    for (claim, read) in [
        ("role", (|claims: ClientClaims| claims.roles) as fn(ClientClaims) -> Vec<String>),
        ("webpubsub.group", |claims: ClientClaims| claims.groups),
    ] {
        let list = |value: Value| verify_claims(json!({claim: value})).map(read);
        assert_eq!(list(json!("b")), Ok(vec!["b".into()]));
        assert_eq!(list(json!(["b", "a", "b"])), Ok(vec!["b".into(), "a".into(), "b".into()]));
        assert_eq!(list(json!([])), Ok(vec![]));
        assert_eq!(list(json!(["a", 1])), Err(TokenError::Malformed));
        assert_eq!(list(json!({"a": 1})), Err(TokenError::Malformed));
    }
}

#[test]
fn other_claims_are_not_kept_and_do_no_harm() {
    let claims = verify_claims(json!({"group": "g", "roles": ["r"], "scope": {"deep": [1, 2]}}));
    assert_eq!(claims, Ok(ClientClaims::default()));
}

#[test]
fn the_signature_is_judged_before_the_claims() {
    let expired =
        token(&hs256(), &claims(json!({"exp": 1, "aud": "x"})), "not-the-key-0123456789abcdef-01234567");
    assert_eq!(verify(&expired), Err(TokenError::BadSignature));
}

fn grant<'a>(endpoint: &'a Url, roles: &'a [String], groups: &'a [String]) -> ClientGrant<'a> {
    ClientGrant { endpoint, hub: "Chat", user_id: Some("ann"), roles, groups, validity_seconds: 60 }
}

#[test]
fn a_signed_token_verifies_for_its_lifetime() {
    let keys = AccessKeys::new(PRIMARY, Some(SECONDARY)).unwrap();
    let endpoint: Url = "https://gw.example/wps/".parse().unwrap();
    let (roles, groups) = (["r1".to_owned(), "r2".to_owned()], ["g".to_owned()]);
    let token = keys.sign_client_token(&grant(&endpoint, &roles, &groups), NOW).unwrap();
    let audience = AudienceContext { public_urls: std::slice::from_ref(&endpoint), host: None, hub: "chat" };
    let expected = ClientClaims {
        user_id: Some("ann".into()),
        roles: vec!["r1".into(), "r2".into()],
        groups: vec!["g".into()],
    };
    assert_eq!(keys.verify_client_token(&token, &audience, NOW), Ok(expected));
    let end = NOW + 60 + CLOCK_SKEW_SECONDS;
    assert!(keys.verify_client_token(&token, &audience, end).is_ok());
    assert_eq!(keys.verify_client_token(&token, &audience, end + 1), Err(TokenError::Expired));
}

#[test]
fn the_primary_key_signs() {
    let endpoint: Url = "http://gw.example:8080".parse().unwrap();
    let token = AccessKeys::new(PRIMARY, Some(SECONDARY))
        .unwrap()
        .sign_client_token(&grant(&endpoint, &[], &[]), NOW)
        .unwrap();
    let audience = AudienceContext { public_urls: &[], host: Some("gw.example:8080"), hub: "chat" };
    let only = |key| AccessKeys::new(key, None).unwrap().verify_client_token(&token, &audience, NOW);
    assert!(only(PRIMARY).is_ok());
    assert_eq!(only(SECONDARY), Err(TokenError::BadSignature));
}

#[test]
fn absent_claims_are_left_out() {
    let keys = AccessKeys::new(PRIMARY, None).unwrap();
    let endpoint: Url = "http://gw.example:8080".parse().unwrap();
    let token =
        keys.sign_client_token(&ClientGrant { user_id: None, ..grant(&endpoint, &[], &[]) }, NOW).unwrap();
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&payload).unwrap(),
        json!({"aud": "http://gw.example:8080/client/hubs/Chat", "iat": NOW, "exp": NOW + 60})
    );
}

#[test]
fn a_client_url_is_ready_to_be_opened() {
    let keys = AccessKeys::new(PRIMARY, None).unwrap();
    for (endpoint, expected) in [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/client/hubs/Chat?access_token="),
        ("https://gw.example/wps/", "wss://gw.example/wps/client/hubs/Chat?access_token="),
    ] {
        let endpoint = endpoint.parse().unwrap();
        let grant = grant(&endpoint, &[], &[]);
        let url = keys.client_url(&grant, NOW).unwrap();
        let token = keys.sign_client_token(&grant, NOW).unwrap();
        assert_eq!(url.as_str(), format!("{expected}{token}"));
    }
    let endpoint = "ftp://gw.example".parse().unwrap();
    assert_eq!(keys.client_url(&grant(&endpoint, &[], &[]), NOW), Err(SignError::BadEndpoint));
}

#[test]
fn errors_show_nothing_of_the_token() {
    let secret = token(&hs256(), &claims(json!({"sub": "ann", "aud": "x"})), PRIMARY);
    let error = verify(&secret).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(secret.split('.').all(|part| !shown.contains(part)) && !shown.contains("ann"), "{shown}");
}

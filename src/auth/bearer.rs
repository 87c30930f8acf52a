//! Tokens in headers.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

/// The token that a request brings in its `Authorization` header; none if that is missing, empty or of another scheme.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

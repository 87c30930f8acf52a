//! Client access tokens for applications that don't sign themselves.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::error::RestError;
use super::{Request, Rest, route};
use crate::auth::{ClientGrant, SignError};
use crate::engine;

/// How long a token is good for when nothing is said, in minutes.
const MINUTES: u32 = 60;

#[derive(Serialize)]
struct Generated {
    token: String,
}

/// Makes a token for the hub.
pub(super) fn generate(rest: &Rest, request: &Request) -> Result<Response, RestError> {
    let Request { call, query, head, repeatable, .. } = request;
    match query.one("clientType")? {
        None => {}
        Some(kind) if kind.eq_ignore_ascii_case("default") => {}
        Some(kind) if kind.eq_ignore_ascii_case("mqtt") => {
            return Err(RestError::not_implemented("clientType", "MQTT clients are not served."));
        }
        Some(_) => return Err(RestError::bad_request("clientType", "Invalid client type.")),
    }
    let minutes = query.number("minutesToExpire", 1..=i32::MAX as u32)?.unwrap_or(MINUTES);
    let roles: Vec<String> = query.all("role").map(str::to_owned).collect();
    let groups: Vec<String> = query.all("group").map(str::to_owned).collect();
    let named = groups.iter().map(|group| route::group_name("group", group));
    if !rest.engine.takes_groups(&named.collect::<Result<Vec<_>, _>>()?) {
        return Err(RestError::bad_request("group", "A session can't be in so many groups."));
    }
    let grant = ClientGrant {
        endpoint: &rest.base_url(head)?,
        hub: &call.spelled_hub,
        user_id: query.one("userId")?.filter(|user_id| !user_id.is_empty()),
        roles: &roles,
        groups: &groups,
        validity_seconds: u64::from(minutes) * 60,
    };
    // A repetition gets the same token: it is made from nothing that passes.
    let issued_at =
        repeatable.as_ref().map_or_else(|| engine::wall_clock().unix_seconds(), |first| first.first_sent);
    let token = rest.access_keys.sign_client_token(&grant, issued_at);
    let token = token.map_err(|error| match error {
        SignError::BadUser => RestError::bad_request("userId", "The user id has control characters."),
        SignError::BadEndpoint | SignError::Failed => RestError::unavailable(),
    })?;
    Ok(Json(Generated { token }).into_response())
}

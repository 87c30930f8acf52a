//! Why a request is refused: one table from causes to statuses and bodies.

use std::borrow::Cow;

use axum::Json;
use axum::http::header::{ALLOW, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{CLIENT_REQUEST_ID, FIRST_SENT, REJECTED, RESULT};
use crate::auth::TokenError;
use crate::engine::{CommandError, HubUnavailable, MEMBERSHIPS_PER_REQUEST_MAX, TOO_MANY_HUBS_RETRY_SECONDS};

/// A refusal. Its body is the API's `ErrorDetail`, and its code also stands in a header, for answers without a body.
#[derive(Debug)]
pub(super) struct RestError {
    pub(super) status: StatusCode,
    code: &'static str,
    target: &'static str,
    pub(super) message: Cow<'static, str>,
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

/// Why a request was refused, as the log says it: its message may hold what an application has sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    pub(super) code: &'static str,
    pub(super) target: &'static str,
}

#[derive(Serialize)]
struct ErrorDetail<'a> {
    code: &'a str,
    message: &'a str,
    target: &'a str,
    details: [(); 0],
}

impl RestError {
    fn new(
        status: StatusCode,
        code: &'static str,
        target: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, target, message: message.into(), header: None }
    }

    pub(super) fn bad_request(target: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Error.BadRequest", target, message)
    }

    pub(super) fn no_such_operation() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Error.NotFound", "Request", "There is no such operation.")
    }

    pub(super) fn method_not_allowed(allowed: &str) -> Self {
        let (status, message) = (StatusCode::METHOD_NOT_ALLOWED, "The method is not allowed here.");
        let error = Self::new(status, "Error.MethodNotAllowed", "Request", message);
        Self {
            header: HeaderValue::from_str(allowed).ok().map(|allowed| Box::new((ALLOW, allowed))),
            ..error
        }
    }

    /// Says why the token was refused, as the client endpoint does; without an error there was none.
    pub(super) fn unauthorized(error: Option<TokenError>) -> Self {
        let message = error.map_or_else(|| "An access token is needed.".to_owned(), |error| sentence(&error));
        let status = StatusCode::UNAUTHORIZED;
        let error = Self::new(status, "Error.Unauthorized", "Authorization", message);
        Self { header: Some(Box::new((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))), ..error }
    }

    pub(super) fn unsupported_media_type() -> Self {
        let message = "The content type is not supported. A message is text/plain, application/json or \
                       application/octet-stream, the groups and the filter of a change are application/json; a charset \
                       has to be a known one.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "Error.UnsupportedMediaType", "Content-Type", message)
    }

    pub(super) fn unsupported_content_encoding() -> Self {
        let (status, message) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body must not be encoded.");
        Self::new(status, "Error.UnsupportedMediaType", "Content-Encoding", message)
    }

    pub(super) fn body_too_large(bytes_max: usize) -> Self {
        let message = format!("The request body is larger than {bytes_max} bytes.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Error.BadRequest", "Request", message)
    }

    pub(super) fn not_implemented(target: &'static str, message: &'static str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "Error.NotImplemented", target, message)
    }

    pub(super) fn unavailable() -> Self {
        let (status, message) = (StatusCode::SERVICE_UNAVAILABLE, "The hub is not available now.");
        Self::new(status, "Error.ServiceUnavailable", "Hub", message)
    }

    /// Much has come of many requests, and of none the end.
    pub(super) fn short_of_memory() -> Self {
        let message = "The gateway is short of memory.";
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "Error.ServiceUnavailable", "Request", message);
        Self { header: Some(Box::new((RETRY_AFTER, HeaderValue::from_static("1")))), ..error }
    }

    /// Nothing is there to be found. The code tells of what, where there is no body.
    pub(super) fn not_found(code: &'static str, target: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, target, format!("{target} is not found."))
    }

    /// The request can't be had under what it says of its repetitions.
    pub(super) fn rejected(
        status: StatusCode,
        target: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        let code = match status {
            StatusCode::PRECONDITION_FAILED => "Error.PreconditionFailed",
            _ => "Error.BadRequest",
        };
        let header = Some(Box::new((RESULT, REJECTED)));
        Self { header, ..Self::new(status, code, target, message) }
    }

    fn conflict(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, "Error.Connection.Conflict", "Connection", message)
    }
}

fn sentence(error: &TokenError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    // A full stop would be taken for a part of the URL.
    let end = if matches!(error, TokenError::WrongAudience(_)) { "" } else { "." };
    letters.next().map_or(String::new(), |first| format!("{}{}{end}", first.to_uppercase(), letters.as_str()))
}

impl From<HubUnavailable> for RestError {
    fn from(error: HubUnavailable) -> Self {
        tracing::debug!(%error, "a hub is not available");
        match error {
            HubUnavailable::TooMany(_) => {
                let seconds = HeaderValue::from(TOO_MANY_HUBS_RETRY_SECONDS);
                Self { header: Some(Box::new((RETRY_AFTER, seconds))), ..Self::unavailable() }
            }
            _ => Self::unavailable(),
        }
    }
}

impl From<CommandError> for RestError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::UnknownConnection => Self::not_found("Error.Connection.NotExisted", "Connection"),
            CommandError::UnknownUser => Self::not_found("Error.User.NotExisted", "User"),
            CommandError::Permission(error) => Self::conflict(error.to_string()),
            CommandError::TooManyGroups => Self::conflict(
                "A connection would be in more than twice groups_per_session_max groups, or in groups whose names take more than 2 MiB.",
            ),
            CommandError::TooManyMemberships => Self::bad_request(
                "groups",
                format!(
                    "One request may make {MEMBERSHIPS_PER_REQUEST_MAX} memberships at most, connections times groups: name \
                     fewer groups, or select fewer connections."
                ),
            ),
            CommandError::OtherRequest => Self::new(
                StatusCode::CONFLICT,
                "Error.Request.Conflict",
                CLIENT_REQUEST_ID,
                "Another request was executed under this request id.",
            ),
            CommandError::PerhapsForgotten => Self::rejected(
                StatusCode::PRECONDITION_FAILED,
                FIRST_SENT,
                "The request is so old that it may have been executed and forgotten.",
            ),
            CommandError::Unavailable => Self::unavailable(),
        }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let Self { status, code, target, message, header } = self;
        let detail = ErrorDetail { code, message: &message, target, details: [] };
        let mut response = (status, Json(detail)).into_response();
        response.headers_mut().extend(header.map(|header| *header));
        let name = HeaderName::from_static("x-ms-error-code");
        response.headers_mut().insert(name, HeaderValue::from_static(code));
        response.extensions_mut().insert(Refused { code, target });
        response
    }
}

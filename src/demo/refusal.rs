//! Why a request is refused: the one place that says which status that is.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{STALL_MILLISECONDS_MAX, USER_BYTES_MAX};

/// Why a request is refused. The text is the answer's; it holds nothing of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// A page of another site may have had its own name resolve to this address.
    #[error("this host is neither loopback nor one of public_urls")]
    ForeignHost,
    /// A page of another site sent it, or something that is no page.
    #[error("the Origin header must be there and name this site")]
    ForeignOrigin,
    /// The body is not called JSON, so that a form of another site could have sent it.
    #[error("the content type must be application/json")]
    NotJson,
    /// The body can't be read.
    #[error("the body can't be read")]
    Unreadable,
    /// The body is too large.
    #[error("the body is too large")]
    TooLarge,
    /// The body is no JSON, or has other fields than this operation.
    #[error("the body is not what this operation takes")]
    BadBody,
    /// The user's name is blank or too long.
    #[error("the user's name must not be blank, and have at most {USER_BYTES_MAX} bytes")]
    BadUser,
    /// The session has no socket, or does not exist, or is one of another hub.
    #[error("this connection has no socket here")]
    NoSocket,
    /// A stall that is no stall, or too long.
    #[error("a stall takes 1 to {STALL_MILLISECONDS_MAX} milliseconds")]
    BadStall,
    /// Nobody would start the process again.
    #[error("this gateway has no supervisor that would start it again: use oncewire dev")]
    NoSupervisor,
    /// The answer can't be made.
    #[error("no access token can be made")]
    NoToken,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::ForeignHost | Self::ForeignOrigin => StatusCode::FORBIDDEN,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unreadable | Self::BadBody | Self::BadUser | Self::BadStall => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NoSocket => StatusCode::NOT_FOUND,
            Self::NoSupervisor => StatusCode::CONFLICT,
            Self::NoToken => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        tracing::debug!(status = status.as_u16(), reason = %self, "demo: refused");
        let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
        (status, headers, json!({ "error": self.to_string() }).to_string()).into_response()
    }
}

//! Requests that come again: by what one is recognised, and what its answer says of that.
//!
//! An application says in two ways that a request may come again. By `x-ms-client-request-id`, which SDKs send with every
//! request: hubs are configured as to what that means. And by the headers of OASIS Repeatable Requests 1.0, which mean one
//! thing everywhere:
//!
//! | request | status | `Repeatability-Result` |
//! |---|---|---|
//! | one of the two headers alone, twice, or with a value that is none | 400 | rejected |
//! | `Repeatability-First-Sent` older than the window, or more than [`AHEAD_SECONDS_MAX`] ahead | 412 | rejected |
//! | so old that it may have been executed and forgotten, since too many came after it | 412 | rejected |
//! | another request had its id | 400 | rejected |
//! | was not executed, for the hub's or the gateway's sake | 5xx | rejected |
//! | any other, for the first time and again | that of the operation | accepted |
//!
//! What changes something, or is refused for what is or is not there, is in the log with its outcome: its repetition gets
//! the first answer, also after a crash. What is wrong with a request by itself is wrong again. A client token is made
//! from the time of first sending, so it is the same token. Only what asks (`HEAD`, `GET`) is answered anew: it changes
//! nothing, and what it was told the first time may be true no more.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use oncewire_protocol::log::{IdempotencyKey, RequestName, RequestParts};

use super::body::{METADATA_PREFIX, is_blank};
use super::error::RestError;
use super::route::Kind;
use super::{CLIENT_REQUEST_ID, FIRST_SENT, REJECTED, REPEATABLE_ID, RESULT, Request};
use crate::config::{HubSettings, Idempotency};
use crate::engine;

const REPEATABLE_CLIENT_ID: &str = "repeatability-client-id";
const ACCEPTED: HeaderValue = HeaderValue::from_static("accepted");
/// Any name of a request, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 256;
/// How far the application's clock may be ahead of the gateway's, in seconds.
const AHEAD_SECONDS_MAX: u64 = 300;

/// What the application says of a request whose repetitions shall have one answer.
#[derive(Debug)]
pub(super) struct Repeatable {
    id: String,
    client_id: Option<String>,
    /// In seconds since 1970-01-01 UTC.
    pub(super) first_sent: u64,
}

impl Repeatable {
    /// Reads the headers, if they are there. The window is the hub's; `now` is that of the wall clock, in seconds since
    /// 1970-01-01 UTC, as the application's is.
    pub(super) fn of(headers: &HeaderMap, window_seconds: u64, now: u64) -> Result<Option<Self>, RestError> {
        let says = |name: &str| headers.get_all(name).iter().any(|value| !is_blank(value));
        if ![REPEATABLE_ID, REPEATABLE_CLIENT_ID, FIRST_SENT].iter().any(|name| says(name)) {
            return Ok(None);
        }
        let id = one(headers, REPEATABLE_ID)?.ok_or_else(|| malformed(REPEATABLE_ID))?;
        let client_id = one(headers, REPEATABLE_CLIENT_ID)?;
        let first_sent =
            one(headers, FIRST_SENT)?.and_then(seconds_of).ok_or_else(|| malformed(FIRST_SENT))?;
        if first_sent.saturating_add(window_seconds) < now
            || first_sent > now.saturating_add(AHEAD_SECONDS_MAX)
        {
            let message = format!(
                "The request was first sent more than {window_seconds} s ago, or more than {AHEAD_SECONDS_MAX} s ahead."
            );
            return Err(RestError::rejected(StatusCode::PRECONDITION_FAILED, FIRST_SENT, message));
        }
        Ok(Some(Self { id: id.to_owned(), client_id: client_id.map(str::to_owned), first_sent }))
    }
}

/// The value of a header that may stand once; an empty one is none.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, RestError> {
    let mut values = headers.get_all(name).iter().filter(|value| !is_blank(value));
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok(),
        (Some(_), Some(_)) => None,
    };
    let value = value.filter(|value| value.len() <= REQUEST_ID_BYTES_MAX);
    value.map(Some).ok_or_else(|| malformed(name))
}

fn malformed(name: &'static str) -> RestError {
    let message = format!(
        "A repeatable request has one `Repeatability-Request-ID` of at most {REQUEST_ID_BYTES_MAX} bytes and one \
         `Repeatability-First-Sent`, a date as `Date` has it."
    );
    RestError::rejected(StatusCode::BAD_REQUEST, name, message)
}

/// Reads a date in the one form that senders may use.
fn seconds_of(date: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(date).ok()?;
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    (httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)) == date).then_some(seconds)
}

/// By what a request is recognised when it comes again; nothing if it shall not be.
pub(super) fn key(
    request: &Request,
    settings: &HubSettings,
    body: &[u8],
) -> Result<Option<engine::Request>, RestError> {
    let Request { head, call, repeatable, .. } = request;
    let headers = telling_headers(&head.headers);
    let parts = |id, client_id| RequestParts {
        id,
        client_id,
        method: head.method.as_str(),
        target: head.uri.path_and_query().map_or("", |target| target.as_str()),
        headers: &headers,
        body,
    };
    let bound = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let window_requests = bound(settings.idempotency_requests_max as u64);
    if let Some(Repeatable { id, client_id, first_sent }) = repeatable {
        let key = IdempotencyKey {
            name: RequestName::of(parts(id, client_id.as_deref())),
            // From first sending on, which may be ahead.
            window_seconds: bound(settings.idempotency_window_seconds.saturating_add(AHEAD_SECONDS_MAX)),
            window_requests,
            first_sent: Some(*first_sent),
        };
        return Ok(Some(engine::Request { key, is_strict: true }));
    }
    let is_meant = match settings.idempotency {
        Idempotency::Sends | Idempotency::Strict => call.kind == Kind::Send,
        Idempotency::All => true,
        Idempotency::Off => false,
    };
    let Some(id) = head.headers.get(CLIENT_REQUEST_ID).filter(|id| is_meant && !is_blank(id)) else {
        return Ok(None);
    };
    let id = id.to_str().ok().filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).ok_or_else(|| {
        let message = format!("The request id is no text of at most {REQUEST_ID_BYTES_MAX} bytes.");
        RestError::bad_request(CLIENT_REQUEST_ID, message)
    })?;
    let key = IdempotencyKey {
        name: RequestName::of(parts(id, None)),
        window_seconds: bound(settings.idempotency_window_seconds),
        window_requests,
        first_sent: None,
    };
    Ok(Some(engine::Request { key, is_strict: settings.idempotency == Idempotency::Strict }))
}

/// The headers that say what a request is, beside its method, target and body; sorted by name, those of one name in their
/// order.
fn telling_headers(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
    let tells =
        |name: &str| name == CONTENT_TYPE.as_str() || name == FIRST_SENT || name.starts_with(METADATA_PREFIX);
    // An empty content type is none; an empty value of metadata is one.
    let is_there = |name: &HeaderName, value: &HeaderValue| name != CONTENT_TYPE || !is_blank(value);
    let telling = headers.iter().filter(|(name, value)| tells(name.as_str()) && is_there(name, value));
    let mut telling: Vec<_> = telling.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    telling.sort_by_key(|(name, _)| *name);
    telling
}

/// Says in the answer to a repeatable request whether it is the one that every repetition gets.
pub(super) fn tell_result(response: &mut Response) {
    let result = if response.status().is_server_error() { REJECTED } else { ACCEPTED };
    response.headers_mut().entry(RESULT).or_insert(result);
}

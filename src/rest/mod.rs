//! The data-plane REST API, by which applications send, manage groups, close, and ask.
//!
//! Knows: the API's HTTP shapes as Azure Web PubSub's specification of version 2024-12-01 has them, and its table of
//! errors. Does not know: shards' insides, sockets, how anything is stored.
//!
//! ```text
//! request -> operation (route.rs) -> version and names -> token -> repetition -> parameters -> body -> engine -> status
//! ```
//! Checks come in this order, so that what is wrong first is told.
//!
//! | file | holds |
//! |---|---|
//! | `route.rs` | the table of operations: method and path |
//! | `query.rs` | the query, each parameter checked |
//! | `body.rs` | content types, bodies and metadata |
//! | `repetition.rs` | by what a request is recognised when it comes again |
//! | `operations.rs` | what each operation asks the engine for |
//! | `listing.rs` | lists in pages |
//! | `tokens.rs` | client access tokens |
//! | `error.rs` | why a request is refused |

mod body;
mod error;
mod listing;
mod operations;
mod query;
mod repetition;
mod route;
mod tokens;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{self, State};
use axum::http::header::{HOST, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode, request};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use url::Url;

use crate::admin::API_SUPPORTED_VERSIONS;
use crate::auth::{AccessKeys, ContinuationTokens, RestAudience, TokenError, TokenRefusals, bearer_token};
use crate::config::{Config, Scheme};
use crate::engine::{self, Engine};
use crate::telemetry::RestRefusal;
use error::{Refused, RestError};
use query::Query;
use repetition::Repeatable;
use route::Call;

/// Set to `true` where a request was executed before and only its outcome is told again.
const DUPLICATE: HeaderName = HeaderName::from_static("x-oncewire-duplicate");
/// The application's own name for a request.
const CLIENT_REQUEST_ID: &str = "x-ms-client-request-id";
const REPEATABLE_ID: &str = "repeatability-request-id";
const FIRST_SENT: &str = "repeatability-first-sent";
/// Set to `accepted` or `rejected` in answers to repeatable requests.
const RESULT: HeaderName = HeaderName::from_static("repeatability-result");
/// That nothing is promised of repetitions.
const REJECTED: HeaderValue = HeaderValue::from_static("rejected");

/// Everything that the operations need of the rest of the gateway.
pub struct Rest {
    /// The settings.
    pub config: Arc<Config>,
    /// What tokens are verified and signed with.
    pub access_keys: AccessKeys,
    /// For lists in pages.
    pub continuation_tokens: ContinuationTokens,
    /// Where sessions live.
    pub engine: Engine,
}

/// Everything below `/api` that has no route of its own.
pub fn router(rest: Rest) -> Router {
    let refusals = TokenRefusals::new("the REST API", Arc::clone(rest.engine.counters()));
    let door = Arc::new(Door { rest, refusals });
    Router::new().route("/api/{*path}", any(serve)).with_state(door)
}

/// A request whose operation is known.
struct Request {
    head: request::Parts,
    query: Query,
    version: Option<String>,
    call: Call,
    /// What it says of its repetitions.
    repeatable: Option<Repeatable>,
}

/// The operations, and what is told of their tokens.
struct Door {
    rest: Rest,
    refusals: TokenRefusals,
}

async fn serve(State(door): State<Arc<Door>>, request: extract::Request) -> Response {
    let begun = Instant::now();
    let is_told = tracing::enabled!(tracing::Level::DEBUG);
    let asked = is_told.then(|| (request.method().clone(), request.uri().path().to_owned()));
    let mut response = door.answer(request).await.unwrap_or_else(RestError::into_response);
    let refused = response.extensions().get::<Refused>().copied();
    if refused.is_some() {
        door.rest.engine.counters().rest_requests_refused.count(counted(response.status()));
    }
    if let Some((method, path)) = asked {
        let (status, elapsed_ms) = (response.status().as_u16(), begun.elapsed().as_millis() as u64);
        let (error, target) = refused.map(|Refused { code, target }| (code, target)).unzip();
        tracing::debug!(%method, path, status, error, target, elapsed_ms, "REST call");
    }
    let versions = HeaderValue::from_static(API_SUPPORTED_VERSIONS);
    response.headers_mut().insert(HeaderName::from_static("api-supported-versions"), versions);
    response
}

fn counted(status: StatusCode) -> RestRefusal {
    match status {
        StatusCode::BAD_REQUEST => RestRefusal::BadRequest,
        StatusCode::UNAUTHORIZED => RestRefusal::Unauthorized,
        StatusCode::FORBIDDEN => RestRefusal::Forbidden,
        StatusCode::NOT_FOUND => RestRefusal::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => RestRefusal::MethodNotAllowed,
        StatusCode::CONFLICT => RestRefusal::Conflict,
        StatusCode::PRECONDITION_FAILED => RestRefusal::PreconditionFailed,
        StatusCode::PAYLOAD_TOO_LARGE => RestRefusal::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => RestRefusal::UnsupportedMediaType,
        StatusCode::NOT_IMPLEMENTED => RestRefusal::NotImplemented,
        StatusCode::SERVICE_UNAVAILABLE => RestRefusal::Unavailable,
        _ => RestRefusal::Other,
    }
}

impl Door {
    async fn answer(&self, request: extract::Request) -> Result<Response, RestError> {
        let (head, body) = request.into_parts();
        let found = route::find(&head.method, head.uri.path())?;
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let version = query.api_version()?;
        let call = found.read()?;
        self.rest.authenticate(&head, &call.names_at).map_err(|error| {
            self.refusals.tell(error.as_ref(), &call.hub);
            RestError::unauthorized(error)
        })?;
        let window_seconds = self.rest.config.hub(call.hub.as_str()).idempotency_window_seconds;
        let repeatable = Repeatable::of(&head.headers, window_seconds, engine::wall_clock().unix_seconds())?;
        let request = Request { head, query, version, call, repeatable };
        let mut response =
            operations::run(&self.rest, &request, body).await.unwrap_or_else(RestError::into_response);
        if request.repeatable.is_some() {
            repetition::tell_result(&mut response);
        }
        Ok(response)
    }
}

impl Rest {
    /// The error is none where there is no token.
    fn authenticate(&self, head: &request::Parts, names_at: &[usize]) -> Result<(), Option<TokenError>> {
        let token = bearer_token(&head.headers).ok_or(None)?;
        let audience = RestAudience {
            public_urls: &self.config.public_urls,
            host: host(&head.headers),
            path: head.uri.path(),
            names_at,
        };
        let verified =
            self.access_keys.verify_rest_token(token, &audience, engine::wall_clock().unix_seconds());
        verified.map_err(|error| {
            tracing::debug!(path = head.uri.path(), %error, "token refused");
            Some(error)
        })
    }

    /// The base URL under which the application reaches this gateway: the first public one, or where there is none the
    /// dialled host.
    fn base_url(&self, head: &request::Parts) -> Result<Url, RestError> {
        let scheme = head.extensions.get::<Scheme>().copied().unwrap_or(Scheme::Http);
        let dialled = host(&head.headers).and_then(|host| Url::parse(&format!("{scheme}://{host}/")).ok());
        let public = self.config.public_urls.first().cloned();
        public.or(dialled).ok_or(RestError::bad_request("Host", "The Host header is missing or not valid."))
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST)?.to_str().ok()
}

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

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName};
use axum::http::{HeaderMap, HeaderValue, request};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use url::Url;

use crate::admin::API_SUPPORTED_VERSIONS;
use crate::auth::{AccessKeys, ContinuationTokens, RestAudience};
use crate::config::{Config, Scheme};
use crate::engine::{self, Engine};
use error::RestError;
use query::Query;
use repetition::Repeatable;

/// Set to `true` where a request was executed before and only its outcome is told again.
const DUPLICATE: HeaderName = HeaderName::from_static("x-oncewire-duplicate");

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
    Router::new().route("/api/{*path}", any(serve)).with_state(Arc::new(rest))
}

async fn serve(State(rest): State<Arc<Rest>>, request: Request) -> Response {
    let mut response = rest.answer(request).await.unwrap_or_else(refused);
    let versions = HeaderValue::from_static(API_SUPPORTED_VERSIONS);
    response.headers_mut().insert(HeaderName::from_static("api-supported-versions"), versions);
    response
}

fn refused(error: RestError) -> Response {
    tracing::debug!(status = error.status.as_u16(), reason = %error, "request refused");
    error.into_response()
}

impl Rest {
    async fn answer(&self, request: Request) -> Result<Response, RestError> {
        let (head, body) = request.into_parts();
        let found = route::find(&head.method, head.uri.path())?;
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let version = query.api_version()?;
        let call = found.read()?;
        self.authenticate(&head, &call.names_at)?;
        let window_seconds = self.config.hub(call.hub.as_str()).idempotency_window_seconds;
        let repeatable = Repeatable::of(&head.headers, window_seconds, engine::wall_clock().unix_seconds())?;
        let request = operations::Request { head, query, version, call, repeatable };
        let mut response = operations::run(self, &request, body).await.unwrap_or_else(refused);
        if request.repeatable.is_some() {
            repetition::tell_result(&mut response);
        }
        Ok(response)
    }

    fn authenticate(&self, head: &request::Parts, names_at: &[usize]) -> Result<(), RestError> {
        let token = bearer_token(&head.headers).ok_or(RestError::unauthorized())?;
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
            RestError::unauthorized()
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

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

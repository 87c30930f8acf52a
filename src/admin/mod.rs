//! What an operator's machinery asks: is this gateway healthy, how much is there, and a copy of it, please?
//!
//! Knows: the health operation of the data-plane REST API, whether the gateway takes work, the format of metrics, and the
//! socket in the data directory. Does not know: what hubs and sessions are, tokens. Its HTTP operations are open to
//! everybody.

pub mod control;
pub mod metrics;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The path of the health operation.
pub const HEALTH_PATH: &str = "/api/health";

/// The versions of the data-plane REST API that are understood, as every answer under `/api` lists them in the header
/// `api-supported-versions`.
pub const API_SUPPORTED_VERSIONS: &str = "2021-10-01, 2022-11-01, 2023-07-01, 2024-01-01, 2024-12-01";

/// Whether the gateway takes work: not before it has started, and no longer once it shuts down. Copies share the state.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says whether the gateway takes work from now on.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether the gateway takes work.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// `HEAD` and `GET` of [`HEALTH_PATH`]: 200 while the gateway takes work, else 503, without a body.
pub fn router(readiness: Readiness) -> Router {
    Router::new().route(HEALTH_PATH, get(health)).with_state(readiness)
}

async fn health(State(readiness): State<Readiness>) -> Response {
    let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::HeaderName::from_static("api-supported-versions"), API_SUPPORTED_VERSIONS),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers.map(|(name, value)| (name, HeaderValue::from_static(value)))).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Method, Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(readiness: &Readiness, method: Method, target: &str) -> (StatusCode, Vec<String>, usize) {
        let request = Request::builder().method(method).uri(target).body(Body::empty()).unwrap();
        let response = router(readiness.clone()).oneshot(request).await.unwrap();
        let versions = response
            .headers()
            .get_all("api-supported-versions")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        let status = response.status();
        (status, versions, response.into_body().collect().await.unwrap().to_bytes().len())
    }

    #[tokio::test]
    async fn health_is_200_while_the_gateway_takes_work_and_else_503() {
        let readiness = Readiness::default();
        for (ready, expected) in [
            (false, StatusCode::SERVICE_UNAVAILABLE),
            (true, StatusCode::OK),
            (false, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            readiness.set(ready);
            for method in [Method::HEAD, Method::GET] {
                let (status, versions, body_bytes) = ask(&readiness, method, "/api/health").await;
                assert_eq!((status, body_bytes), (expected, 0));
                assert_eq!(versions, [API_SUPPORTED_VERSIONS]);
            }
        }
    }

    #[tokio::test]
    async fn health_needs_no_token_and_takes_any_query() {
        let readiness = Readiness::default();
        readiness.set(true);
        for target in ["/api/health?api-version=2024-12-01", "/api/health?x"] {
            assert_eq!(ask(&readiness, Method::HEAD, target).await.0, StatusCode::OK);
        }
        assert_eq!(ask(&readiness, Method::POST, "/api/health").await.0, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask(&readiness, Method::GET, "/api/other").await.0, StatusCode::NOT_FOUND);
    }
}

//! Paths, and the limits of the HTTP side.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::error_handling::HandleErrorLayer;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, Uri, request};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{BoxError, Router};
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use url::Url;

use super::{Shared, absent, upgrade_answer};
use crate::config::Config;
use crate::telemetry::{Counters, Episode, Reason as _, RequestShed};

/// Requests of the API that are worked on at once; further ones are answered 503.
const API_REQUESTS_MAX: usize = 1024;
/// The same of the demo, whose requests need no token.
const DEMO_REQUESTS_MAX: usize = 64;
/// How long one of them may take, its body included.
const DEMO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a browser may remember that a page may use the operations.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);

/// HTTP operations beside the client endpoint. What is done to one group keeps no other from being answered.
#[derive(Default)]
pub struct Operations {
    /// Answered at once, however much else there is to do: whether the gateway lives, and whether it is well.
    pub probes: Router,
    /// What applications and monitoring systems ask for.
    pub api: Router,
    /// The demo.
    pub demo: Router,
}

/// All paths: the client endpoint and `operations`, at the root and behind the path of each public URL. A proxy may
/// take that prefix away or leave it.
pub(super) fn router(shared: &Arc<Shared>, operations: Operations) -> Router {
    let config = &shared.edge.config;
    let endpoint = Router::new()
        .route("/client/hubs/{hub}", any(upgrade_answer::hub_in_path))
        .route("/client/hubs/{hub}/", any(upgrade_answer::hub_in_path))
        .route("/client/hubs/", any(upgrade_answer::hub_left_out))
        .route("/client/hubs", any(upgrade_answer::hub_left_out))
        .route("/client/", any(upgrade_answer::hub_in_query))
        .route("/client", any(upgrade_answer::hub_in_query))
        .with_state(Arc::clone(shared));
    let Operations { probes, api, demo } = operations;
    let timeout = Duration::from_secs(config.request_timeout_seconds);
    let counters = || Arc::clone(shared.edge.engine.counters());
    let api = limited(api, API_REQUESTS_MAX, timeout, RequestShed::Api, counters());
    let demo_timeout = DEMO_TIMEOUT.min(timeout);
    let demo = limited(demo, DEMO_REQUESTS_MAX, demo_timeout, RequestShed::Demo, counters());
    let operations = probes.merge(api).merge(demo);
    let operations = match cross_origin(config) {
        Some(cross_origin) => operations.layer(cross_origin),
        None => operations,
    };
    let routes = with_prefixes(endpoint.merge(operations), &config.public_urls);
    routes.fallback(absent::nothing_there).layer(map_response(absent::with_text))
}

/// Bounds in time and number; one too many is counted as this. Bodies are bounded by whoever reads them, who can say so in
/// the API's own words.
pub(super) fn limited(
    operations: Router,
    requests_max: usize,
    timeout: Duration,
    too_many: RequestShed,
    counters: Arc<Counters>,
) -> Router {
    let shedding = Arc::new(Shedding {
        counters,
        too_many,
        full: Episode::new("HTTP requests are refused: too many at once", too_many.text()),
        slow: Episode::new("HTTP requests are given up: they took too long", too_many.text()),
    });
    let slow = Arc::clone(&shedding);
    let within = move |request: Request, next: Next| {
        let slow = Arc::clone(&slow);
        async move {
            let answer = tokio::time::timeout(timeout, next.run(request)).await;
            answer.unwrap_or_else(|_| slow.timed_out())
        }
    };
    let full = move |_: BoxError| {
        let shedding = Arc::clone(&shedding);
        async move { shedding.full() }
    };
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(full))
        .layer(LoadShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::new(requests_max))
        .layer(from_fn(within));
    operations.layer(layers)
}

/// Lets pages of the listed origins read answers. A token comes in a header that a page sets by itself, so no cookie or
/// the like has to be let through.
fn cross_origin(config: &Config) -> Option<CorsLayer> {
    if config.allowed_origins.is_empty() {
        return None;
    }
    let allowed = config.allowed_origins.clone();
    let is_allowed = move |origin: &HeaderValue, _: &request::Parts| {
        origin.to_str().is_ok_and(|origin| allowed.iter().any(|allowed| allowed.includes(origin)))
    };
    let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE];
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods(methods)
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(PREFLIGHT_MAX_AGE);
    Some(cors)
}

/// What is told of requests that are not finished.
struct Shedding {
    counters: Arc<Counters>,
    too_many: RequestShed,
    full: Episode,
    slow: Episode,
}

impl Shedding {
    fn full(&self) -> Response {
        self.counters.http_requests_shed.count(self.too_many);
        let reason = self.too_many.text();
        tracing::debug!(reason, status = 503, "HTTP request refused");
        if self.full.is_news(Instant::now()) {
            tracing::warn!(reason, "HTTP requests are refused: as many as there may be are worked on");
        }
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }

    fn timed_out(&self) -> Response {
        self.counters.http_requests_shed.count(RequestShed::TimedOut);
        let of = self.too_many.text();
        tracing::debug!(of, status = 503, "HTTP request given up");
        if self.slow.is_news(Instant::now()) {
            tracing::warn!(
                of,
                "HTTP requests are given up: their bodies or the work on them took longer than they may"
            );
        }
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

fn with_prefixes(routes: Router, public_urls: &[Url]) -> Router {
    let prefixes: BTreeSet<_> = public_urls.iter().map(|url| url.path().trim_end_matches('/')).collect();
    prefixes.into_iter().filter(|prefix| !prefix.is_empty()).fold(routes.clone(), |router, prefix| {
        // A segment may begin with a sign that older versions of the router gave a meaning.
        let router = router.without_v07_checks().nest(prefix, routes.clone());
        // The router takes the root of what is nested for the prefix without a slash, and for nothing else.
        let at_root = ServiceBuilder::new().map_request(|mut request: Request| {
            *request.uri_mut() = Uri::from_static("/");
            request
        });
        router.route_service(&format!("{prefix}/"), at_root.service(routes.clone()))
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn status(router: &Router, path: &str) -> StatusCode {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    fn urls(list: &[&str]) -> Vec<Url> {
        list.iter().map(|url| url.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn each_public_urls_path_is_served_beside_the_root() {
        let routes = Router::new().route("/client/", get(async || "")).route("/a/{b}", get(async || ""));
        let public =
            urls(&["https://h", "https://h/wps/", "http://g/wps", "https://h/x/y", "https://h/*z/:w/{v}"]);
        let router = with_prefixes(routes, &public);
        for path in ["/client/", "/wps/client/", "/wps/a/1", "/x/y/a/1", "/*z/:w/%7Bv%7D/a/1"] {
            assert_eq!(status(&router, path).await, StatusCode::OK, "{path}");
        }
        for path in ["/wps", "/x/client/", "/y/client/", "/wps/wps/client/"] {
            assert_eq!(status(&router, path).await, StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operations_have_a_time_limit() {
        let counters = Arc::<Counters>::default();
        let operations = Router::new().route("/slow", get(async || std::future::pending::<()>().await));
        let router = limited(
            operations,
            API_REQUESTS_MAX,
            Duration::from_secs(30),
            RequestShed::Api,
            Arc::clone(&counters),
        );
        assert_eq!(status(&router, "/slow").await, StatusCode::SERVICE_UNAVAILABLE);
        assert!(counters.http_requests_shed.all().any(|count| count == ("timed_out", 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_too_many_is_shed() {
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let slow = async move || {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        let counters = Arc::<Counters>::default();
        let router = Router::new().route("/slow", get(slow));
        let router =
            limited(router, DEMO_REQUESTS_MAX, DEMO_TIMEOUT, RequestShed::Demo, Arc::clone(&counters));
        let running: Vec<_> = (0..DEMO_REQUESTS_MAX)
            .map(|_| {
                let router = router.clone();
                tokio::spawn(async move { status(&router, "/slow").await })
            })
            .collect();
        for _ in 0..DEMO_REQUESTS_MAX {
            starts.recv().await.unwrap();
        }
        assert_eq!(status(&router, "/slow").await, StatusCode::SERVICE_UNAVAILABLE);
        assert!(running.iter().all(|request| !request.is_finished()), "shed at once, not timed out");
        assert!(counters.http_requests_shed.all().any(|count| count == ("demo_requests_max", 1)));
    }
}

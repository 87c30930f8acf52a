//! What an operator's machinery asks: is this gateway healthy, how much is there, and a copy of it, please?
//!
//! Knows: the health operation of the data-plane REST API, whether the gateway takes work, which hubs can't be served, the
//! format of metrics, and the socket in the data directory. Does not know: what sessions are, tokens. Its HTTP operations are
//! open to everybody.

pub mod control;
pub mod metrics;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, body::Body};
use oncewire_protocol::wire::HubName;
use serde::Serialize;
use tokio::sync::watch;

use crate::engine::Engine;

/// The path of the health operation.
pub const HEALTH_PATH: &str = "/api/health";

/// The path that tells whether the process lives: `GET` and `HEAD` are answered 200, whatever the store and the hubs do.
pub const LIVE_PATH: &str = "/livez";

/// The versions of the data-plane REST API that are understood, as every answer under `/api` lists them in the header
/// `api-supported-versions`.
pub const API_SUPPORTED_VERSIONS: &str = "2021-10-01, 2022-11-01, 2023-07-01, 2024-01-01, 2024-12-01";

/// So many damaged hubs the health operation names; the others it counts.
const DAMAGED_NAMED_MAX: usize = 100;

/// Whether the gateway takes work: not before all hubs that it had before are live or known to be damaged, and no longer
/// once it shuts down. Copies share the state.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<watch::Sender<Stage>>);

/// Where the gateway is between start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Ready,
    Stopping,
}

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Stage::Starting)))
    }
}

impl Readiness {
    /// The gateway takes work from now on, unless it has been told to stop.
    pub fn started(&self) {
        self.0.send_if_modified(|stage| {
            let is_news = *stage == Stage::Starting;
            if is_news {
                *stage = Stage::Ready;
            }
            is_news
        });
    }

    /// The gateway takes no more work.
    pub fn stopping(&self) {
        self.0.send_replace(Stage::Stopping);
    }

    /// Completes when the gateway takes work; never, if it stops before.
    pub async fn reached(&self) {
        let mut stages = self.0.subscribe();
        if stages.wait_for(|stage| *stage == Stage::Ready).await.is_err() {
            std::future::pending().await
        }
    }

    fn stage(&self) -> Stage {
        *self.0.borrow()
    }
}

/// What the health operation looks at.
#[derive(Clone)]
pub struct Health {
    /// Whether the gateway takes work.
    pub readiness: Readiness,
    /// Has the hubs.
    pub engine: Engine,
    /// See [`Config::start_with_damaged_hubs`](crate::config::Config::start_with_damaged_hubs).
    pub start_with_damaged_hubs: bool,
}

/// `HEAD` and `GET` of [`HEALTH_PATH`]: 200 while the gateway takes work and no hub is damaged, else 503. The body says why,
/// and names damaged hubs also where they are borne; there is none when all is well. And [`LIVE_PATH`].
pub fn router(health: Health) -> Router {
    Router::new().route(HEALTH_PATH, get(answer)).route(LIVE_PATH, get(live)).with_state(health)
}

async fn live() -> Response {
    ([(header::CACHE_CONTROL, "no-store")], "ok\n").into_response()
}

async fn answer(State(health): State<Health>) -> Response {
    let (status, report) =
        judge(health.readiness.stage(), &health.engine.damaged_hubs(), health.start_with_damaged_hubs);
    let headers = [
        (header::HeaderName::from_static("api-supported-versions"), API_SUPPORTED_VERSIONS),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let body = report.map_or_else(|| Body::empty().into_response(), |report| Json(report).into_response());
    (status, headers.map(|(name, value)| (name, HeaderValue::from_static(value))), body).into_response()
}

/// What the body says.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged_hubs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_hub_count: Option<usize>,
}

fn judge(stage: Stage, damaged: &[HubName], bears_damage: bool) -> (StatusCode, Option<Report>) {
    let status = match stage {
        Stage::Starting => "starting",
        Stage::Stopping => "stopping",
        Stage::Ready if damaged.is_empty() => return (StatusCode::OK, None),
        Stage::Ready if bears_damage => "ready",
        Stage::Ready => "damaged",
    };
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let damaged_hub_count = Some(damaged.len()).filter(|count| *count > 0);
    let damaged_hubs = damaged.iter().take(DAMAGED_NAMED_MAX).map(HubName::to_string).collect();
    (code, Some(Report { status, damaged_hubs, damaged_hub_count }))
}

#[cfg(test)]
mod tests {
    use axum::http::{Method, Request};
    use http_body_util::BodyExt;
    use oncewire_protocol::log::BootId;
    use tower::ServiceExt;

    use super::*;
    use crate::config::Config;
    use crate::store::MemoryStore;

    async fn ask(readiness: &Readiness, method: Method, target: &str) -> (StatusCode, Vec<String>, String) {
        let request = Request::builder().method(method).uri(target).body(Body::empty()).unwrap();
        let engine = Engine::new(Arc::new(Config::default()), Arc::new(MemoryStore::default()), BootId(1));
        let health = Health { readiness: readiness.clone(), engine, start_with_damaged_hubs: false };
        let response = router(health).oneshot(request).await.unwrap();
        let versions = response
            .headers()
            .get_all("api-supported-versions")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, versions, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn health_is_200_while_the_gateway_takes_work_and_else_503() {
        let readiness = Readiness::default();
        let expect = async |expected: StatusCode, body: &str| {
            for (method, body) in [(Method::HEAD, ""), (Method::GET, body)] {
                let (status, versions, said) = ask(&readiness, method, "/api/health").await;
                assert_eq!((status, said.as_str()), (expected, body));
                assert_eq!(versions, [API_SUPPORTED_VERSIONS]);
            }
        };
        expect(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"starting"}"#).await;
        readiness.started();
        readiness.reached().await;
        expect(StatusCode::OK, "").await;
        readiness.stopping();
        expect(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"stopping"}"#).await;
        readiness.started();
        expect(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"stopping"}"#).await;
    }

    #[test]
    fn damaged_hubs_are_named_and_make_it_503_unless_they_are_borne() {
        let hubs: Vec<_> = (100..250).map(|n| HubName::new(&format!("hub{n}")).unwrap()).collect();
        let json = |report: Option<Report>| serde_json::to_string(&report.unwrap()).unwrap();
        let (code, report) = judge(Stage::Ready, &hubs[..2], false);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            json(report),
            r#"{"status":"damaged","damagedHubs":["hub100","hub101"],"damagedHubCount":2}"#
        );
        let (code, report) = judge(Stage::Ready, &hubs[..1], true);
        assert_eq!(code, StatusCode::OK);
        assert_eq!(json(report), r#"{"status":"ready","damagedHubs":["hub100"],"damagedHubCount":1}"#);
        let (code, report) = judge(Stage::Starting, &hubs[..1], true);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "others may be on their way");
        assert_eq!(report.unwrap().status, "starting");
        let report = judge(Stage::Ready, &hubs, false).1.unwrap();
        assert_eq!((report.damaged_hubs.len(), report.damaged_hub_count), (DAMAGED_NAMED_MAX, Some(150)));
    }

    #[tokio::test]
    async fn a_process_that_starts_or_stops_is_alive() {
        let readiness = Readiness::default();
        for stage in [Stage::Starting, Stage::Ready, Stage::Stopping] {
            readiness.0.send_replace(stage);
            let (status, _, body) = ask(&readiness, Method::GET, LIVE_PATH).await;
            assert_eq!((status, body.as_str()), (StatusCode::OK, "ok\n"), "{stage:?}");
            assert_eq!(ask(&readiness, Method::HEAD, LIVE_PATH).await.0, StatusCode::OK);
        }
    }

    #[tokio::test]
    async fn health_needs_no_token_and_takes_any_query() {
        let readiness = Readiness::default();
        readiness.started();
        for target in ["/api/health?api-version=2024-12-01", "/api/health?x"] {
            assert_eq!(ask(&readiness, Method::GET, target).await.0, StatusCode::OK);
        }
        assert_eq!(ask(&readiness, Method::POST, "/api/health").await.0, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask(&readiness, Method::GET, "/api/other").await.0, StatusCode::NOT_FOUND);
    }
}

//! What a monitoring system asks: how much is there?
//!
//! One answer in the text format of OpenMetrics, which Prometheus reads. Counts are taken when they are asked for.

use std::fmt;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use oncewire_protocol::wire::HubName;

use crate::engine::{Engine, HubCounts};

/// The path of the metrics.
pub const METRICS_PATH: &str = "/metrics";

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `GET` of [`METRICS_PATH`]. Open to everybody, hubs' names included.
pub fn router(engine: Engine) -> Router {
    Router::new().route(METRICS_PATH, get(metrics)).with_state(engine)
}

async fn metrics(State(engine): State<Engine>) -> Response {
    match text(&engine.counts().await, &engine.damaged_hubs()) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")], text)
            .into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics can't be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

type Labels = Vec<(&'static str, String)>;

fn text(hubs: &[HubCounts], damaged: &[HubName]) -> Result<String, fmt::Error> {
    let sessions = Family::<Labels, Gauge>::default();
    let sockets = Family::<Labels, Gauge>::default();
    let repeated = Family::<Labels, Counter>::default();
    for HubCounts { hub, sessions: all, sockets: attached, requests_repeated } in hubs {
        let labels = vec![("hub", hub.to_string())];
        sessions.get_or_create(&labels).set(*all as i64);
        sockets.get_or_create(&labels).set(*attached as i64);
        repeated.get_or_create(&labels).inc_by(*requests_repeated);
    }
    let is_damaged = Family::<Labels, Gauge>::default();
    for hub in damaged {
        is_damaged.get_or_create(&vec![("hub", hub.to_string())]).set(1);
    }
    let mut registry = Registry::with_prefix("oncewire");
    registry.register("sessions", "Sessions, those without a socket included", sessions);
    registry.register("sockets", "Sessions with a socket", sockets);
    let help = "Requests of the application that came again and were not executed again";
    registry.register("requests_repeated", help, repeated);
    let help = "Hubs that could not be started because what is stored of them is damaged or not readable";
    registry.register("hub_damaged", help, is_damaged);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hub_has_its_lines() {
        let counts = |hub, sessions| HubCounts {
            hub: HubName::new(hub).unwrap(),
            sessions,
            sockets: 1,
            requests_repeated: 7,
        };
        let damaged = [HubName::new("old").unwrap()];
        let text = text(&[counts("chat", 2), counts("a[1]", 3)], &damaged).unwrap();
        for line in [
            "# TYPE oncewire_sessions gauge",
            "oncewire_sessions{hub=\"chat\"} 2",
            "oncewire_sessions{hub=\"a[1]\"} 3",
            "oncewire_sockets{hub=\"chat\"} 1",
            "# TYPE oncewire_requests_repeated counter",
            "# TYPE oncewire_hub_damaged gauge",
            "oncewire_hub_damaged{hub=\"old\"} 1",
            "oncewire_requests_repeated_total{hub=\"chat\"} 7",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}

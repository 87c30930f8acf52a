//! What a monitoring system asks: how much is there?
//!
//! One answer in the text format of OpenMetrics, which Prometheus reads. It is put together at most once a second, from
//! counts that are kept up as things happen: whoever asks often costs the others nothing.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use parking_lot::Mutex;

use crate::engine::{Engine, HubCounts};
use crate::telemetry::{self, Counters};

/// The path of the metrics.
pub const METRICS_PATH: &str = "/metrics";

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// For so long an answer is given again.
const FRESH: Duration = Duration::from_secs(1);

/// `GET` of [`METRICS_PATH`]. Open to everybody, hubs' names included.
pub fn router(engine: Engine) -> Router {
    let metrics = Arc::new(Metrics { engine, last: Mutex::default() });
    Router::new().route(METRICS_PATH, get(answer)).with_state(metrics)
}

struct Metrics {
    engine: Engine,
    last: Mutex<Last>,
}

/// What was answered last, and when it was put together.
#[derive(Default)]
struct Last(Option<(Instant, Arc<str>)>);

impl Last {
    fn get(
        &mut self,
        now: Instant,
        text: impl FnOnce() -> Result<String, fmt::Error>,
    ) -> Result<Arc<str>, fmt::Error> {
        if let Some((since, text)) = &self.0
            && now.saturating_duration_since(*since) < FRESH
        {
            return Ok(Arc::clone(text));
        }
        let text: Arc<str> = text()?.into();
        self.0 = Some((now, Arc::clone(&text)));
        Ok(text)
    }
}

async fn answer(State(metrics): State<Arc<Metrics>>) -> Response {
    let Metrics { engine, last } = &*metrics;
    let put_together = || text(&engine.counts(), &engine.damaged_hubs(), engine.counters());
    let text = last.lock().get(Instant::now(), put_together);
    match text.map(|text| text.to_string()) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")], text)
            .into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics can't be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

type Labels = Vec<(&'static str, String)>;

fn text(hubs: &[HubCounts], damaged: &[HubName], counters: &Counters) -> Result<String, fmt::Error> {
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
    registry.register("sockets", "Sockets that have a session", sockets);
    let help = "Requests of the application that came again and were not executed again";
    registry.register("requests_repeated", help, repeated);
    let help = "Hubs that could not be started because what is stored of them is damaged or not readable";
    registry.register("hub_damaged", help, is_damaged);
    for telemetry::Family { name, help, counts } in counters.families() {
        let family = Family::<Labels, Counter>::default();
        for (reason, count) in counts {
            family.get_or_create(&vec![("reason", reason.to_owned())]).inc_by(count);
        }
        registry.register(name, help, family);
    }
    let dropped = Counter::<u64>::default();
    dropped.inc_by(telemetry::dropped_log_lines());
    let help = "Lines of the log that were not written, since standard error did not take them fast enough";
    registry.register("log_lines_dropped", help, dropped);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::SessionEnd;

    #[test]
    fn an_answer_is_put_together_once_a_second_at_most() {
        let (mut last, start) = (Last::default(), Instant::now());
        let mut ask = |after_ms, text: &str| {
            last.get(start + Duration::from_millis(after_ms), || Ok(text.to_owned())).unwrap()
        };
        assert_eq!(&*ask(0, "first"), "first");
        assert_eq!(&*ask(999, "second"), "first");
        assert_eq!(&*ask(1000, "third"), "third");
        assert_eq!(&*ask(1001, "fourth"), "third");
    }

    #[test]
    fn each_hub_has_its_lines() {
        let counts = |hub, sessions| HubCounts {
            hub: HubName::new(hub).unwrap(),
            sessions,
            sockets: 1,
            requests_repeated: 7,
        };
        let damaged = [HubName::new("old").unwrap()];
        let counters = Counters::default();
        counters.sessions_ended.count(SessionEnd::OutboxFull);
        let text = text(&[counts("chat", 2), counts("a[1]", 3)], &damaged, &counters).unwrap();
        for line in [
            "# TYPE oncewire_sessions gauge",
            "oncewire_sessions{hub=\"chat\"} 2",
            "oncewire_sessions{hub=\"a[1]\"} 3",
            "oncewire_sockets{hub=\"chat\"} 1",
            "# TYPE oncewire_requests_repeated counter",
            "# TYPE oncewire_hub_damaged gauge",
            "oncewire_hub_damaged{hub=\"old\"} 1",
            "oncewire_requests_repeated_total{hub=\"chat\"} 7",
            "# TYPE oncewire_sessions_ended counter",
            "oncewire_sessions_ended_total{reason=\"outbox_full\"} 1",
            "oncewire_sessions_ended_total{reason=\"shed\"} 0",
            "oncewire_log_lines_dropped_total 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}

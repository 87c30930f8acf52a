//! Asking a handler whether it wants events of this gateway, before it is sent any: the validation of "HTTP 1.1 Web Hooks
//! for Event Delivery" (CloudEvents), without its rates and callbacks.
//!
//! No timer drives it: events do. The first asks, and those that come meanwhile wait for the same answer.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::attempts::attempts;
use super::client::{Answer, HttpClient};
use super::request::{AWPS_VERSION, REQUEST_ORIGIN, Sender, VERSION};

/// How long a handler's leave is relied on without asking again.
const FRESH: Duration = Duration::from_secs(60);
/// After a refusal nothing is asked for so long at the most.
const BACKOFF_SECONDS_MAX: u64 = 60;
/// How long one question may take, with its further attempts.
const ASKING_MAX: Duration = Duration::from_secs(10);

const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");

/// Why a handler is sent nothing. The texts begin with the names under which operators of Web PubSub know the causes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// It names other origins, or none.
    #[error(
        "AbuseProtectionResponseMissingAllowedOrigin: the answer ({1}) has no WebHook-Allowed-Origin that names {0}"
    )]
    MissingAllowedOrigin(String, StatusCode),
    /// It does not answer with success.
    #[error("AbuseProtectionResponseInvalidStatusCode: {0}")]
    InvalidStatusCode(StatusCode),
    /// It does not answer.
    #[error("AbuseProtectionResponseFailed: {0}")]
    Failed(String),
}

/// Puts the question to a handler.
pub(super) struct Question {
    pub client: HttpClient,
    pub uri: Uri,
    pub delays: Vec<Duration>,
}

impl Question {
    /// Asks by `OPTIONS`, and where nothing is found for that, by `GET`. Returns the status of the leave.
    pub(super) async fn ask(&self, sender: &Sender) -> Result<StatusCode, Refusal> {
        let mut answer = self.answer(Method::OPTIONS, sender).await?;
        if answer.status == StatusCode::NOT_FOUND {
            answer = self.answer(Method::GET, sender).await?;
        }
        if !answer.status.is_success() {
            return Err(Refusal::InvalidStatusCode(answer.status));
        }
        let origin = sender.origin.to_str().unwrap_or_default();
        if !allows(&answer.headers, origin) {
            return Err(Refusal::MissingAllowedOrigin(origin.to_owned(), answer.status));
        }
        Ok(answer.status)
    }

    async fn answer(&self, method: Method, sender: &Sender) -> Result<Answer, Refusal> {
        let send = || {
            let mut request = Request::new(Full::new(Bytes::new()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = self.uri.clone();
            request.headers_mut().insert(REQUEST_ORIGIN, sender.origin.clone());
            request.headers_mut().insert(AWPS_VERSION, VERSION);
            self.client.send(request, sender.memory.answer())
        };
        match tokio::time::timeout(ASKING_MAX, attempts(&self.delays, send)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Refusal::Failed(error.to_string())),
            Err(_) => Err(Refusal::Failed(format!("no answer in {} s", ASKING_MAX.as_secs()))),
        }
    }
}

/// Whether one of the origins that are named is this host, with a port or without, or all are meant. Intermediaries may
/// have joined lines by commas, which no origin holds.
fn allows(headers: &HeaderMap, host: &str) -> bool {
    let lines = headers.get_all(ALLOWED_ORIGIN).iter().filter_map(|line| line.to_str().ok());
    let is_host = |origin: &str| {
        let rest = origin.get(..host.len()).filter(|start| start.eq_ignore_ascii_case(host));
        rest.is_some_and(|_| {
            let port = &origin[host.len()..];
            port.is_empty() || port.strip_prefix(':').is_some_and(is_port)
        })
    };
    lines.flat_map(|line| line.split(',')).map(str::trim).any(|origin| origin == "*" || is_host(origin))
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lets events through to a handler that wants them.
pub(super) struct Gate {
    ask: Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    last: Option<Outcome>,
    /// Gets the outcome of the question that is under way.
    asking: Option<watch::Receiver<Option<bool>>>,
    /// How long to wait after the next refusal.
    backoff_seconds: u64,
}

#[derive(Clone, Copy)]
enum Outcome {
    Allowed { since: Instant },
    Refused { until: Instant },
}

impl Gate {
    /// A gate that asks in this way.
    pub(super) fn new(ask: impl Fn() -> BoxFuture<'static, bool> + Send + Sync + 'static) -> Self {
        Self { ask: Box::new(ask), state: Arc::default() }
    }

    /// Whether an event may be sent. A leave that is no longer fresh counts once more, and is asked for again meanwhile;
    /// after a refusal it takes some time until the next event asks, and waits for the answer.
    pub(super) async fn is_open(&self) -> bool {
        let mut asking = {
            let mut state = self.state.lock();
            let now = Instant::now();
            match state.last {
                Some(Outcome::Allowed { since }) => {
                    if now.duration_since(since) >= FRESH {
                        self.asking(&mut state);
                    }
                    return true;
                }
                Some(Outcome::Refused { until }) if now < until => return false,
                Some(Outcome::Refused { .. }) | None => self.asking(&mut state),
            }
        };
        // The question is gone without an outcome only when the process ends.
        asking.wait_for(Option::is_some).await.is_ok_and(|outcome| *outcome == Some(true))
    }

    /// The question that is under way, or a new one. It goes on when nobody waits for it any more.
    fn asking(&self, state: &mut State) -> watch::Receiver<Option<bool>> {
        if let Some(asking) = &state.asking {
            return asking.clone();
        }
        let (outcome, asking) = watch::channel(None);
        state.asking = Some(asking.clone());
        let (question, state) = ((self.ask)(), Arc::clone(&self.state));
        tokio::spawn(async move {
            let is_allowed = question.await;
            state.lock().conclude(is_allowed);
            outcome.send_replace(Some(is_allowed));
        });
        asking
    }
}

impl State {
    fn conclude(&mut self, is_allowed: bool) {
        let now = Instant::now();
        self.asking = None;
        if is_allowed {
            self.backoff_seconds = 0;
            self.last = Some(Outcome::Allowed { since: now });
        } else {
            self.backoff_seconds = (self.backoff_seconds * 2).clamp(1, BACKOFF_SECONDS_MAX);
            self.last = Some(Outcome::Refused { until: now + Duration::from_secs(self.backoff_seconds) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use axum::http::HeaderValue;
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    /// A handler that answers after a second.
    struct Bench {
        gate: Gate,
        questions: Arc<AtomicUsize>,
        allows: Arc<AtomicBool>,
    }

    impl Bench {
        fn new(allows: bool) -> Self {
            let (questions, allows) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicBool::new(allows)));
            let (asked, says) = (Arc::clone(&questions), Arc::clone(&allows));
            let gate = Gate::new(move || {
                asked.fetch_add(1, Ordering::SeqCst);
                let says = Arc::clone(&says);
                async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    says.load(Ordering::SeqCst)
                }
                .boxed()
            });
            Self { gate, questions, allows }
        }

        fn questions(&self) -> usize {
            self.questions.load(Ordering::SeqCst)
        }

        /// What an event finds, and how many milliseconds it waited.
        async fn event(&self) -> (bool, u128) {
            let start = Instant::now();
            (self.gate.is_open().await, start.elapsed().as_millis())
        }
    }

    async fn pass(milliseconds: u64) {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_first_events_share_one_question() {
        let bench = Bench::new(true);
        let outcomes = join_all((0..100).map(|_| bench.event())).await;
        assert!(outcomes.iter().all(|outcome| *outcome == (true, 1000)));
        assert_eq!(bench.questions(), 1);
        assert_eq!(bench.event().await, (true, 0));
        assert_eq!(bench.questions(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_goes_on_when_nobody_waits_for_it() {
        let bench = Bench::new(true);
        let waiting = tokio::time::timeout(Duration::from_millis(10), bench.event());
        assert!(waiting.await.is_err());
        pass(1000).await;
        assert_eq!((bench.event().await, bench.questions()), ((true, 0), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leave_is_renewed_after_a_minute_while_events_go_on() {
        let bench = Bench::new(true);
        bench.event().await;
        pass(59_999).await;
        assert_eq!((bench.event().await, bench.questions()), ((true, 0), 1));
        pass(1).await;
        assert_eq!((bench.event().await, bench.questions()), ((true, 0), 2));
        assert_eq!((bench.event().await, bench.questions()), ((true, 0), 2));
        pass(2000).await;
        bench.allows.store(false, Ordering::SeqCst);
        pass(60_000).await;
        assert_eq!((bench.event().await, bench.questions()), ((true, 0), 3));
        pass(1001).await;
        assert_eq!(bench.event().await, (false, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_counts_for_a_second_and_then_twice_as_long_up_to_a_minute() {
        let bench = Bench::new(false);
        assert_eq!(bench.event().await, (false, 1000));
        for (index, seconds) in [1_u64, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            pass(seconds * 1000 - 1).await;
            assert_eq!(bench.event().await, (false, 0), "{seconds}");
            assert_eq!(bench.questions(), index + 1);
            pass(1).await;
            // This one asks, and waits for the answer.
            assert_eq!(bench.event().await, (false, 1000), "{seconds}");
        }
        pass(60_000).await;
        bench.allows.store(true, Ordering::SeqCst);
        assert_eq!(bench.event().await, (true, 1000));
        // It begins anew.
        bench.allows.store(false, Ordering::SeqCst);
        pass(60_000).await;
        assert_eq!(bench.event().await, (true, 0));
        pass(1001).await;
        assert_eq!(bench.event().await, (false, 0));
        pass(1000).await;
        assert_eq!(bench.event().await, (false, 1000));
    }

    #[test]
    fn an_origin_is_allowed_by_name_with_or_without_port_or_with_all() {
        let allowed = |lines: &[&'static str], host: &str| {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| {
                headers.append(ALLOWED_ORIGIN, HeaderValue::from_static(line));
            });
            allows(&headers, host)
        };
        for lines in [
            &["*"][..],
            &["Gateway.Example.net"],
            &["gateway.example.net:8080"],
            &["a.net", "gateway.example.net"],
            &["a.net, gateway.example.net"],
            &["a.net,*"],
        ] {
            assert!(allowed(lines, "gateway.example.net"), "{lines:?}");
        }
        for lines in [
            &[][..],
            &[""],
            &["a.net"],
            &["gateway.example.net.evil.net"],
            &["gateway.example.net:"],
            &["gateway.example.net:80x"],
            &["xgateway.example.net"],
            &["*.example.net"],
            &["https://gateway.example.net"],
        ] {
            assert!(!allowed(lines, "gateway.example.net"), "{lines:?}");
        }
        assert!(allowed(&["[::1]:8080"], "[::1]") && allowed(&["[::1]"], "[::1]"));
    }
}

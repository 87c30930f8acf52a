//! One event handler: what may be under way to it, and how an event is brought to it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderValue, Method, Request, Uri};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::Full;
use oncewire_protocol::wire::HubName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::EventsError;
use super::attempts::{attempts, may_change};
use super::client::{Answer, Clients, ExchangeError, HttpClient};
use super::cookies::Jars;
use super::decoding::decoded;
use super::memory::EventRoom;
use super::request::{BadHeader, Event, Sender};
use super::validation::{Gate, Question};
use crate::config::{EventHandler, EventUrl, Secret, SystemEvent};
use crate::telemetry::{Episode, EventFailure};

/// What takes the place of the event's name when a handler is asked for leave to send.
const VALIDATE: &str = "validate";
/// Sessions of whose beginning a handler is being told at once, and the same for their ends: neither holds up the events
/// that clients wait for.
const TELLING_MAX: usize = 128;
/// Sessions whose beginning waits to be told; the handler is not told of further ones.
const CONNECTED_WAITING_MAX: usize = 10_000;

/// What an event has until it is dropped.
pub(super) type Place = (OwnedSemaphorePermit, EventRoom);

/// See the module.
pub(super) struct Handler {
    settings: EventHandler,
    hub: HubName,
    url: EventUrl,
    /// The URL of all events, if they have the same.
    fixed: Option<Uri>,
    client: HttpClient,
    sender: Arc<Sender>,
    authorization: Option<HeaderValue>,
    gate: Option<Gate>,
    delays: Vec<Duration>,
    timeout: Duration,
    /// Events that clients wait for.
    waited_for: Arc<Semaphore>,
    connected_places: Arc<Semaphore>,
    connected: Semaphore,
    disconnected: Semaphore,
    failures: Episode,
}

/// Why an event did not get an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The handler has not given leave to send.
    #[error("the event handler does not allow requests of this gateway")]
    NotAllowed,
    /// No URL can be made for it.
    #[error("the event's URL is too long")]
    BadUrl,
    /// It took too long, with all attempts.
    #[error("no answer in {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The last attempt failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl Failure {
    /// As it is counted.
    pub(super) fn cause(&self) -> EventFailure {
        match self {
            Self::NotAllowed => EventFailure::NotAllowed,
            Self::Exchange(ExchangeError::NoRoom(_)) => EventFailure::Busy,
            Self::TimedOut(_) => EventFailure::TimedOut,
            Self::Exchange(ExchangeError::Network(_)) => EventFailure::Network,
            Self::Exchange(
                ExchangeError::TooLarge | ExchangeError::UnknownEncoding | ExchangeError::BadEncoding,
            ) => EventFailure::BadAnswer,
            Self::BadUrl | Self::Exchange(ExchangeError::Unsendable(_)) => EventFailure::Unsendable,
        }
    }

    /// Whether no later attempt can bring anything else.
    fn is_final(&self) -> bool {
        match self {
            Self::BadUrl
            | Self::Exchange(
                ExchangeError::TooLarge
                | ExchangeError::Unsendable(_)
                | ExchangeError::UnknownEncoding
                | ExchangeError::BadEncoding,
            ) => true,
            Self::NotAllowed
            | Self::TimedOut(_)
            | Self::Exchange(ExchangeError::Network(_) | ExchangeError::NoRoom(_)) => false,
        }
    }
}

impl Handler {
    /// A handler that nothing has been sent to. `key` is its section of the configuration.
    pub(super) fn new(
        settings: &EventHandler,
        hub: &HubName,
        key: &str,
        sender: &Arc<Sender>,
        clients: &mut Clients,
    ) -> Result<Self, EventsError> {
        let bad_url = || EventsError::BadUrl { key: key.to_owned() };
        let url = settings.url_template.of_hub(hub.as_str()).map_err(|_| bad_url())?;
        let uri = |event: &str| Uri::try_from(url.of_event(event)).map_err(|_| bad_url());
        let validation = uri(VALIDATE)?;
        let client = clients
            .client(url.is_https(), settings.tls_ca.as_deref())
            .map_err(|source| EventsError::Client { key: key.to_owned(), source })?;
        let delays: Vec<_> = settings.retry_after_seconds.iter().copied().map(Duration::from_secs).collect();
        let gate = settings.abuse_protection.then(|| {
            let question = Question { client: client.clone(), uri: validation, delays: delays.clone() };
            gate(question, Arc::clone(sender), hub.clone(), settings.url_template.to_string())
        });
        let telling_max = TELLING_MAX.min(settings.requests_max);
        Ok(Self {
            settings: settings.clone(),
            hub: hub.clone(),
            fixed: url.is_fixed().then(|| uri(VALIDATE)).transpose()?,
            url,
            client,
            sender: Arc::clone(sender),
            authorization: settings.bearer_token.as_ref().and_then(authorization),
            gate,
            delays,
            timeout: Duration::from_secs(settings.timeout_seconds),
            waited_for: Arc::new(Semaphore::new(settings.requests_max)),
            connected_places: Arc::new(Semaphore::new(CONNECTED_WAITING_MAX)),
            connected: Semaphore::new(telling_max),
            disconnected: Semaphore::new(telling_max),
            failures: Episode::new(
                "an event handler fails",
                format!("hub {hub}, handler {}", settings.url_template),
            ),
        })
    }

    /// Whether it is the one that these settings ask for.
    pub(super) fn has_settings(&self, settings: &EventHandler) -> bool {
        self.settings == *settings
    }

    /// Whether it takes user events of this name.
    pub(super) fn takes_user_event(&self, name: &str) -> bool {
        self.settings.user_event_pattern.as_ref().is_some_and(|pattern| pattern.takes(name))
    }

    /// Whether it takes this event of sessions.
    pub(super) fn takes_system_event(&self, event: SystemEvent) -> bool {
        self.settings.system_events.contains(&event)
    }

    /// A place for an event of so many bytes that a client waits for, if there is one.
    pub(super) fn place(&self, event: &str, bytes: usize) -> Option<Place> {
        self.place_among(&self.waited_for, event, bytes, "requests_max events are under way")
    }

    /// A place in the line of those that tell of a session's beginning, if there is one.
    pub(super) fn place_to_tell_connected(&self, bytes: usize) -> Option<Place> {
        let event = SystemEvent::Connected.name();
        self.place_among(&self.connected_places, event, bytes, "too many sessions begin")
    }

    fn place_among(&self, places: &Arc<Semaphore>, event: &str, bytes: usize, full: &str) -> Option<Place> {
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            self.report(
                event,
                EventFailure::Busy,
                &format_args!("{full}: it is not asked or told of others"),
            );
            return None;
        };
        let Some(room) = self.sender.memory.room(bytes) else {
            let failure = "events take up all the memory that they may: it is not asked or told of others";
            self.report(event, EventFailure::Busy, &failure);
            return None;
        };
        Some((place, room))
    }

    /// Brings an event to the handler, in as many attempts as the settings allow.
    pub(super) async fn ask(&self, event: &Event<'_>, jars: &Jars) -> Result<Answer, Failure> {
        self.exchange(event, jars, &self.delays).await
    }

    /// Tells that a session has begun; it may have to wait for others of these.
    pub(super) async fn tell_connected(&self, event: &Event<'_>, jars: &Jars) {
        // It is never closed.
        let _turn = self.connected.acquire().await;
        match self.ask(event, jars).await {
            Ok(answer) if answer.status.is_success() => {}
            Ok(answer) => self.report(event.kind.name(), EventFailure::Status, &answer.status),
            Err(failure) => self.report(event.kind.name(), failure.cause(), &failure),
        }
    }

    /// Makes one attempt to tell that a session is over; it may have to wait for others of these. Tells whether no other
    /// is necessary.
    pub(super) async fn tell_disconnected(&self, event: &Event<'_>, jars: &Jars) -> bool {
        let _turn = self.disconnected.acquire().await;
        match self.exchange(event, jars, &[]).await {
            Ok(answer) if answer.status.is_success() => true,
            Ok(answer) => {
                self.report(event.kind.name(), EventFailure::Status, &answer.status);
                !may_change(answer.status)
            }
            Err(failure) => {
                self.report(event.kind.name(), failure.cause(), &failure);
                failure.is_final()
            }
        }
    }

    /// Logs that an event of this name failed; those that follow closely are not worth a warning each.
    pub(super) fn report(&self, event: &str, cause: EventFailure, failure: &dyn fmt::Display) {
        self.sender.counters.events_failed.count(cause);
        let (hub, handler) = (&self.hub, &self.settings.url_template);
        if self.failures.is_news(Instant::now()) {
            tracing::warn!(%hub, %handler, event, %failure, "an event handler fails");
        } else {
            tracing::debug!(%hub, %handler, event, %failure, "an event handler fails");
        }
    }

    /// Within the time for one event: waits for leave to send, sends it, and again after each of the delays as long as that
    /// may help.
    async fn exchange(&self, event: &Event<'_>, jars: &Jars, delays: &[Duration]) -> Result<Answer, Failure> {
        let uri = match &self.fixed {
            Some(uri) => uri.clone(),
            None => Uri::try_from(self.url.of_event(event.kind.name())).map_err(|_| Failure::BadUrl)?,
        };
        let owner = (event.hub.clone(), event.connection_id.clone());
        let send = || {
            let request = self.request(event, uri.clone(), jars.header(&owner, &uri));
            async {
                let begun = Instant::now();
                let outcome = self.client.send(request?, self.sender.memory.answer()).await;
                self.tell_call(event.kind.name(), begun, &outcome);
                outcome
            }
        };
        let whole = async {
            if let Some(gate) = &self.gate
                && !gate.is_open().await
            {
                return Err(Failure::NotAllowed);
            }
            Ok(decoded(attempts(delays, send).await?).await?)
        };
        let answer = tokio::time::timeout(self.timeout, whole)
            .await
            .map_err(|_| Failure::TimedOut(self.timeout))??;
        if answer.status.is_success() {
            jars.keep(&owner, &uri, &answer.headers);
        }
        Ok(answer)
    }

    fn tell_call(&self, event: &str, begun: Instant, outcome: &Result<Answer, ExchangeError>) {
        let (hub, handler) = (&self.hub, &self.settings.url_template);
        let elapsed_ms = begun.elapsed().as_millis() as u64;
        match outcome {
            Ok(answer) => {
                let status = answer.status.as_u16();
                tracing::debug!(%hub, %handler, event, status, elapsed_ms, "event handler called");
            }
            Err(error) => {
                tracing::debug!(%hub, %handler, event, %error, elapsed_ms, "event handler called");
            }
        }
    }

    fn request(
        &self,
        event: &Event<'_>,
        uri: Uri,
        cookie: Option<HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, BadHeader> {
        let mut headers = event.headers(&self.sender)?;
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(cookie) = cookie {
            headers.insert(COOKIE, cookie);
        }
        let mut request = Request::new(Full::new(event.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The token has been checked for what a header can't hold.
fn authorization(bearer_token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", bearer_token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Asks for leave to send, and logs why there is none.
fn gate(question: Question, sender: Arc<Sender>, hub: HubName, handler: String) -> Gate {
    let of = format!("hub {hub}, handler {handler}");
    let refusals = Episode::new("an event handler gives no leave to send it events", of);
    let asked = Arc::new((question, sender, hub, handler, refusals));
    Gate::new(move || {
        let asked = Arc::clone(&asked);
        async move {
            let (question, sender, hub, handler, refusals) = &*asked;
            let begun = Instant::now();
            let outcome = question.ask(sender).await;
            let elapsed_ms = begun.elapsed().as_millis() as u64;
            match &outcome {
                Ok(status) => {
                    let status = status.as_u16();
                    tracing::debug!(%hub, %handler, status, elapsed_ms, "event handler validated");
                }
                Err(refusal) if refusals.is_news(Instant::now()) => {
                    tracing::warn!(
                        %hub, %handler, %refusal, elapsed_ms, "an event handler gives no leave to send it events"
                    );
                }
                Err(refusal) => {
                    tracing::debug!(
                        %hub, %handler, %refusal, elapsed_ms, "an event handler gives no leave to send it events"
                    );
                }
            }
            outcome.is_ok()
        }
        .boxed()
    })
}

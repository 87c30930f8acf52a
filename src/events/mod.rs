//! The application's event handlers: HTTP endpoints that are asked and told about sessions (CloudEvents webhooks).
//!
//! Knows: which handler takes which event, what stands in requests and answers, how often and how long something is tried,
//! whether a handler wants events at all.
//!
//! Does not know: shards, sockets, records. What an event is about comes in with it, and what the handler makes of it goes
//! back; that it takes effect once is the core's business. A handler may get an event more than once, each time under the
//! same `ce-id`.
//!
//! | file | holds |
//! |---|---|
//! | `routes.rs` | which handler takes which event, at one moment |
//! | `handler.rs` | one handler: what may be under way to it, and how an event is brought to it |
//! | `validation.rs` | asking it whether it wants events |
//! | `attempts.rs` | trying again |
//! | `request.rs` | the headers of an event |
//! | `answer.rs` | the answer to a user event, and what is noted about a session |
//! | `connect.rs` | both for `connect` |
//! | `cookies.rs` | the cookies that handlers give to sessions |
//! | `client.rs` | connections, TLS, one exchange |
//! | `memory.rs` | how much memory all that is under way may take |
//! | `decoding.rs` | the content encoding of an answer |
//!
//! No log line and no error of this room holds the query of a handler's URL, a token, a payload, a cookie or a state.

mod answer;
mod attempts;
mod client;
mod connect;
mod cookies;
mod decoding;
mod handler;
mod memory;
mod request;
mod routes;
#[cfg(test)]
mod tests;
mod validation;

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::log::{Disconnected, EventId};
use oncewire_protocol::wire::HubName;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::auth::AccessKeys;
use crate::config::{Config, SystemEvent};
use crate::engine::{
    self, Accepted, ConnectRefused, Connected, Connecting, EventError, EventHandlers, Handled, UserEvent,
};
use crate::telemetry::{Counters, Episodes, EventFailure};
use attempts::may_change;
pub use client::ClientError;
use cookies::Jars;
use handler::Handler;
use memory::EventMemory;
use request::{Event, Kind, Sender};
use routes::Routes;

/// Why the handlers that the configuration asks for can't be used. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The gateway's own host can't be told to handlers.
    #[error("public_urls: the host can't stand in a header")]
    BadOrigin,
    /// A section names no hub.
    #[error("hubs.{hub:?} names no hub")]
    BadHub {
        /// The hub.
        hub: String,
    },
    /// No URL can be made of a template.
    #[error("{key}.url_template: no URL can be made of it")]
    BadUrl {
        /// The handler's section.
        key: String,
    },
    /// A handler can't be spoken to.
    #[error("{key}: {source}")]
    Client {
        /// The handler's section.
        key: String,
        /// Why not.
        source: ClientError,
    },
}

/// The event handlers of all hubs. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    sender: Arc<Sender>,
    routes: RwLock<Arc<Routes>>,
    /// Held while the routes are replaced.
    replacing: Mutex<()>,
    changes: watch::Sender<u64>,
    jars: Jars,
    counters: Arc<Counters>,
    /// Of events that no handler takes, by their hub.
    untaken: Episodes<HubName>,
}

/// Why no handler takes a user event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untaken {
    NoHandlers,
    NoPattern,
}

impl fmt::Display for Untaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHandlers => "the configuration has no event handler for a hub of this name",
            Self::NoPattern => "the user_event_pattern of no event handler of the hub takes it",
        })
    }
}

impl Events {
    /// The handlers that the configuration asks for. None of them is spoken to before it has an event to take.
    ///
    /// # Errors
    /// When one of them can't be used.
    pub fn new(
        config: &Config,
        access_keys: AccessKeys,
        counters: Arc<Counters>,
    ) -> Result<Self, EventsError> {
        let origin = HeaderValue::try_from(config.public_host()).map_err(|_| EventsError::BadOrigin)?;
        let memory = EventMemory::new(config.message_memory_bytes_max);
        let sender = Arc::new(Sender { origin, access_keys, counters: Arc::clone(&counters), memory });
        let routes = Routes::build(config, &sender, &Routes::default())?;
        Ok(Self(Arc::new(Shared {
            sender,
            routes: RwLock::new(Arc::new(routes)),
            replacing: Mutex::new(()),
            changes: watch::Sender::new(0),
            jars: Jars::default(),
            counters,
            untaken: Episodes::new("events that no event handler takes"),
        })))
    }

    /// From now on the handlers of this configuration are used; everything else in it is passed over. An event that is
    /// under way stays with its handler; the end of a session that could not be told yet is told to the new one, if there
    /// is one. Tells whether anything is different.
    ///
    /// # Errors
    /// When one of them can't be used: then those before stay.
    pub fn replace(&self, config: &Config) -> Result<bool, EventsError> {
        let _one_at_a_time = self.0.replacing.lock();
        let before = self.0.routes();
        let routes = Routes::build(config, &self.0.sender, &before)?;
        if routes.is_same(&before) {
            return Ok(false);
        }
        *self.0.routes.write() = Arc::new(routes);
        self.0.changes.send_modify(|number| *number += 1);
        Ok(true)
    }
}

impl EventHandlers for Events {
    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn takes_connect(&self, hub: &HubName) -> bool {
        self.0.routes().system_event(hub, SystemEvent::Connect).is_some()
    }

    fn takes_disconnected(&self, hub: &HubName) -> bool {
        self.0.routes().system_event(hub, SystemEvent::Disconnected).is_some()
    }

    fn connect(&self, connecting: Connecting) -> BoxFuture<'static, Result<Accepted, ConnectRefused>> {
        let Some(handler) = self.0.system_event(&connecting.hub, SystemEvent::Connect) else {
            let Connecting { user_id, roles, groups, .. } = connecting;
            return ready(Ok(Accepted { user_id, roles, groups, subprotocol: None, state: None })).boxed();
        };
        let Some(place) = handler.place(SystemEvent::Connect.name(), connecting.bytes()) else {
            return ready(Err(ConnectRefused::Busy)).boxed();
        };
        let shared = Arc::clone(&self.0);
        async move {
            let _place = place;
            shared.connect(&handler, connecting).await
        }
        .boxed()
    }

    fn connected(&self, hub: &HubName, connected: Connected) {
        let Some(handler) = self.0.system_event(hub, SystemEvent::Connected) else { return };
        let Some(place) = handler.place_to_tell_connected(connected.subject.bytes()) else { return };
        let (shared, hub) = (Arc::clone(&self.0), hub.clone());
        tokio::spawn(async move {
            let _place = place;
            let Connected { subject, id, time } = &connected;
            let body = (request::JSON, Bytes::from_static(b"{}"));
            let kind = Kind::System(SystemEvent::Connected);
            let event = Event::of_session(kind, &hub, subject, (*id, *time), body);
            handler.tell_connected(&event, &shared.jars).await;
        });
    }

    fn user_event(&self, hub: &HubName, event: UserEvent) -> BoxFuture<'static, Result<Handled, EventError>> {
        let Some(handler) = self.0.routes().user_event(hub, event.event.as_str()).map(Arc::clone) else {
            self.0.report_untaken(hub, event.event.as_str());
            return ready(Err(EventError::NoHandler)).boxed();
        };
        let bytes = event.subject.bytes() + event.payload.bytes.len() + event.metadata.bytes();
        let Some(place) = handler.place(event.event.as_str(), bytes) else {
            return ready(Err(EventError::Busy)).boxed();
        };
        let (shared, hub) = (Arc::clone(&self.0), hub.clone());
        async move {
            let _place = place;
            shared.user_event(&handler, &hub, event).await
        }
        .boxed()
    }

    fn disconnected(&self, hub: &HubName, disconnected: Disconnected) -> BoxFuture<'static, bool> {
        let (shared, hub) = (Arc::clone(&self.0), hub.clone());
        async move {
            let is_told = shared.tell_disconnected(&hub, &disconnected).await;
            if is_told {
                shared.jars.forget(&(hub, disconnected.subject.identity.connection_id));
            }
            is_told
        }
        .boxed()
    }
}

impl Shared {
    fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read())
    }

    fn system_event(&self, hub: &HubName, event: SystemEvent) -> Option<Arc<Handler>> {
        self.routes().system_event(hub, event).map(Arc::clone)
    }

    async fn connect(&self, handler: &Handler, connecting: Connecting) -> Result<Accepted, ConnectRefused> {
        let report = |cause, failure: &dyn fmt::Display| {
            handler.report(SystemEvent::Connect.name(), cause, failure);
            ConnectRefused::Failed
        };
        let event = Event {
            kind: Kind::System(SystemEvent::Connect),
            hub: &connecting.hub,
            connection_id: &connecting.connection_id,
            user_id: connecting.user_id.as_ref(),
            subprotocol: None,
            state: None,
            id: EventId::CONNECT,
            time: engine::wall_clock(),
            content_type: request::JSON,
            metadata: None,
            body: connect::body(&connecting).map_err(|error| report(EventFailure::Unsendable, &error))?,
        };
        let answer = handler.ask(&event, &self.jars).await;
        let answer = answer.map_err(|failure| report(failure.cause(), &failure))?;
        let status = answer.status;
        if status.is_success() {
            let accepted = connect::accepted(connecting, &answer);
            return accepted.map_err(|bad| report(EventFailure::BadAnswer, &bad));
        }
        let failed = report_status(status).map(|failure| report(EventFailure::Status, &failure));
        if may_change(status) {
            return Err(ConnectRefused::FailedWith(status.as_u16()));
        }
        if status.is_client_error() {
            return Err(ConnectRefused::ByHandler(status.as_u16()));
        }
        Err(failed.unwrap_or(ConnectRefused::Failed))
    }

    /// That nobody takes an event is a fault of the configuration or of the client, and told as such.
    fn report_untaken(&self, hub: &HubName, event: &str) {
        self.counters.events_failed.count(EventFailure::NoHandler);
        let reason = if self.routes().has_handlers(hub) { Untaken::NoPattern } else { Untaken::NoHandlers };
        if self.untaken.is_news(hub, Instant::now()) {
            tracing::warn!(%hub, event, %reason, "no event handler takes an event");
        } else {
            tracing::debug!(%hub, event, %reason, "no event handler takes an event");
        }
    }

    async fn user_event(
        &self,
        handler: &Handler,
        hub: &HubName,
        event: UserEvent,
    ) -> Result<Handled, EventError> {
        let UserEvent { subject, id, time, event: name, payload, metadata } = &event;
        let failed = |cause, failure: &dyn fmt::Display| {
            handler.report(name.as_str(), cause, failure);
            EventError::Failed
        };
        let body = (request::content_type(payload.kind), payload.bytes.clone());
        let mut event = Event::of_session(Kind::User(name), hub, subject, (*id, *time), body);
        event.metadata = Some(metadata);
        let answer = handler.ask(&event, &self.jars).await;
        let answer = answer.map_err(|failure| failed(failure.cause(), &failure))?;
        if !answer.status.is_success() {
            return Err(failed(EventFailure::Status, &answer.status));
        }
        answer::handled(answer).map_err(|bad| failed(EventFailure::BadAnswer, &bad))
    }

    /// To the handler of the moment; without one there is nothing left to tell.
    async fn tell_disconnected(&self, hub: &HubName, disconnected: &Disconnected) -> bool {
        let Some(handler) = self.system_event(hub, SystemEvent::Disconnected) else { return true };
        let Disconnected { subject, time, reason, .. } = disconnected;
        let body = serde_json::json!({ "reason": reason }).to_string();
        let body = (request::JSON, Bytes::from(body));
        let kind = Kind::System(SystemEvent::Disconnected);
        let event = Event::of_session(kind, hub, subject, (disconnected.id(), *time), body);
        handler.tell_disconnected(&event, &self.jars).await
    }
}

/// A status of `connect` that tells of a fault rather than of a decision: the handler failed, or there is none at its URL.
fn report_status(status: StatusCode) -> Option<StatusCode> {
    let is_decision = status.is_client_error()
        && ![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::REQUEST_TIMEOUT]
            .contains(&status);
    Some(status).filter(|_| !is_decision)
}

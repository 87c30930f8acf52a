//! Begins sessions: with the application's leave, where it has a `connect` handler.
//!
//! ```text
//! a place, the hub --(handler asked)--> what the session begins as --> opened in the hub
//! ```
//! Whoever waits for the handler holds nobody else up: how many there may be, and for how long, is the handler's own
//! affair, so neither the places of connections on their way to an upgrade nor the time limit of a handshake count.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request;
use oncewire_protocol::hub::OpenError;
use oncewire_protocol::log::{Disconnected, EventSubject, HandlerState, SessionIdentity};
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{ConnectionId, HubName, ReconnectionToken, Subprotocol};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Shared;
use super::all_sockets::Place;
use super::connect_event::{NotOffered, choose, describe};
use super::upgrade_request::{Begin, Refusal, Selected, offer};
use crate::engine::{self, Accepted, AttachedSocket, ConnectRefused, HubUnavailable, NewSession};

/// Handlers that are being told at once of sessions which they accepted and which never began; beyond it they are not
/// told.
pub(super) const FAREWELLS_MAX: usize = 256;
/// How long a handler may still say about a client that has left meanwhile whether it would have been let in. It takes a place
/// of those who wait as long.
const ANSWER_WITHOUT_CLIENT_MAX: Duration = Duration::from_secs(5);
/// How long that is tried. Nothing is kept for later: as there is no session, there is no record of it.
const FAREWELL_WAIT: Duration = Duration::from_secs(60);
/// How long after an attempt the next one is made.
const FAREWELL_PAUSE: Duration = Duration::from_secs(3);
/// The number that `disconnected` has then: `connect` has 0, and nothing else happened.
const FAREWELL_NUMBER: u64 = 1;

/// A socket that the engine has attached and that is still to be upgraded.
pub(super) struct Attached {
    pub hub: HubName,
    pub connection_id: ConnectionId,
    pub selected: Selected,
    /// Where the client's frames go, if it is raw and publishes.
    pub publishes_to: Option<RawTarget>,
    pub socket: AttachedSocket,
    pub place: Place,
}

/// A client that would begin a session, with all that it takes but the handler's leave.
pub(super) struct Newcomer {
    shared: Arc<Shared>,
    begin: Begin,
    connection_id: ConnectionId,
    selected: Selected,
    place: Place,
    acceptance: Option<Acceptance>,
}

/// That a handler has accepted a session.
struct Acceptance {
    state: Option<HandlerState>,
    /// It replaced the token's groups.
    has_own_groups: bool,
    farewell: Farewell,
}

impl Newcomer {
    pub(super) async fn new(shared: &Arc<Shared>, begin: Begin, selected: Selected) -> Result<Self, Refusal> {
        let place = shared.sockets.reserve().ok_or(Refusal::Full)?;
        // The hub comes into being with the session: who is refused leaves none behind.
        shared.edge.engine.admits(&begin.hub).await?;
        let connection_id =
            ConnectionId::new(Uuid::new_v4().simple().encode_lower(&mut Uuid::encode_buffer()));
        let shared = Arc::clone(shared);
        Ok(Self { shared, begin, connection_id, selected, place, acceptance: None })
    }

    /// Whether there is a handler to be asked.
    pub(super) fn needs_leave(&self) -> bool {
        self.shared.edge.engine.event_handlers().takes_connect(&self.begin.hub)
    }

    /// Asks the handler for leave, and takes on what it says the session begins as.
    pub(super) async fn ask(self, request: &request::Parts) -> Result<Self, Refusal> {
        let shared = Arc::clone(&self.shared);
        let connecting = describe(request, &self.begin, self.connection_id.clone());
        let call = shared.edge.engine.event_handlers().connect(connecting);
        let offer = offer(&request.headers);
        let is_stopping = shared.is_stopping.clone();
        let client_leaves = CancellationToken::new();
        let client_left = client_leaves.clone();
        let _client = client_leaves.drop_guard();
        // A task of its own: a client that leaves meanwhile may be accepted all the same, which is owed a farewell.
        let asking = shared.tasks.spawn(async move {
            let nobody_waits = async {
                client_left.cancelled().await;
                tokio::time::sleep(ANSWER_WITHOUT_CLIENT_MAX).await;
            };
            tokio::select! {
                answer = call => self.accepted(answer?, &offer),
                () = is_stopping.cancelled() => Err(Refusal::Unavailable),
                () = nobody_waits => Err(Refusal::HandlerFailed),
            }
        });
        asking.await.unwrap_or(Err(Refusal::HandlerFailed))
    }

    fn accepted(mut self, accepted: Accepted, offer: &str) -> Result<Self, Refusal> {
        let Accepted { user_id, roles, groups, subprotocol, state } = accepted;
        if let Some(name) = subprotocol.filter(|name| !name.is_empty()) {
            self.selected = choose(&name, offer).map_err(|NotOffered| {
                self.shared.refusals.tell_subprotocol(&self.begin.hub);
                Refusal::HandlerFailed
            })?;
        }
        let has_own_groups = groups != self.begin.groups;
        self.begin = Begin { user_id, roles, groups, ..self.begin };
        let subject = EventSubject {
            identity: SessionIdentity {
                connection_id: self.connection_id.clone(),
                user_id: self.begin.user_id.clone(),
                subprotocol: self.selected.subprotocol,
                custom_subprotocol: self.selected.custom(),
            },
            state: state.clone(),
        };
        let farewell = Farewell::new(&self.shared, &self.begin.hub, subject);
        self.acceptance = Some(Acceptance { state, has_own_groups, farewell });
        Ok(self)
    }

    /// Begins the session. Returns when it is in the log.
    pub(super) async fn open(self) -> Result<Attached, Refusal> {
        let Self { shared, begin, connection_id, selected, place, acceptance } = self;
        let Begin { hub, user_id, roles, groups, publishes_to } = begin;
        let has_own_groups = acceptance.as_ref().is_some_and(|acceptance| acceptance.has_own_groups);
        let too_many_groups = if has_own_groups { Refusal::HandlerFailed } else { Refusal::TooManyGroups };
        if !shared.edge.engine.takes_groups(&groups) {
            return Err(too_many_groups);
        }
        let handle = shared.edge.engine.hub_to_join(&hub).await?;
        let reconnection_token = selected.subprotocol.is_reliable().then(|| {
            let token = shared.edge.reconnection_tokens.issue(
                hub.as_str(),
                connection_id.as_str(),
                handle.epoch().0,
                engine::wall_clock().unix_seconds(),
            );
            ReconnectionToken(token)
        });
        let new = NewSession {
            identity: SessionIdentity {
                connection_id: connection_id.clone(),
                user_id,
                subprotocol: selected.subprotocol,
                custom_subprotocol: selected.custom(),
            },
            roles,
            groups,
            reconnection_token,
            state: acceptance.as_ref().and_then(|acceptance| acceptance.state.clone()),
        };
        let opened = match acceptance {
            None => handle.open(new).await,
            Some(Acceptance { farewell, .. }) => {
                // A task of its own: a session that has been asked for has an end of its own, whoever waits for it.
                let opening = shared.tasks.spawn(async move {
                    let socket = handle.open(new).await?;
                    farewell.waive();
                    Ok(socket)
                });
                opening.await.unwrap_or(Err(OpenError::Unavailable))
            }
        };
        let socket = opened.map_err(|error| match error {
            OpenError::TooManyGroups => too_many_groups,
            OpenError::Full => Refusal::NoRoom,
            OpenError::Refused | OpenError::TooEarly { .. } | OpenError::Unavailable => Refusal::Unavailable,
        })?;
        let publishes_to = publishes_to.filter(|_| selected.subprotocol == Subprotocol::Raw);
        Ok(Attached { hub, connection_id, selected, publishes_to, socket, place })
    }
}

/// Owed to a handler that has accepted a session: when it is dropped, the handler is told that the session is over.
struct Farewell(Option<(Arc<Shared>, HubName, EventSubject)>);

impl Farewell {
    fn new(shared: &Arc<Shared>, hub: &HubName, subject: EventSubject) -> Self {
        Self(Some((Arc::clone(shared), hub.clone(), subject)))
    }

    /// The session has begun, and its own end is told.
    fn waive(mut self) {
        self.0 = None;
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let Some((shared, hub, subject)) = self.0.take() else { return };
        let Ok(permit) = Arc::clone(&shared.farewells).try_acquire_owned() else {
            return shared.refusals.tell_no_farewell(&hub);
        };
        if shared.is_stopping.is_cancelled() {
            return;
        }
        let reason = "The session could not be opened.".to_owned();
        let disconnected =
            Disconnected { subject, number: FAREWELL_NUMBER, time: engine::wall_clock(), reason };
        let handlers = Arc::clone(shared.edge.engine.event_handlers());
        let telling = async move {
            while !handlers.disconnected(&hub, disconnected.clone()).await {
                tokio::time::sleep(FAREWELL_PAUSE).await;
            }
        };
        let is_stopping = shared.is_stopping.clone();
        shared.tasks.spawn(async move {
            // Told or not: nothing more can be done.
            let _ = is_stopping.run_until_cancelled(timeout(FAREWELL_WAIT, telling)).await;
            drop(permit);
        });
    }
}

impl From<HubUnavailable> for Refusal {
    fn from(error: HubUnavailable) -> Self {
        match error {
            HubUnavailable::TooMany(_) => Self::TooManyHubs,
            _ => Self::Unavailable,
        }
    }
}

impl From<ConnectRefused> for Refusal {
    fn from(refused: ConnectRefused) -> Self {
        match refused {
            ConnectRefused::ByHandler(status) => Self::ByHandler(status),
            ConnectRefused::Failed => Self::HandlerFailed,
            ConnectRefused::FailedWith(status) => Self::HandlerFailedWith(status),
            ConnectRefused::Busy => Self::HandlerBusy,
        }
    }
}

#[cfg(test)]
#[path = "new_session_tests.rs"]
mod tests;

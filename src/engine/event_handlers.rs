//! What the rest of the gateway needs of the application's event handlers; room `events` has the real ones.

use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::hub::{Connected, EventError, Handled, UserEvent};
use oncewire_protocol::log::{Disconnected, HandlerState};
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName, UserId};
use tokio::sync::watch;

/// The application, as sessions see it. Hubs are looked up in the configuration of the moment.
pub trait EventHandlers: Send + Sync + 'static {
    /// Changes when another configuration holds.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether a handler of the hub takes `connect` events.
    fn takes_connect(&self, hub: &HubName) -> bool;

    /// Whether a handler of the hub takes `disconnected` events.
    fn takes_disconnected(&self, hub: &HubName) -> bool;

    /// Asks whether a session may begin, and as what. Without a handler it may, as it is.
    fn connect(&self, connecting: Connecting) -> BoxFuture<'static, Result<Accepted, ConnectRefused>>;

    /// Tells that a session has begun. Returns at once; whether it arrives is not known.
    fn connected(&self, hub: &HubName, connected: Connected);

    /// Has a user event handled.
    fn user_event(&self, hub: &HubName, event: UserEvent) -> BoxFuture<'static, Result<Handled, EventError>>;

    /// Makes an attempt to tell that a session is over. False if it has to be made again.
    fn disconnected(&self, hub: &HubName, disconnected: Disconnected) -> BoxFuture<'static, bool>;
}

/// A client that would begin a session. Its access token has been verified.
#[derive(Debug, Clone)]
pub struct Connecting {
    /// The hub.
    pub hub: HubName,
    /// The session's name to be.
    pub connection_id: ConnectionId,
    /// The token's user.
    pub user_id: Option<UserId>,
    /// The token's roles.
    pub roles: Vec<String>,
    /// The token's groups.
    pub groups: Vec<GroupName>,
    /// The token's claims, each with all its values as text.
    pub claims: Vec<(String, Vec<String>)>,
    /// The query of the upgrade request, without the access token.
    pub query: Vec<(String, Vec<String>)>,
    /// The headers of the upgrade request, without `Authorization`.
    pub headers: Vec<(String, Vec<String>)>,
    /// What the client offers, in its order.
    pub subprotocols: Vec<String>,
}

impl Connecting {
    /// What is in it, in bytes.
    pub fn bytes(&self) -> usize {
        let Self { hub, connection_id, user_id, roles, groups, claims, query, headers, subprotocols } = self;
        let named = claims.iter().chain(query).chain(headers);
        let texts = named.flat_map(|(name, values)| [name].into_iter().chain(values));
        let texts = texts.chain(roles).chain(subprotocols).map(String::len);
        let names = [hub.as_str(), connection_id.as_str(), user_id.as_ref().map_or("", |user| user.as_str())];
        let names = names.into_iter().chain(groups.iter().map(|group| group.as_str()));
        texts.chain(names.map(str::len)).sum()
    }
}

/// As what a session begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Whom it acts for.
    pub user_id: Option<UserId>,
    /// Its roles.
    pub roles: Vec<String>,
    /// Groups to be in from the start.
    pub groups: Vec<GroupName>,
    /// The subprotocol that the handler chose, if it did.
    pub subprotocol: Option<String>,
    /// What the handler has noted.
    pub state: Option<HandlerState>,
}

/// Why a session may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectRefused {
    /// The handler says so; its client is answered with the same HTTP status.
    #[error("the event handler refused the connection with status {0}")]
    ByHandler(u16),
    /// The handler could not be asked, or gave no valid answer.
    #[error("the event handler gave no valid answer")]
    Failed,
    /// It failed by itself, and its client is answered with the same HTTP status.
    #[error("the event handler failed with status {0}")]
    FailedWith(u16),
    /// It has as many events under way as it may have.
    #[error("the event handler is busy")]
    Busy,
}

/// For a gateway whose application has no event handlers.
pub struct NoEventHandlers(watch::Sender<u64>);

impl Default for NoEventHandlers {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl EventHandlers for NoEventHandlers {
    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    fn takes_connect(&self, _: &HubName) -> bool {
        false
    }

    fn takes_disconnected(&self, _: &HubName) -> bool {
        false
    }

    fn connect(&self, connecting: Connecting) -> BoxFuture<'static, Result<Accepted, ConnectRefused>> {
        let Connecting { user_id, roles, groups, .. } = connecting;
        std::future::ready(Ok(Accepted { user_id, roles, groups, subprotocol: None, state: None })).boxed()
    }

    fn connected(&self, _: &HubName, _: Connected) {}

    fn user_event(&self, _: &HubName, _: UserEvent) -> BoxFuture<'static, Result<Handled, EventError>> {
        std::future::ready(Err(EventError::NoHandler)).boxed()
    }

    fn disconnected(&self, _: &HubName, _: Disconnected) -> BoxFuture<'static, bool> {
        std::future::ready(true).boxed()
    }
}

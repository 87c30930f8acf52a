//! The settings that may differ between hubs.

use serde::Deserialize;

use super::event_handlers::{EventFailure, EventHandler};
use super::{Config, Durability, Idempotency, Store};

/// What `[hubs."name"]` sets. What it leaves out is taken from the general key of the same name in [`Config`], which
/// also documents it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HubOverrides {
    /// Whether clients may connect without an access token; they then have no user, no role and no group. Default
    /// `false`. A bad token is refused either way. Danger: whoever reaches the gateway can connect to this hub.
    pub anonymous: bool,
    /// What becomes of a session when its user event was not handled: `ack` (the client is told in the acknowledgement; a
    /// raw client, which has none, is closed with 1011) or `close` (any client is closed with 1011). Default `ack`.
    /// Danger: with `close` an event handler that is down costs every client that sends an event its session.
    pub on_event_failure: EventFailure,
    /// The application's event handlers, `[[hubs."name".event_handlers]]` in the file. Default none. Each event goes to the
    /// first that takes it, in the file's order. They alone, of all settings, are read again when the file changes: an
    /// event under way stays with the handler that it began with.
    pub event_handlers: Vec<EventHandler>,
    /// See [`Config::durability`].
    pub durability: Option<Durability>,
    /// See [`Config::session_retention_seconds`].
    pub session_retention_seconds: Option<u64>,
    /// See [`Config::outbox_messages_max`].
    pub outbox_messages_max: Option<usize>,
    /// See [`Config::outbox_bytes_max`].
    pub outbox_bytes_max: Option<usize>,
    /// See [`Config::ack_window_ids`].
    pub ack_window_ids: Option<usize>,
    /// See [`Config::websocket_ping_seconds`].
    pub websocket_ping_seconds: Option<u64>,
    /// See [`Config::idempotency`].
    pub idempotency: Option<Idempotency>,
    /// See [`Config::idempotency_window_seconds`].
    pub idempotency_window_seconds: Option<u64>,
    /// See [`Config::idempotency_requests_max`].
    pub idempotency_requests_max: Option<usize>,
}

/// The settings of one hub, resolved. [`Config`] and [`HubOverrides`] document the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubSettings {
    /// Whether clients may connect without an access token.
    pub anonymous: bool,
    /// What becomes of a session whose user event was not handled.
    pub on_event_failure: EventFailure,
    /// What an acknowledgement is worth.
    pub durability: Durability,
    /// How long a session without a socket waits for its client, in seconds.
    pub session_retention_seconds: u64,
    /// How many unacknowledged messages a session may hold.
    pub outbox_messages_max: usize,
    /// How many bytes of unacknowledged messages a session may hold.
    pub outbox_bytes_max: usize,
    /// How many executed ack ids a session remembers.
    pub ack_window_ids: usize,
    /// How often a WebSocket ping is sent, in seconds.
    pub websocket_ping_seconds: u64,
    /// Which repeated requests of the REST API are not executed again.
    pub idempotency: Idempotency,
    /// How long such requests are remembered, in seconds.
    pub idempotency_window_seconds: u64,
    /// How many of them are remembered.
    pub idempotency_requests_max: usize,
}

impl HubSettings {
    pub(super) fn resolve(config: &Config, own: Option<&HubOverrides>) -> Self {
        let none = HubOverrides::default();
        let own = own.unwrap_or(&none);
        let durability = match config.store {
            Store::Memory => Durability::Memory,
            Store::Disk => own.durability.or(config.durability).unwrap_or(Durability::Sync),
        };
        Self {
            anonymous: own.anonymous,
            on_event_failure: own.on_event_failure,
            durability,
            session_retention_seconds: own
                .session_retention_seconds
                .unwrap_or(config.session_retention_seconds),
            outbox_messages_max: own.outbox_messages_max.unwrap_or(config.outbox_messages_max),
            outbox_bytes_max: own.outbox_bytes_max.unwrap_or(config.outbox_bytes_max),
            ack_window_ids: own.ack_window_ids.unwrap_or(config.ack_window_ids),
            websocket_ping_seconds: own.websocket_ping_seconds.unwrap_or(config.websocket_ping_seconds),
            idempotency: own.idempotency.unwrap_or(config.idempotency),
            idempotency_window_seconds: own
                .idempotency_window_seconds
                .unwrap_or(config.idempotency_window_seconds),
            idempotency_requests_max: own.idempotency_requests_max.unwrap_or(config.idempotency_requests_max),
        }
    }
}

//! The settings that may differ between hubs.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::event_handlers::{EventFailure, EventHandler};
use super::{Config, Durability, Idempotency, Store};

const GIB: u64 = 1024 * 1024 * 1024;

/// Makes the types of a hub's settings, and lays a hub's own over the general ones. Each setting is named here once, with the
/// range of a number; [`Config`] has its general key, its documentation and its default.
macro_rules! hub_settings {
    ($config:ident; $($(#[$doc:meta])* $name:ident: $type:ty $(, within $range:expr)?;)*) => {
        /// What `[hubs."name"]` sets. What it leaves out is taken from the general key of the same name in [`Config`], which
        /// also documents it.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct HubOverrides {
            /// Whether clients may connect without an access token; they then have no user, no role and no group. Default
            /// `false`. A bad token is refused either way. Danger: whoever reaches the gateway can connect to this hub.
            pub anonymous: bool,
            /// What becomes of a session when its user event was not handled: `ack` (the client is told in the
            /// acknowledgement; a raw client, which has none, is closed with 1011) or `close` (any client is closed with
            /// 1011). Default `ack`. Danger: with `close` an event handler that is down costs every client that sends an
            /// event its session.
            pub on_event_failure: EventFailure,
            /// The application's event handlers, `[[hubs."name".event_handlers]]` in the file. Default none. Each event goes
            /// to the first that takes it, in the file's order. They alone, of all settings, are read again when the file
            /// changes: an event under way stays with the handler that it began with.
            pub event_handlers: Vec<EventHandler>,
            /// See [`Config::durability`].
            pub durability: Option<Durability>,
            $(#[doc = concat!("See [`Config::", stringify!($name), "`].")] pub $name: Option<$type>,)*
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
            $($(#[$doc])* pub $name: $type,)*
        }

        impl HubOverrides {
            /// The general keys, as those of a hub.
            pub(super) fn general(config: &Config) -> Self {
                Self { durability: config.durability, $($name: Some(config.$name),)* ..Self::default() }
            }

            /// Every number that is set, with its key and its range.
            pub(super) fn numbers(&self, prefix: &str, $config: &Config) -> Vec<(String, u64, RangeInclusive<u64>)> {
                let mut numbers = Vec::new();
                $($(
                    let key = || format!("{prefix}{}", stringify!($name));
                    numbers.extend(self.$name.map(|value| (key(), value as u64, $range)));
                )?)*
                numbers
            }
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
                    $($name: own.$name.unwrap_or(config.$name),)*
                }
            }
        }
    };
}

hub_settings! {
    config;
    /// How long a session without a socket waits for its client, in seconds.
    session_retention_seconds: u64, within 1..=604_800;
    /// How many unacknowledged messages a session may hold.
    outbox_messages_max: usize, within 1..=1_000_000;
    /// How many bytes of unacknowledged messages a session may hold.
    outbox_bytes_max: usize, within 1..=GIB;
    /// How many executed ack ids a session remembers. A request that waits behind its original must still find it.
    ack_window_ids: usize, within config.pending_requests_max as u64..=1_000_000;
    /// How often a WebSocket ping is sent, in seconds.
    websocket_ping_seconds: u64, within 1..=120;
    /// Which repeated requests of the REST API are not executed again.
    idempotency: Idempotency;
    /// How long such requests are remembered, in seconds.
    idempotency_window_seconds: u64, within 60..=604_800;
    /// How many of them are remembered.
    idempotency_requests_max: usize, within 1..=1_000_000;
}

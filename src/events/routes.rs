//! Which handler takes which event: the configuration of one moment.

use std::collections::HashMap;
use std::sync::Arc;

use oncewire_protocol::wire::HubName;

use super::EventsError;
use super::client::Clients;
use super::handler::Handler;
use super::request::Sender;
use crate::config::{Config, EventHandler, SystemEvent};

/// The handlers of all hubs, in their order. It never changes: another configuration makes others.
#[derive(Default)]
pub(super) struct Routes(HashMap<HubName, Vec<Arc<Handler>>>);

impl Routes {
    /// What the configuration asks for. A handler whose settings were the same `before` is the same, with what is under way
    /// to it and what it has been asked.
    pub(super) fn build(config: &Config, sender: &Arc<Sender>, before: &Self) -> Result<Self, EventsError> {
        let mut clients = Clients::default();
        let mut hubs = HashMap::new();
        for (name, own) in &config.hubs {
            let hub = HubName::new(name).map_err(|_| EventsError::BadHub { hub: name.clone() })?;
            let mut handlers = Vec::new();
            for (index, settings) in own.event_handlers.iter().enumerate() {
                let handler = match before.with_settings(&hub, settings) {
                    Some(handler) => Arc::clone(handler),
                    None => {
                        let key = format!("hubs.{name:?}.event_handlers[{index}]");
                        Arc::new(Handler::new(settings, &hub, &key, sender, &mut clients)?)
                    }
                };
                handlers.push(handler);
            }
            if !handlers.is_empty() {
                hubs.insert(hub, handlers);
            }
        }
        Ok(Self(hubs))
    }

    /// Whether these are the same handlers in the same order.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().all(|(hub, handlers)| {
                let others = other.of(hub);
                handlers.len() == others.len()
                    && handlers.iter().zip(others).all(|(one, other)| Arc::ptr_eq(one, other))
            })
    }

    /// The handler for a user event of this name.
    pub(super) fn user_event(&self, hub: &HubName, name: &str) -> Option<&Arc<Handler>> {
        self.of(hub).iter().find(|handler| handler.takes_user_event(name))
    }

    /// The handler for this event of sessions.
    pub(super) fn system_event(&self, hub: &HubName, event: SystemEvent) -> Option<&Arc<Handler>> {
        self.of(hub).iter().find(|handler| handler.takes_system_event(event))
    }

    /// Whether there is any handler of the hub.
    pub(super) fn has_handlers(&self, hub: &HubName) -> bool {
        !self.of(hub).is_empty()
    }

    fn of(&self, hub: &HubName) -> &[Arc<Handler>] {
        self.0.get(hub).map_or(&[], Vec::as_slice)
    }

    fn with_settings(&self, hub: &HubName, settings: &EventHandler) -> Option<&Arc<Handler>> {
        self.of(hub).iter().find(|handler| handler.has_settings(settings))
    }
}

//! The messages that a record makes. Each is a function of its record alone, so that it can be made again: a time-to-live
//! counts from the record's own time.

use std::sync::Arc;

use crate::log::{Audience, Body, HandlerReply, MessageRef, Published, Record, Sent, Time};
use crate::session::{MemoryBudget, SharedMessage};
use crate::wire::{GroupName, Message, Sender};

/// The message of a publish to one of its groups.
pub(super) fn message_for(
    name: MessageRef,
    group: &GroupName,
    time: Time,
    published: &Published,
    budget: &Arc<MemoryBudget>,
) -> Arc<SharedMessage> {
    let message = Message {
        sender: Sender::Group { group: group.clone(), user_id: published.user_id.clone() },
        payload: published.payload.clone(),
        metadata: published.metadata.clone(),
    };
    SharedMessage::new(name, message, expiry(time, published.ttl_seconds), budget)
}

/// The message of the application.
pub(super) fn message_sent(
    name: MessageRef,
    time: Time,
    sent: &Sent,
    budget: &Arc<MemoryBudget>,
) -> Arc<SharedMessage> {
    let sender = match &sent.selection.audience {
        Audience::Group(group) => Sender::Group { group: group.clone(), user_id: None },
        Audience::All | Audience::User(_) | Audience::Connection(_) => Sender::Server,
    };
    let message = Message { sender, payload: sent.payload.clone(), metadata: sent.metadata.clone() };
    SharedMessage::new(name, message, expiry(time, sent.ttl_seconds), budget)
}

pub(super) fn message_replied(
    name: MessageRef,
    reply: &HandlerReply,
    budget: &Arc<MemoryBudget>,
) -> Arc<SharedMessage> {
    let HandlerReply { payload, metadata } = reply.clone();
    SharedMessage::new(name, Message { sender: Sender::Server, payload, metadata }, None, budget)
}

fn expiry(time: Time, ttl_seconds: u16) -> Option<Time> {
    (ttl_seconds > 0).then(|| time.plus_seconds(u64::from(ttl_seconds)))
}

/// The message that a checkpoint names, made from its record again; none if it is no message of this record.
pub(super) fn message_of(
    name: MessageRef,
    record: &Record,
    budget: &Arc<MemoryBudget>,
) -> Option<Arc<SharedMessage>> {
    match &record.body {
        Body::Published(published) => {
            let group = published.groups.get(name.part as usize)?;
            Some(message_for(name, group, record.time, published, budget))
        }
        Body::Sent(sent) if name.part == 0 => Some(message_sent(name, record.time, sent, budget)),
        Body::Handled { reply: Some(reply), .. } if name.part == 0 => {
            Some(message_replied(name, reply, budget))
        }
        _ => None,
    }
}

//! What a record takes, in the log and in memory.

use super::{
    Audience, Body, HandlerReply, HandlerState, Opened, Published, Record, Selection, Sent, SessionIdentity,
};
use crate::wire::{ConnectionId, GroupName, Metadata, Payload, allocated};

/// What a record takes in the log beside what is in it, in bytes: key, time and the fields of fixed size.
const ENCODED_RECORD_BYTES: usize = 64;
/// What a text or payload takes in the log beside itself, in bytes: its field and its length.
const ENCODED_PART_BYTES: usize = 4;
/// What an entry of metadata takes in the log beside key and value, in bytes.
const ENCODED_ENTRY_BYTES: usize = 6;
/// What a mark takes in the log, in bytes, about.
const ENCODED_MARK_BYTES: usize = 8;
/// A filter is kept as a tree, which takes more than its text; so many times as much, about.
const FILTER_TREE_TIMES: usize = 8;

impl Record {
    /// About what it takes in the log, in bytes: as much as its encoding and some bytes more or less.
    pub fn encoded_bytes(&self) -> usize {
        ENCODED_RECORD_BYTES + self.body.size().encoded
    }

    /// About what it takes in memory, in bytes, were it the only holder of what is in it.
    pub fn memory_bytes(&self) -> usize {
        allocated(size_of::<Self>()) + self.body.size().memory
    }
}

#[derive(Default)]
struct Size {
    encoded: usize,
    memory: usize,
}

impl Size {
    fn part(self, bytes: usize) -> Self {
        Self { encoded: self.encoded + ENCODED_PART_BYTES + bytes, memory: self.memory + allocated(bytes) }
    }

    fn parts<T: AsRef<str>>(self, texts: &[T]) -> Self {
        let kept_by = Self { memory: self.memory + size_of_val(texts), ..self };
        texts.iter().fold(kept_by, |size, text| size.part(text.as_ref().len()))
    }

    fn groups(self, groups: &[GroupName]) -> Self {
        let kept_by = Self { memory: self.memory + size_of_val(groups), ..self };
        groups.iter().fold(kept_by, |size, group| size.part(group.as_str().len()))
    }

    fn payload(self, payload: &Payload, metadata: &Metadata) -> Self {
        let Self { encoded, memory } = self.part(payload.bytes.len());
        Self {
            encoded: encoded + metadata.bytes() + metadata.len() * ENCODED_ENTRY_BYTES,
            memory: memory + metadata.memory_bytes(),
        }
    }

    fn state(self, state: Option<&HandlerState>) -> Self {
        match state {
            Some(state) => self.part(state.0.len()),
            None => self,
        }
    }

    fn selection(self, selection: &Selection) -> Self {
        let named = match &selection.audience {
            Audience::All => 0,
            Audience::Group(group) => group.as_str().len(),
            Audience::User(user) => user.as_str().len(),
            Audience::Connection(connection_id) => connection_id.as_str().len(),
        };
        let kept_by = self.part(named);
        let size = selection.excluded.iter().fold(kept_by, |size, id| size.part(id.as_str().len()));
        let Some(filter) = &selection.filter else { return size };
        let bytes = filter.as_str().len();
        let size = size.part(bytes);
        Self { memory: size.memory + FILTER_TREE_TIMES * bytes, ..size }
    }
}

impl Body {
    fn size(&self) -> Size {
        let of = |connection_id: &ConnectionId| Size::default().part(connection_id.as_str().len());
        match self {
            Self::Booted { .. } | Self::NodeGone(_) | Self::Refused(_) => Size::default(),
            Self::NodeStarted(started) => Size::default().part(started.node.as_str().len()),
            Self::Opened(opened) => opened.size(),
            Self::Joined { connection_id, groups } | Self::Left { connection_id, groups } => {
                of(connection_id).groups(groups)
            }
            Self::Published(published) => published.size(),
            Self::Granted { connection_id, group, .. } | Self::Revoked { connection_id, group, .. } => {
                of(connection_id).part(group.as_str().len())
            }
            Self::Ended { connection_id, .. } | Self::Attached { connection_id, .. } => of(connection_id),
            Self::Released { releases } => {
                let kept_by = Size { memory: allocated(size_of_val(&**releases)), encoded: 0 };
                let ids = releases.iter().map(|release| release.connection_id.as_str().len());
                ids.fold(kept_by, |size, bytes| size.part(bytes + ENCODED_MARK_BYTES))
            }
            Self::Sent(Sent { selection, payload, metadata, .. }) => {
                Size::default().selection(selection).payload(payload, metadata)
            }
            Self::Added { selection, groups } | Self::Removed { selection, groups } => {
                Size::default().selection(selection).groups(groups)
            }
            Self::Closed { selection, reason, .. } => Size::default().selection(selection).part(reason.len()),
            Self::Handled { connection_id, reply, state } => {
                let size = of(connection_id).state(state.as_ref());
                match reply {
                    Some(HandlerReply { payload, metadata }) => size.payload(payload, metadata),
                    None => size,
                }
            }
            Self::Acked { marks } => {
                Size { encoded: marks.len() * ENCODED_MARK_BYTES, memory: allocated(size_of_val(&**marks)) }
            }
            Self::Told { connection_ids } => {
                connection_ids.iter().fold(Size::default(), |size, id| size.part(id.as_str().len()))
            }
        }
    }
}

impl Opened {
    fn size(&self) -> Size {
        let Self { identity, roles, groups, state, .. } = self;
        let SessionIdentity { connection_id, user_id, custom_subprotocol, .. } = identity;
        Size::default()
            .part(connection_id.as_str().len())
            .part(user_id.as_ref().map_or(0, |user| user.as_str().len()))
            .part(custom_subprotocol.as_ref().map_or(0, String::len))
            .parts(roles)
            .groups(groups)
            .state(state.as_ref())
    }
}

impl Published {
    fn size(&self) -> Size {
        Size::default()
            .part(self.publisher.as_ref().map_or(0, |publisher| publisher.as_str().len()))
            .part(self.user_id.as_ref().map_or(0, |user| user.as_str().len()))
            .groups(&self.groups)
            .payload(&self.payload, &self.metadata)
    }
}

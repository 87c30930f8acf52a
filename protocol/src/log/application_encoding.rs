//! How records store the requests of the application, and whom they select.

use super::{Audience, IdempotencyKey, RecordError, RequestName, Selection};
use crate::filter::Filter;
use crate::wire::{ConnectionId, GroupName, UserId};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredIdempotencyKey {
    #[prost(fixed64, tag = "1")]
    id_high: u64,
    #[prost(fixed64, tag = "2")]
    id_low: u64,
    #[prost(fixed64, tag = "3")]
    fingerprint_high: u64,
    #[prost(fixed64, tag = "4")]
    fingerprint_low: u64,
    #[prost(uint32, tag = "5")]
    window_seconds: u32,
    #[prost(uint32, tag = "6")]
    window_requests: u32,
    #[prost(uint64, optional, tag = "7")]
    first_sent: Option<u64>,
}

/// That a repeatable request was refused.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredRefused {
    #[prost(uint32, tag = "1")]
    pub(super) refusal: u32,
}

/// Of group, user and connection at most one; all sessions when there is none.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredSelection {
    #[prost(string, optional, tag = "1")]
    pub(super) group: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) user_id: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) connection_id: Option<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) excluded: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub(super) filter: Option<String>,
}

impl From<IdempotencyKey> for StoredIdempotencyKey {
    fn from(IdempotencyKey { name, window_seconds, window_requests, first_sent }: IdempotencyKey) -> Self {
        Self {
            id_high: (name.id >> 64) as u64,
            id_low: name.id as u64,
            fingerprint_high: (name.fingerprint >> 64) as u64,
            fingerprint_low: name.fingerprint as u64,
            window_seconds,
            window_requests,
            first_sent,
        }
    }
}

impl From<StoredIdempotencyKey> for IdempotencyKey {
    fn from(stored: StoredIdempotencyKey) -> Self {
        let whole = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        Self {
            name: RequestName {
                id: whole(stored.id_high, stored.id_low),
                fingerprint: whole(stored.fingerprint_high, stored.fingerprint_low),
            },
            window_seconds: stored.window_seconds,
            window_requests: stored.window_requests,
            first_sent: stored.first_sent,
        }
    }
}

impl From<&Selection> for StoredSelection {
    fn from(selection: &Selection) -> Self {
        let mut stored = Self {
            excluded: selection.excluded.iter().map(ToString::to_string).collect(),
            filter: selection.filter.as_ref().map(|filter| filter.as_str().to_owned()),
            ..Self::default()
        };
        match &selection.audience {
            Audience::All => {}
            Audience::Group(group) => stored.group = Some(group.to_string()),
            Audience::User(user_id) => stored.user_id = Some(user_id.to_string()),
            Audience::Connection(id) => stored.connection_id = Some(id.to_string()),
        }
        stored
    }
}

impl StoredSelection {
    pub(super) fn read(stored: Option<Self>) -> Result<Selection, RecordError> {
        let stored = stored.ok_or(RecordError::Invalid("selection"))?;
        let audience = match (stored.group, stored.user_id, stored.connection_id) {
            (None, None, None) => Audience::All,
            (Some(group), None, None) => {
                Audience::Group(GroupName::new(&group).map_err(|_| RecordError::Invalid("group"))?)
            }
            (None, Some(user_id), None) => Audience::User(UserId::new(&user_id)),
            (None, None, Some(id)) => Audience::Connection(ConnectionId::new(&id)),
            _ => return Err(RecordError::Invalid("selection")),
        };
        let filter = stored.filter.map(|text| Filter::stored(&text)).transpose();
        Ok(Selection {
            audience,
            excluded: stored.excluded.iter().map(|id| ConnectionId::new(id)).collect(),
            filter: filter.map_err(|_| RecordError::Invalid("filter"))?,
        })
    }
}

//! Stored records, checkpoints and filters: what is read means the same when it is stored again; a log of any records is
//! folded without harm, and alike in any portions.

use std::sync::Arc;

use bytes::Bytes;
use oncewire_protocol::filter::{Filter, Subject};
use oncewire_protocol::hub::{Input, Shard, ShardId};
use oncewire_protocol::log::{Body, ChunkCheckpoint, HubCheckpoint, MessageCheckpoint, Offset, Record, Time};
use oncewire_protocol::session::MemoryBudget;
use oncewire_protocol::wire::{Encoding, EventName, FrameKind, Upstream, decode_upstream, encode_upstream};

use crate::hub::{BOOT, outcome, settings};

/// One stored record.
pub fn record(data: &[u8]) {
    let Ok(record) = Record::decode(Bytes::copy_from_slice(data)) else { return };
    let stored = record.encode();
    assert_eq!(Record::decode(stored.clone()).as_ref(), Ok(&record));
    assert_eq!(Record::decode(stored.clone()).map(|again| again.encode()), Ok(stored));
}

/// The text of a filter: what is read as one says the same when it is read again, and selects without harm.
pub fn filter(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Filter::parse(text) {
        Ok(filter) => {
            assert_eq!(Filter::parse(filter.as_str()).as_ref(), Ok(&filter));
            for user_id in [None, Some("ann"), Some("O'Neil, Tom"), Some("\u{1F600}")] {
                filter.selects(&Connection { user_id });
            }
        }
        Err(error) => assert!(error.position <= text.chars().count()),
    }
}

/// A connection that a filter may ask about.
struct Connection {
    user_id: Option<&'static str>,
}

impl Subject for Connection {
    fn connection_id(&self) -> &str {
        "c-one"
    }

    fn user_id(&self) -> Option<&str> {
        self.user_id
    }

    fn protocol(&self) -> Option<&str> {
        self.user_id
    }

    fn group_count(&self) -> usize {
        2
    }

    fn is_in_group(&self, group: &str) -> bool {
        matches!(group, "red" | "a b")
    }
}

/// One stored checkpoint. The first byte says of what, the second up to which offset.
pub fn checkpoint(data: &[u8]) {
    let [kind, applied, stored @ ..] = data else { return };
    let stored = Bytes::copy_from_slice(stored);
    let applied = Offset(u64::from(*applied));
    match kind % 3 {
        0 => {
            if let Ok(hub) = HubCheckpoint::decode(stored, applied) {
                assert_eq!(HubCheckpoint::decode(hub.encode(applied), applied), Ok(hub));
            }
        }
        1 => {
            if let Ok(chunk) = ChunkCheckpoint::decode(stored) {
                assert_eq!(ChunkCheckpoint::decode(chunk.encode()), Ok(chunk));
            }
        }
        _ => {
            if let Ok(message) = MessageCheckpoint::decode(stored) {
                assert_eq!(MessageCheckpoint::decode(message.encode()), Ok(message));
            }
        }
    }
}

/// A log of stored records, each with its length before it in two bytes. Those that do not decode are left out; a
/// gateway would not start. The first byte says where the log is cut in portions.
pub fn log(data: &[u8]) {
    let Some((cut, mut data)) = data.split_first() else { return };
    let mut log = Vec::new();
    while let [high, low, rest @ ..] = data {
        let length = (usize::from(*high) << 8 | usize::from(*low)).min(rest.len());
        let (stored, behind) = rest.split_at(length);
        if let Ok(record) = Record::decode(Bytes::copy_from_slice(stored))
            && is_publishable(&record)
        {
            log.push((Offset(2 * log.len() as u64), Arc::new(record)));
        }
        data = behind;
    }
    let names: Vec<_> = log
        .iter()
        .filter_map(|(_, record)| match &record.body {
            Body::Opened(opened) => {
                Some((opened.identity.connection_id.to_string(), opened.identity.subprotocol))
            }
            _ => None,
        })
        .collect();
    let end = Offset(2 * log.len() as u64);
    log.push((end, Arc::new(Shard::booted(BOOT, Time(0), false))));
    let mut at_once = fold(&[&log], Time(0));
    let (front, back) = log.split_at(usize::from(*cut).min(log.len()));
    let mut in_portions = fold(&[front, back], Time(1 << 40));
    assert_eq!(at_once.sessions(), in_portions.sessions());
    assert_eq!(at_once.applied(), in_portions.applied());
    assert_eq!(outcome(&mut at_once, &names), outcome(&mut in_portions, &names));
}

/// Whether some client can have published it: reading a record back does not check again what its payload holds.
fn is_publishable(record: &Record) -> bool {
    let (payload, metadata) = match &record.body {
        Body::Published(published) => (&published.payload, &published.metadata),
        Body::Sent(sent) => (&sent.payload, &sent.metadata),
        _ => return true,
    };
    let event = Upstream::Event {
        event: EventName::raw(),
        payload: payload.clone(),
        metadata: metadata.clone(),
        ack_id: None,
    };
    let said = encode_upstream(Encoding::Protobuf, &event);
    decode_upstream(Encoding::Protobuf, FrameKind::Binary, &said).is_ok()
}

fn fold(portions: &[&[(Offset, Arc<Record>)]], now: Time) -> Shard {
    let budget = Arc::new(MemoryBudget::new(usize::MAX));
    let mut hub = Shard::new(settings(), ShardId::WHOLE, BOOT, budget);
    for portion in portions {
        hub.handle(now, Input::Records(portion.to_vec()));
        while hub.has_waiting() {
            hub.handle(now, Input::GoOn);
        }
        while hub.poll_output().is_some() {}
    }
    hub
}

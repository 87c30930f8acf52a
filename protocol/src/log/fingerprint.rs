//! Tells a resend of a request from another request under the same ack id.
//!
//! ```text
//! fingerprint  XXH3-64 of the payload's bytes, seeded with the XXH3-64 of the head
//! join, leave  head: byte 1 or 2, group
//! send         head: byte 3, group, number no echo, number ttl seconds, metadata, byte payload kind
//! event        head: byte 4, name, metadata, byte payload kind
//! others       heads that begin with 5, 6 or 7: never executed, so never stored
//! number       8 bytes, little-endian
//! text         number of bytes, bytes
//! metadata     number of entries, then key and value of each, sorted by key
//! ```

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::wire::{Metadata, Payload, PayloadKind, Upstream};

/// XXH3-64 over everything that executing a request depends on; part of the record format, so it never changes
/// within a record version. It can only be made from a request, so no ack id can be remembered without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a request. The ack id is left out: it is what the fingerprint is compared under.
    pub fn of(request: &Upstream) -> Self {
        let mut head = Head(Vec::with_capacity(64));
        match request {
            Upstream::JoinGroup { group, ack_id: _ } => head.tag(1).text(group.as_str()).seal(&[]),
            Upstream::LeaveGroup { group, ack_id: _ } => head.tag(2).text(group.as_str()).seal(&[]),
            Upstream::SendToGroup { group, payload, metadata, ack_id: _, no_echo, ttl_seconds } => head
                .tag(3)
                .text(group.as_str())
                .number(u64::from(*no_echo))
                .number(u64::from(*ttl_seconds))
                .metadata(metadata)
                .payload(payload),
            Upstream::Event { event, payload, metadata, ack_id: _ } => {
                head.tag(4).text(event.as_str()).metadata(metadata).payload(payload)
            }
            Upstream::SequenceAck { .. }
            | Upstream::Ping
            | Upstream::Invoke { .. }
            | Upstream::CancelInvocation { .. } => head.tag(5).seal(&[]),
            Upstream::Stream { stream_id, group, ack_id: _ } => {
                head.tag(6).text(stream_id).text(group.as_ref().map_or("", |group| group.as_str())).seal(&[])
            }
            Upstream::GroupState { group, ack_id: _ } => head.tag(7).text(group.as_str()).seal(&[]),
        }
    }

    pub(super) fn from_log(stored: u64) -> Self {
        Self(stored)
    }

    pub(super) fn to_log(self) -> u64 {
        self.0
    }
}

/// Everything but the payload, each part with its length so that no two requests spell the same bytes.
struct Head(Vec<u8>);

impl Head {
    fn tag(&mut self, tag: u8) -> &mut Self {
        self.0.push(tag);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn metadata(&mut self, metadata: &Metadata) -> &mut Self {
        self.number(metadata.len() as u64);
        for (key, value) in metadata.iter() {
            self.text(key).text(value);
        }
        self
    }

    fn payload(&mut self, payload: &Payload) -> Fingerprint {
        let kind = match payload.kind {
            PayloadKind::Text => 1,
            PayloadKind::Json => 2,
            PayloadKind::Binary => 3,
            PayloadKind::Any => 4,
        };
        self.tag(kind).seal(&payload.bytes)
    }

    fn seal(&mut self, payload: &[u8]) -> Fingerprint {
        Fingerprint(xxh3_64_with_seed(payload, xxh3_64(&self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{EventName, GroupName};
    use bytes::Bytes;

    fn send(group: &str, data: &'static [u8]) -> Upstream {
        Upstream::SendToGroup {
            group: GroupName::new(group).unwrap(),
            payload: Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(data) },
            metadata: Metadata::default(),
            ack_id: Some(1),
            no_echo: false,
            ttl_seconds: 0,
        }
    }

    fn changed(change: impl FnOnce(&mut Upstream)) -> Upstream {
        let mut request = send("a", b"hi");
        change(&mut request);
        request
    }

    #[test]
    fn every_field_that_execution_depends_on_changes_it() {
        let metadata_of = |pairs: &[(&str, &str)]| Metadata::new(pairs.iter().copied()).unwrap();
        let with_metadata = |pairs: &[(&str, &str)]| {
            let all = metadata_of(pairs);
            changed(|request| {
                if let Upstream::SendToGroup { metadata, .. } = request {
                    *metadata = all;
                }
            })
        };
        let variants = vec![
            send("a", b"hi"),
            send("b", b"hi"),
            send("a", b"ho"),
            send("ah", b"i"),
            changed(|r| {
                if let Upstream::SendToGroup { no_echo, .. } = r {
                    *no_echo = true
                }
            }),
            changed(|r| {
                if let Upstream::SendToGroup { ttl_seconds, .. } = r {
                    *ttl_seconds = 1
                }
            }),
            changed(|r| {
                if let Upstream::SendToGroup { payload, .. } = r {
                    payload.kind = PayloadKind::Json
                }
            }),
            with_metadata(&[("k", "v")]),
            with_metadata(&[("kv", "")]),
            with_metadata(&[("k", "v"), ("l", "w")]),
            Upstream::JoinGroup { group: GroupName::new("a").unwrap(), ack_id: Some(1) },
            Upstream::LeaveGroup { group: GroupName::new("a").unwrap(), ack_id: Some(1) },
            Upstream::Event {
                event: EventName::new("a").unwrap(),
                payload: Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(b"hi") },
                metadata: Metadata::default(),
                ack_id: Some(1),
            },
        ];
        for (i, one) in variants.iter().enumerate() {
            for other in &variants[i + 1..] {
                assert_ne!(Fingerprint::of(one), Fingerprint::of(other), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn the_ack_id_is_no_part_of_it() {
        let other_id = changed(|r| {
            if let Upstream::SendToGroup { ack_id, .. } = r {
                *ack_id = Some(2)
            }
        });
        assert_eq!(Fingerprint::of(&send("a", b"hi")), Fingerprint::of(&other_id));
    }

    /// Computed with the hash's reference implementation over the layout that the module documents.
    #[test]
    fn the_hash_of_version_1_is_fixed() {
        let group = || GroupName::new("gruppe-ü").unwrap();
        let metadata = Metadata::new([("trace", "a1"), ("b", "")]).unwrap();
        let payload = |kind, data: &'static [u8]| Payload { kind, bytes: Bytes::from_static(data) };
        let long: &'static [u8] = &[b'x'; 1000];
        let full = Upstream::SendToGroup {
            group: group(),
            payload: payload(PayloadKind::Binary, long),
            metadata: metadata.clone(),
            ack_id: Some(9),
            no_echo: true,
            ttl_seconds: 300,
        };
        let event = Upstream::Event {
            event: EventName::new("checkout").unwrap(),
            payload: payload(PayloadKind::Json, b"{\"n\":1}"),
            metadata,
            ack_id: None,
        };
        for (request, fixed) in [
            (send("a", b"hi"), 3_803_193_893_736_101_364),
            (full, 10_333_937_812_295_650_247),
            (event, 3_050_133_286_316_101_736),
            (Upstream::JoinGroup { group: group(), ack_id: Some(1) }, 5_303_627_302_998_628_397),
            (Upstream::LeaveGroup { group: group(), ack_id: Some(1) }, 16_155_184_422_736_365_604),
        ] {
            assert_eq!(Fingerprint::of(&request).to_log(), fixed, "{request:?}");
        }
    }
}

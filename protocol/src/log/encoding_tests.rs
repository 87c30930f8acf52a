use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::filter::Filter;
use crate::log::HandlerReply;
use crate::log::{
    Audience, EndReason, IdempotencyKey, NodeGone, NodeName, NodeStarted, Refusal, Release, RequestName,
    Selection, SequenceMark, SessionIdentity,
};
use crate::wire::{PayloadKind, Subprotocol};
use fixtures::{fixture, fixtures};

#[path = "encoding_fixture_tests.rs"]
mod fixtures;

proptest! {
    #[test]
    fn records_come_back(record in record()) {
        prop_assert_eq!(Record::decode(record.encode()), Ok(record));
    }

    #[test]
    fn a_payload_is_shared_with_the_stored_bytes(published in published(), key in key()) {
        let body = Body::Published(published);
        let stored = Record { key, time: Time(1), sequence_ack: None, body }.encode();
        let Body::Published(read) = Record::decode(stored.clone()).unwrap().body else { panic!("another body") };
        let payload = read.payload.bytes;
        prop_assert!(payload.is_empty() || stored.as_ptr_range().contains(&payload.as_ptr()));
    }

    #[test]
    fn what_a_record_takes_in_the_log_is_known_without_its_encoding(record in record()) {
        let stored = record.encode().len();
        let about = record.encoded_bytes();
        prop_assert!(about.abs_diff(stored) <= 160 + stored / 4, "{} for {}", about, stored);
    }

    #[test]
    fn no_part_of_a_record_is_a_record(record in record()) {
        let stored = record.encode();
        for bytes in 0..stored.len() {
            prop_assert!(Record::decode(stored.slice(..bytes)).is_err(), "{} of {} bytes", bytes, stored.len());
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(mut bytes in vec(any::<u8>(), 0..200), is_known in any::<bool>()) {
        if let Some(version) = bytes.first_mut().filter(|_| is_known) {
            *version = 1;
        }
        if let Ok(record) = Record::decode(bytes.into()) {
            prop_assert_eq!(Record::decode(record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_damaged_record_is_a_record_or_an_error(
        record in record(),
        at in any::<prop::sample::Index>(),
        flipped in 1u8..,
    ) {
        let mut stored = record.encode().to_vec();
        let at = at.index(stored.len());
        stored[at] ^= flipped;
        let read = Record::decode(stored.into());
        if at == 0 {
            let version = record.version() ^ flipped;
            if !(1..=RECORD_VERSION).contains(&version) {
                prop_assert_eq!(read, Err(RecordError::UnknownVersion(version)));
            }
        } else if let Ok(read) = read {
            prop_assert_eq!(Record::decode(read.encode()), Ok(read));
        }
    }
}

#[test]
fn each_version_is_read_for_ever() {
    for (name, record) in fixtures::all() {
        let stored = fixture(record.version(), name);
        assert_eq!(Record::decode(stored.clone()), Ok(record.clone()), "{name}");
        assert_eq!(record.encode(), stored, "{name}");
    }
}

#[test]
fn every_fixture_is_used() {
    for version in 1..=RECORD_VERSION {
        let stored: BTreeSet<String> = std::fs::read_dir(fixtures(version))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let all = fixtures::all();
        let of_version = all.iter().filter(|(_, record)| record.version() == version);
        assert_eq!(stored, of_version.map(|(name, _)| format!("{name}.hex")).collect());
    }
}

#[test]
fn stored_numbers_never_change() {
    let subprotocols = [
        (1, Subprotocol::Json),
        (2, Subprotocol::JsonReliable),
        (3, Subprotocol::Raw),
        (4, Subprotocol::Protobuf),
        (5, Subprotocol::ProtobufReliable),
    ];
    for (number, subprotocol) in subprotocols {
        assert_eq!((subprotocol_number(subprotocol), subprotocol_of(number)), (number, Some(subprotocol)));
    }
    let kinds =
        [(1, PayloadKind::Text), (2, PayloadKind::Json), (3, PayloadKind::Binary), (4, PayloadKind::Any)];
    for (number, kind) in kinds {
        assert_eq!((kind_number(kind), kind_of(number)), (number, Some(kind)));
    }
    for (number, permission) in [(1, Permission::JoinLeaveGroup), (2, Permission::SendToGroup)] {
        assert_eq!((permission_number(permission), permission_of(number)), (number, Some(permission)));
    }
    let reasons = [
        (1, EndReason::ClientClosed),
        (2, EndReason::ProtocolViolation),
        (3, EndReason::OutboxFull),
        (4, EndReason::Expired),
        (5, EndReason::Shed),
        (6, EndReason::ClosedByApplication),
        (7, EndReason::Stopped),
    ];
    for (number, reason) in reasons {
        assert_eq!((reason_number(reason), reason_of(number)), (number, Some(reason)));
    }
}

#[test]
fn no_bytes_are_no_record() {
    assert_eq!(Record::decode(Bytes::new()), Err(RecordError::Empty));
}

#[test]
fn another_version_is_refused_by_its_number() {
    for version in (0..=u8::MAX).filter(|version| !(1..=RECORD_VERSION).contains(version)) {
        let mut stored = fixture(1, "booted").to_vec();
        stored[0] = version;
        assert_eq!(Record::decode(stored.into()), Err(RecordError::UnknownVersion(version)));
    }
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    let key = || Some(boot_key());
    let bodies: Vec<(&str, Option<StoredBootKey>, Option<StoredBody>)> = vec![
        ("key", None, Some(StoredBody::Booted(StoredBooted::default()))),
        (
            "shard",
            Some(StoredBootKey { shard: 0x1_0000, ..boot_key() }),
            Some(StoredBody::Booted(StoredBooted::default())),
        ),
        ("body", key(), None),
        ("list of marks", key(), Some(StoredBody::Acked(StoredAcked::default()))),
        ("subprotocol", key(), Some(StoredBody::Opened(StoredOpened::default()))),
        (
            "subprotocol",
            key(),
            Some(StoredBody::Opened(StoredOpened { subprotocol: 6, ..StoredOpened::default() })),
        ),
        (
            "group",
            key(),
            Some(StoredBody::Opened(StoredOpened {
                subprotocol: 1,
                groups: blank(),
                ..StoredOpened::default()
            })),
        ),
        (
            "group",
            key(),
            Some(StoredBody::Joined(StoredMembership { groups: blank(), ..StoredMembership::default() })),
        ),
        (
            "group",
            key(),
            Some(StoredBody::Left(StoredMembership { groups: blank(), ..StoredMembership::default() })),
        ),
        ("payload kind", key(), Some(StoredBody::Published(StoredPublished::default()))),
        ("payload kind", key(), Some(StoredBody::Published(StoredPublished { payload_kind: 5, ..text() }))),
        ("group", key(), Some(StoredBody::Published(StoredPublished { groups: blank(), ..text() }))),
        ("ttl", key(), Some(StoredBody::Published(StoredPublished { ttl_seconds: 0x1_0000, ..text() }))),
        (
            "metadata",
            key(),
            Some(StoredBody::Published(StoredPublished {
                metadata: vec![StoredMetadataEntry::default()],
                ..text()
            })),
        ),
        ("permission", key(), Some(StoredBody::Granted(StoredPermission { permission: 0, ..permission() }))),
        ("permission", key(), Some(StoredBody::Revoked(StoredPermission { permission: 3, ..permission() }))),
        (
            "group",
            key(),
            Some(StoredBody::Granted(StoredPermission { group: String::new(), ..permission() })),
        ),
        ("reason", key(), Some(StoredBody::Ended(StoredEnded::default()))),
        ("reason", key(), Some(StoredBody::Ended(StoredEnded { reason: 8, ..StoredEnded::default() }))),
        ("payload kind", key(), Some(StoredBody::Sent(StoredSent::default()))),
        ("selection", key(), Some(StoredBody::Sent(StoredSent { payload_kind: 1, ..StoredSent::default() }))),
        ("selection", key(), Some(StoredBody::Added(StoredMembers::default()))),
        ("group", key(), Some(StoredBody::Removed(StoredMembers { groups: blank(), ..everybody() }))),
        (
            "selection",
            key(),
            Some(StoredBody::Closed(closed(StoredSelection {
                group: some("g"),
                user_id: some("u"),
                ..all()
            }))),
        ),
        ("group", key(), Some(StoredBody::Closed(closed(StoredSelection { group: some(""), ..all() })))),
        (
            "filter",
            key(),
            Some(StoredBody::Closed(closed(StoredSelection { filter: some("userId"), ..all() }))),
        ),
    ];
    for (part, boot_key, body) in bodies {
        let record = StoredRecord { boot_key, body, ..StoredRecord::default() };
        assert_eq!(Record::decode(stored(&record)), Err(RecordError::Invalid(part)), "{record:?}");
    }
}

#[test]
fn a_body_of_a_later_build_is_refused() {
    let mut bytes = fixture(1, "booted").to_vec();
    let later_body = [0xE2, 0x03, 0x00]; // field 60
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(&later_body);
    assert_eq!(Record::decode(bytes.into()), Err(RecordError::Invalid("body")));
}

#[test]
fn bytes_that_are_no_message_are_damaged() {
    for damaged in [&[1, 0xFF][..], &[1, 0x0A], &[1, 0x08], &[1, 0x22, 0x7F, 0x00], &[1, 0x52, 0x01]] {
        let read = Record::decode(Bytes::copy_from_slice(damaged));
        assert!(matches!(read, Err(RecordError::Damaged(_))), "{damaged:?}: {read:?}");
    }
    let mut not_utf8 = fixture(1, "ended").to_vec();
    let id = not_utf8.windows(3).position(|bytes| bytes == b"c-1").unwrap();
    not_utf8[id] = 0xFF;
    assert!(matches!(Record::decode(not_utf8.into()), Err(RecordError::Damaged(_))));
}

#[test]
fn an_error_shows_nothing_of_a_payload() {
    let mut bytes = fixture(1, "published").to_vec();
    let user = bytes.windows(3).position(|bytes| bytes == b"ada").unwrap();
    bytes[user] = 0xFF;
    let error = Record::decode(bytes.into()).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("1.0") && !shown.contains("trace"), "{shown}");
}

fn boot_key() -> StoredBootKey {
    StoredBootKey { counter: 1, settled_below: 1, ..StoredBootKey::default() }
}

fn blank() -> Vec<String> {
    vec!["a".to_owned(), String::new()]
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn all() -> StoredSelection {
    StoredSelection::default()
}

fn everybody() -> StoredMembers {
    StoredMembers { selection: Some(all()), ..StoredMembers::default() }
}

fn closed(selection: StoredSelection) -> StoredClosed {
    StoredClosed { selection: Some(selection), ..StoredClosed::default() }
}

fn text() -> StoredPublished {
    StoredPublished { payload_kind: 1, ..StoredPublished::default() }
}

fn permission() -> StoredPermission {
    StoredPermission { connection_id: "c-1".to_owned(), permission: 1, group: "lobby".to_owned() }
}

fn stored(record: &StoredRecord) -> Bytes {
    let mut bytes = vec![RECORD_VERSION];
    record.encode_raw(&mut bytes);
    bytes.into()
}

fn group_name(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn record() -> impl Strategy<Value = Record> {
    (key(), any::<u64>(), option::of(any::<u64>()), body())
        .prop_map(|(key, time, sequence_ack, body)| Record { key, time: Time(time), sequence_ack, body })
}

fn key() -> impl Strategy<Value = Key> {
    let ack = (any::<u64>(), any::<u64>())
        .prop_map(|(ack_id, fingerprint)| AckKey { ack_id, fingerprint: Fingerprint::from_log(fingerprint) });
    let parts = (any::<u128>(), any::<u128>(), any::<u32>(), any::<u32>(), option::of(any::<u64>()));
    let request = parts.prop_map(|(id, fingerprint, window_seconds, window_requests, first_sent)| {
        IdempotencyKey { name: RequestName { id, fingerprint }, window_seconds, window_requests, first_sent }
    });
    let keys = (option::of(ack), option::weighted(0.2, request));
    (any::<u128>(), any::<u16>(), any::<u64>(), any::<u64>(), keys).prop_map(
        |(boot, shard, counter, settled_below, (ack, request))| Key {
            boot: BootKey { boot: BootId(boot), shard, counter, settled_below },
            ack,
            request,
        },
    )
}

fn refusal() -> impl Strategy<Value = Refusal> {
    use Refusal::*;
    select(vec![UnknownConnection, UnknownUser, TooManyRules, TooManyGroups])
}

fn node_started() -> impl Strategy<Value = NodeStarted> {
    ("[a-z0-9.-]{1,20}", any::<u64>(), 1u8.., any::<bool>()).prop_map(
        |(node, seen, record_version, takes_disconnected)| NodeStarted {
            node: NodeName::new(&node).unwrap(),
            seen: Offset(seen),
            record_version,
            takes_disconnected,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        any::<(bool, bool)>()
            .prop_map(|(takes_disconnected, ends_all)| Body::Booted { takes_disconnected, ends_all }),
        opened().prop_map(Body::Opened),
        (connection_id(), groups())
            .prop_map(|(connection_id, groups)| Body::Joined { connection_id, groups }),
        (connection_id(), groups()).prop_map(|(connection_id, groups)| Body::Left { connection_id, groups }),
        published().prop_map(Body::Published),
        (connection_id(), a_permission(), group()).prop_map(|(connection_id, permission, group)| {
            Body::Granted { connection_id, permission, group }
        }),
        (connection_id(), a_permission(), group()).prop_map(|(connection_id, permission, group)| {
            Body::Revoked { connection_id, permission, group }
        }),
        (connection_id(), reason(), option::of(any::<u64>()), option::of(any::<u64>())).prop_map(
            |(connection_id, reason, disconnected, attached)| {
                let attached = attached.map(Offset);
                Body::Ended { connection_id, reason, disconnected, attached }
            }
        ),
        node_started().prop_map(Body::NodeStarted),
        any::<(u128, bool, bool)>().prop_map(|(boot, is_stopped, takes_disconnected)| {
            Body::NodeGone(NodeGone { boot: BootId(boot), is_stopped, takes_disconnected })
        }),
        (connection_id(), subprotocol())
            .prop_map(|(connection_id, subprotocol)| Body::Attached { connection_id, subprotocol }),
        vec((connection_id(), any::<u64>()), 1..5).prop_map(|releases| {
            let release = |(connection_id, attached)| Release { connection_id, attached: Offset(attached) };
            Body::Released { releases: releases.into_iter().map(release).collect() }
        }),
        (connection_id(), option::of(reply()), option::of(state()))
            .prop_map(|(connection_id, reply, state)| Body::Handled { connection_id, reply, state }),
        vec(connection_id(), 0..4).prop_map(|connection_ids| Body::Told { connection_ids }),
        vec(any::<(u64, u64)>(), 1..5).prop_map(|marks| Body::Acked { marks: marks_of(&marks) }),
        refusal().prop_map(Body::Refused),
        (selection(), published()).prop_map(|(selection, published)| {
            let Published { ttl_seconds, payload, metadata, .. } = published;
            Body::Sent(Sent { selection, ttl_seconds, payload, metadata })
        }),
        (selection(), groups()).prop_map(|(selection, groups)| Body::Added { selection, groups }),
        (selection(), groups()).prop_map(|(selection, groups)| Body::Removed { selection, groups }),
        (selection(), any::<String>(), any::<bool>()).prop_map(|(selection, reason, takes_disconnected)| {
            Body::Closed { selection, reason, takes_disconnected }
        }),
    ]
}

fn marks_of(marks: &[(u64, u64)]) -> Vec<SequenceMark> {
    let mark = |&(session, sequence_id)| SequenceMark { session: Offset(session), sequence_id };
    marks.iter().map(mark).collect()
}

fn state() -> impl Strategy<Value = HandlerState> {
    vec(any::<u8>(), 0..20).prop_map(|bytes| HandlerState(bytes.into()))
}

fn reply() -> impl Strategy<Value = HandlerReply> {
    published().prop_map(|Published { payload, metadata, .. }| HandlerReply { payload, metadata })
}

fn selection() -> impl Strategy<Value = Selection> {
    let audience = prop_oneof![
        Just(Audience::All),
        group().prop_map(Audience::Group),
        any::<String>().prop_map(|id| Audience::User(UserId::new(&id))),
        connection_id().prop_map(Audience::Connection),
    ];
    let filter = select(vec!["true", "userId eq 'ann'", "length(groups) gt 1 or 'a' in groups"]);
    let filter = option::of(filter.prop_map(|text| Filter::parse(text).unwrap()));
    (audience, vec(connection_id(), 0..3), filter).prop_map(|(audience, excluded, filter)| Selection {
        audience,
        excluded,
        filter,
    })
}

fn subprotocol() -> impl Strategy<Value = Subprotocol> {
    use Subprotocol::*;
    select(vec![Json, JsonReliable, Raw, Protobuf, ProtobufReliable])
}

fn opened() -> impl Strategy<Value = Opened> {
    let user_id = option::of(any::<String>());
    let roles = vec(any::<String>(), 0..4);
    let handlers = (option::of(state()), option::of(any::<String>()));
    let identity = (connection_id(), user_id, subprotocol(), roles);
    (identity, groups(), any::<u32>(), any::<u32>(), handlers).prop_map(
        |(
            (connection_id, user_id, subprotocol, roles),
            groups,
            ack_window_ids,
            retention_seconds,
            (state, custom_subprotocol),
        )| Opened {
            identity: SessionIdentity {
                connection_id,
                user_id: user_id.as_deref().map(UserId::new),
                subprotocol,
                custom_subprotocol,
            },
            roles,
            groups,
            ack_window_ids,
            retention_seconds,
            state,
        },
    )
}

fn published() -> impl Strategy<Value = Published> {
    let kind = select(vec![PayloadKind::Text, PayloadKind::Json, PayloadKind::Binary, PayloadKind::Any]);
    let payload = (kind, vec(any::<u8>(), 0..100));
    let metadata = prop::collection::btree_map("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", "[ -~]{0,20}", 0..4);
    let publisher = (option::of(connection_id()), option::of(any::<String>()));
    (publisher, groups(), any::<bool>(), any::<u16>(), payload, metadata).prop_map(
        |((publisher, user_id), groups, no_echo, ttl_seconds, (kind, bytes), entries)| {
            let metadata = Metadata::new(&entries).unwrap();
            Published {
                publisher,
                user_id: user_id.as_deref().map(UserId::new),
                groups,
                no_echo,
                ttl_seconds,
                payload: Payload { kind, bytes: bytes.into() },
                metadata,
            }
        },
    )
}

#[test]
fn names_and_metadata_counted_for_nothing_in_the_log() {
    let long = "g".repeat(1024);
    let groups = vec![GroupName::new(&long).unwrap(); 100];
    let keys: Vec<_> = (0..2048).map(|n| format!("{n:04}")).collect();
    let message = Published {
        publisher: Some(ConnectionId::new(&long)),
        user_id: Some(UserId::new(&long)),
        groups: groups.clone(),
        no_echo: false,
        ttl_seconds: 0,
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::new() },
        metadata: Metadata::new(keys.iter().map(|key| (key, ""))).unwrap(),
    };
    let joined = Body::Joined { connection_id: ConnectionId::new(&long), groups };
    for body in [Body::Published(message), joined] {
        let record = fixtures::fixed_record(2, 1, None, None, body);
        let stored = record.encode().len();
        assert!(record.encoded_bytes().abs_diff(stored) < stored / 10, "{}", record.encoded_bytes());
        assert!(record.memory_bytes() > stored);
    }
}

fn connection_id() -> impl Strategy<Value = ConnectionId> {
    any::<String>().prop_map(|id| ConnectionId::new(&id))
}

fn group() -> impl Strategy<Value = GroupName> {
    any::<String>().prop_filter_map("a blank group", |name| GroupName::new(&name).ok())
}

fn groups() -> impl Strategy<Value = Vec<GroupName>> {
    vec(group(), 0..4)
}

fn a_permission() -> impl Strategy<Value = Permission> {
    select(vec![Permission::JoinLeaveGroup, Permission::SendToGroup])
}

fn reason() -> impl Strategy<Value = EndReason> {
    select((1..=6).filter_map(reason_of).collect::<Vec<_>>())
}

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::log::{EndReason, EventSubject, NodeCheckpoint, NodeName, SessionIdentity};
use crate::wire::{ConnectionId, MetadataBuilder, PayloadKind, Subprotocol, Upstream};

proptest! {
    #[test]
    fn chunks_come_back(sessions in vec(session(), 0..4), untold in vec(untold(), 0..2)) {
        let chunk = ChunkCheckpoint { sessions, untold };
        prop_assert_eq!(ChunkCheckpoint::decode(chunk.encode()), Ok(chunk));
    }

    #[test]
    fn hubs_come_back(hub in hub(), applied in any::<u64>()) {
        prop_assert_eq!(HubCheckpoint::decode(hub.encode(Offset(applied)), Offset(applied)), Ok(hub));
    }

    #[test]
    fn messages_come_back_and_share_their_payload(message in message()) {
        let stored = message.encode();
        let read = MessageCheckpoint::decode(stored.clone()).unwrap();
        let payload = &read.message.payload.bytes;
        prop_assert!(payload.is_empty() || stored.as_ptr_range().contains(&payload.as_ptr()));
        prop_assert_eq!(read, message);
    }

    #[test]
    fn any_bytes_are_a_checkpoint_or_an_error(mut bytes in vec(any::<u8>(), 0..200), is_known in any::<bool>()) {
        if let Some(version) = bytes.first_mut().filter(|_| is_known) {
            *version = 1;
        }
        let stored = Bytes::from(bytes);
        if let Ok(chunk) = ChunkCheckpoint::decode(stored.clone()) {
            prop_assert_eq!(ChunkCheckpoint::decode(chunk.encode()), Ok(chunk));
        }
        if let Ok(message) = MessageCheckpoint::decode(stored.clone()) {
            prop_assert_eq!(MessageCheckpoint::decode(message.encode()), Ok(message));
        }
        prop_assert!(HubCheckpoint::decode(stored, Offset(7)).is_err(), "it has less than a byte for each chunk");
    }

    #[test]
    fn a_damaged_chunk_is_a_chunk_or_an_error(
        session in session(),
        at in any::<prop::sample::Index>(),
        flipped in 1u8..,
    ) {
        let mut stored = ChunkCheckpoint { sessions: vec![session], ..Default::default() }.encode().to_vec();
        let at = at.index(stored.len());
        stored[at] ^= flipped;
        let version = stored[0];
        let read = ChunkCheckpoint::decode(stored.into());
        if at == 0 {
            prop_assert_eq!(read, Err(CheckpointError::UnknownVersion(version)));
        } else if let Ok(read) = read {
            prop_assert_eq!(ChunkCheckpoint::decode(read.encode()), Ok(read));
        }
    }
}

fn group() -> impl Strategy<Value = GroupName> {
    select(vec!["a", "gruppe-ü", "*"]).prop_map(|name| GroupName::new(name).unwrap())
}

fn rules() -> impl Strategy<Value = RulesCheckpoint> {
    (any::<bool>(), vec("[a-z*?.]{1,9}", 0..3), vec(group(), 0..3), vec(group(), 0..3))
        .prop_map(|(all, patterns, allowed, denied)| RulesCheckpoint { all, patterns, allowed, denied })
}

fn session() -> impl Strategy<Value = SessionCheckpoint> {
    let subprotocol = select(vec![
        Subprotocol::Json,
        Subprotocol::JsonReliable,
        Subprotocol::Raw,
        Subprotocol::Protobuf,
        Subprotocol::ProtobufReliable,
    ]);
    let ending = option::of(select(vec![
        EndReason::ClientClosed,
        EndReason::ProtocolViolation,
        EndReason::OutboxFull,
        EndReason::Expired,
        EndReason::Shed,
        EndReason::ClosedByApplication,
    ]));
    let identity = (any::<String>(), option::of(any::<String>()), subprotocol, ending);
    let ack_ids = vec((any::<u64>(), any::<u64>()), 0..5);
    let messages = vec((1u64..1 << 40, any::<u64>(), prop_oneof![Just(0u32), any::<u32>()]), 0..6);
    let number = prop_oneof![Just(0), any::<u64>()].prop_map(Offset);
    let rules = (rules(), rules());
    (
        identity,
        rules,
        vec(group(), 0..3),
        ack_ids,
        messages,
        (any::<(u32, u32, u64)>(), number, hold()),
        handlers(),
    )
        .prop_map(
            |(
                (id, user_id, subprotocol, ending),
                (join_leave, send),
                groups,
                ack_ids,
                messages,
                (numbers, number, hold),
                handlers,
            )| {
                let (state, custom_subprotocol, boots) = handlers;
                let mut last = 0;
                let unacknowledged = messages.into_iter().map(|(step, offset, part)| {
                    last += step;
                    (last, MessageRef { offset: Offset(offset), part })
                });
                let unacknowledged: Vec<_> = unacknowledged.collect();
                let executed = ack_ids.into_iter().map(|(ack_id, of)| {
                    let group = GroupName::new(&format!("g{of}")).unwrap();
                    let fingerprint = Fingerprint::of(&Upstream::JoinGroup { group, ack_id: None });
                    AckKey { ack_id, fingerprint }
                });
                let (deliveries, retention_seconds, payload_bytes) = numbers;
                SessionCheckpoint {
                    identity: SessionIdentity {
                        connection_id: ConnectionId::new(&id),
                        user_id: user_id.as_deref().map(UserId::new),
                        subprotocol,
                        custom_subprotocol,
                    },
                    join_leave,
                    send,
                    groups,
                    ack_window_ids: 5,
                    executed: executed.collect(),
                    retention_seconds,
                    sequence_ids: SequenceIdsCheckpoint { last, deliveries, payload_bytes },
                    unacknowledged,
                    ending,
                    state,
                    boots,
                    number,
                    hold,
                }
            },
        )
}

/// Few boots, so that sessions name the same.
fn hold() -> impl Strategy<Value = Hold> {
    // None at all where the holder is gone.
    let boot = || (0u128..3).prop_map(|boot| Some(BootId(boot << 100)).filter(|_| boot > 0));
    (boot(), boot(), any::<u64>(), any::<u64>()).prop_map(|(holder, speaker, attached, since)| Hold {
        holder,
        attached: Offset(attached),
        speaker,
        speaks_since: Offset(since),
    })
}

/// Mostly as without event handlers.
fn handlers() -> impl Strategy<Value = (Option<HandlerState>, Option<String>, u32)> {
    let state =
        option::weighted(0.2, vec(any::<u8>(), 0..9)).prop_map(|state| state.map(|s| HandlerState(s.into())));
    (state, option::weighted(0.1, any::<String>()), 0..=EventId::BOOTS_MAX)
}

fn untold() -> impl Strategy<Value = Disconnected> {
    (session(), any::<u64>(), any::<u64>(), any::<String>()).prop_map(|(session, number, time, reason)| {
        Disconnected {
            subject: EventSubject {
                identity: SessionIdentity {
                    connection_id: session.identity.connection_id,
                    user_id: session.identity.user_id,
                    subprotocol: session.identity.subprotocol,
                    custom_subprotocol: session.identity.custom_subprotocol,
                },
                state: session.state,
            },
            number,
            time: Time(time),
            reason,
        }
    })
}

fn hub() -> impl Strategy<Value = HubCheckpoint> {
    let proposer = (any::<u128>(), any::<u16>(), any::<u64>(), vec(any::<u64>(), 0..4)).prop_map(
        |(boot, shard, settled_below, counters)| AppliedAppends {
            boot: BootId(boot),
            shard,
            settled_below,
            counters,
        },
    );
    let covers = vec(any::<u64>().prop_map(Offset), usize::from(CHUNKS));
    let numbers = || any::<(u64, u64)>().prop_map(|(first, next)| RequestNumbers { first, next });
    let requests = (numbers(), numbers(), option::of(any::<u64>())).prop_map(
        |(plain, repeatable, forgotten_first_sent)| RequestsCheckpoint {
            plain,
            repeatable,
            forgotten_first_sent,
        },
    );
    let parts = (any::<u64>(), vec(proposer, 0..3), requests, covers, vec(node(), 0..3));
    parts.prop_map(|(time, proposers, requests, covers, nodes)| HubCheckpoint {
        time: Time(time),
        proposers,
        requests,
        covers,
        nodes,
    })
}

fn node() -> impl Strategy<Value = NodeCheckpoint> {
    ("[a-z0-9.-]{1,20}", any::<u128>(), any::<(u64, u64, bool)>(), 1u8..).prop_map(
        |(name, boot, (since, changed, is_live), record_version)| NodeCheckpoint {
            name: NodeName::new(&name).unwrap(),
            boot: BootId(boot),
            since: Offset(since),
            changed: Offset(changed),
            is_live,
            record_version,
        },
    )
}

fn message() -> impl Strategy<Value = MessageCheckpoint> {
    let sender = prop_oneof![
        Just(Sender::Server),
        (group(), option::of(any::<String>()))
            .prop_map(|(group, user)| Sender::Group { group, user_id: user.as_deref().map(UserId::new) }),
    ];
    let kinds = vec![PayloadKind::Text, PayloadKind::Json, PayloadKind::Binary, PayloadKind::Any];
    let metadata = vec("[a-z]{1,8}", 0..3).prop_map(|keys| {
        let mut metadata = MetadataBuilder::default();
        // A key that stands twice is refused, and what is there stays.
        for key in &keys {
            let _ = metadata.insert(key, "value");
        }
        metadata.build()
    });
    let expires_at = option::of(any::<u64>().prop_map(Time));
    (sender, select(kinds), vec(any::<u8>(), 0..40), metadata, expires_at).prop_map(
        |(sender, kind, bytes, metadata, expires_at)| {
            let payload = Payload { kind, bytes: bytes.into() };
            MessageCheckpoint { message: Message { sender, payload, metadata }, expires_at }
        },
    )
}

/// A session whose parts are all there, and its bytes as the module documents them.
#[test]
fn the_bytes_of_a_session_are_fixed() {
    let group = |name: &str| GroupName::new(name).unwrap();
    let session = SessionCheckpoint {
        identity: SessionIdentity {
            connection_id: ConnectionId::new("c1"),
            user_id: Some(UserId::new("u")),
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        join_leave: RulesCheckpoint { all: true, denied: vec![group("x")], ..RulesCheckpoint::default() },
        send: RulesCheckpoint::default(),
        groups: vec![group("g")],
        ack_window_ids: 3,
        executed: [(5, 1), (4, 2)]
            .map(|(ack_id, stored)| AckKey { ack_id, fingerprint: Fingerprint::from_log(stored) })
            .to_vec(),
        retention_seconds: 60,
        sequence_ids: SequenceIdsCheckpoint { last: 9, deliveries: 9, payload_bytes: 300 },
        unacknowledged: [(8, 1000, 0), (9, 1001, 1)]
            .map(|(id, offset, part)| (id, MessageRef { offset: Offset(offset), part }))
            .to_vec(),
        ending: Some(EndReason::Shed),
        state: None,
        boots: 0,
        number: Offset(300),
        hold: Hold::new(BootId(5), Offset(301)),
    };
    let fields: [&[u8]; 18] = [
        &[0x0a, 2, b'c', b'1'],
        &[0x12, 1, b'u'],
        &[0x18, 2],
        &[0x22, 5, 0x08, 1, 0x22, 1, b'x'],
        &[0x32, 1, b'g'],
        &[0x38, 3],
        // Zigzag: 5, then 1 less.
        &[0x42, 2, 10, 1],
        &[0x4a, 16, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        &[0x50, 60],
        &[0x58, 9],
        &[0x60, 9],
        &[0x68, 0xac, 0x02],
        &[0x72, 2, 8, 1],
        &[0x7a, 3, 0xe8, 0x07, 1],
        &[0x82, 0x01, 2, 0, 1],
        &[0x88, 0x01, 5],
        &[0xa8, 0x01, 0xac, 0x02],
        &[0xb8, 0x01, 0xad, 0x02],
    ];
    let boots = [0x1a, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let fields = fields.concat();
    let expected = [&[1, 0x0a, fields.len() as u8][..], &fields, &boots].concat();
    assert_eq!(ChunkCheckpoint { sessions: vec![session], untold: vec![] }.encode(), expected);
}

#[test]
fn another_version_is_refused_by_its_number() {
    for version in (0..=u8::MAX).filter(|version| !(1..=CHECKPOINT_VERSION).contains(version)) {
        let unknown = Err(CheckpointError::UnknownVersion(version));
        let stored = Bytes::copy_from_slice(&[version]);
        assert_eq!(ChunkCheckpoint::decode(stored.clone()), unknown);
        assert_eq!(MessageCheckpoint::decode(stored).map(|_| ChunkCheckpoint::default()), unknown);
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let base = StoredSession {
        subprotocol: 2,
        ack_window_ids: 1,
        last_sequence_id: 9,
        unacknowledged_ids: vec![9],
        unacknowledged_offsets: vec![1],
        executed_ack_ids: vec![1],
        executed_fingerprints: vec![1],
        ..StoredSession::default()
    };
    let read = |session: StoredSession| {
        ChunkCheckpoint::decode(encode(&StoredChunk {
            sessions: vec![session],
            untold: vec![],
            boots: vec![Bytes::from_static(&[0; 16])],
        }))
    };
    assert!(read(base.clone()).is_ok());
    for (broken, what) in [
        (StoredSession { subprotocol: 0, ..base.clone() }, "subprotocol"),
        (StoredSession { ack_window_ids: 0, ..base.clone() }, "ack window"),
        (StoredSession { executed_fingerprints: vec![], ..base.clone() }, "ack window"),
        (StoredSession { unacknowledged_offsets: vec![], ..base.clone() }, "list of messages"),
        (StoredSession { unacknowledged_parts: vec![1, 1], ..base.clone() }, "list of messages"),
        (StoredSession { last_sequence_id: 8, ..base.clone() }, "sequence id"),
        (
            StoredSession {
                unacknowledged_ids: vec![9, 0],
                unacknowledged_offsets: vec![1, 1],
                ..base.clone()
            },
            "sequence id",
        ),
        (StoredSession { ending: 99, ..base.clone() }, "reason"),
        (StoredSession { groups: vec![String::new()], ..base }, "group"),
    ] {
        assert_eq!(read(broken), Err(CheckpointError::Invalid(what)));
    }
    let hub = HubCheckpoint { covers: vec![Offset(1); usize::from(CHUNKS) - 1], ..HubCheckpoint::default() };
    assert_eq!(
        HubCheckpoint::decode(hub.encode(Offset(1)), Offset(1)),
        Err(CheckpointError::Invalid("list of chunks"))
    );
    assert_eq!(ChunkCheckpoint::decode(Bytes::new()), Err(CheckpointError::Empty));
}

#[test]
fn the_bytes_of_a_hub_are_fixed() {
    let hub = HubCheckpoint {
        time: Time(5),
        proposers: Vec::new(),
        requests: RequestsCheckpoint {
            plain: RequestNumbers { first: 1, next: 300 },
            repeatable: RequestNumbers { first: 0, next: 2 },
            forgotten_first_sent: Some(5),
        },
        covers: vec![Offset(7); usize::from(CHUNKS)],
        nodes: Vec::new(),
    };
    let expected = [
        &[1, 0x08, 5][..],
        &[0x1a, 0x80, 0x08],
        &[0; CHUNKS as usize],
        &[0x20, 1],
        &[0x28, 0xac, 0x02],
        &[0x38, 2],
        &[0x40, 5],
    ];
    assert_eq!(hub.encode(Offset(7)), expected.concat());
}

#[test]
fn the_bytes_of_what_event_handlers_take_part_in_are_fixed() {
    let empty = StoredSession { subprotocol: 3, ..StoredSession::default() };
    let mut session = empty.read(&Boots(vec![BootId(5)])).unwrap();
    session.state = Some(HandlerState(Bytes::from_static(b"s")));
    session.identity.custom_subprotocol = Some("p".to_owned());
    session.boots = 2;
    let untold = Disconnected {
        subject: EventSubject {
            identity: SessionIdentity {
                connection_id: ConnectionId::new("c"),
                user_id: Some(UserId::new("u")),
                subprotocol: Subprotocol::JsonReliable,
                custom_subprotocol: None,
            },
            state: Some(HandlerState::default()),
        },
        number: 3,
        time: Time(300),
        reason: "r".to_owned(),
    };
    let session_fields = [&[0x18, 3][..], &[0x92, 0x01, 1, b's'], &[0x9a, 0x01, 1, b'p'], &[0xa0, 0x01, 2]];
    let untold_fields = [
        &[0x0a, 1, b'c'][..],
        &[0x12, 1, b'u'],
        &[0x18, 2],
        &[0x2a, 0],
        &[0x30, 3],
        &[0x38, 0xac, 0x02],
        &[0x42, 1, b'r'],
    ];
    let (session_fields, untold_fields) = (session_fields.concat(), untold_fields.concat());
    let expected = [
        &[1, 0x0a, session_fields.len() as u8][..],
        &session_fields,
        &[0x12, untold_fields.len() as u8],
        &untold_fields,
        &[0x1a, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5],
    ];
    let chunk = ChunkCheckpoint { sessions: vec![session], untold: vec![untold] };
    assert_eq!(chunk.encode(), expected.concat());
}

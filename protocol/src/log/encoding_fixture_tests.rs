//! Records as they are stored for ever, and what each says.

use std::path::PathBuf;

use super::*;

/// Where those of a version are.
pub(super) fn fixtures(version: u8) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/records/v{version}"))
}

/// Reads hexadecimal bytes; what follows a `#` says what they are.
pub(super) fn fixture(version: u8, name: &str) -> Bytes {
    let text = std::fs::read_to_string(fixtures(version).join(name).with_extension("hex")).unwrap();
    let code = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    code.flat_map(str::split_whitespace).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// What each fixture says.
pub(super) fn all() -> Vec<(&'static str, Record)> {
    [of_clients(), of_the_application(), of_event_handlers(), of_owners(), of_nodes()].concat()
}

/// What clients do, and how sessions begin and end.
fn of_clients() -> Vec<(&'static str, Record)> {
    let c1 = || ConnectionId::new("c-1");
    let lobby = || group_name("lobby");
    let bare = |body| fixed_record(2, 1, None, None, body);
    let metadata = Metadata::new([("trace", "a1"), ("id", "7")]).unwrap();
    let opened = Opened {
        identity: SessionIdentity {
            connection_id: c1(),
            user_id: Some(UserId::new("ada")),
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        roles: vec!["webpubsub.sendToGroup".to_owned(), "webpubsub.joinLeaveGroups.a.*".to_owned()],
        groups: vec![lobby(), group_name("grün")],
        ack_window_ids: 10_000,
        retention_seconds: 60,
        state: None,
    };
    let mut opened = fixed_record(300, 299, None, None, Body::Opened(opened));
    opened.key.boot.shard = 3;
    let opened_bare = Opened {
        identity: SessionIdentity {
            connection_id: ConnectionId::new("c-2"),
            user_id: None,
            subprotocol: Subprotocol::Raw,
            custom_subprotocol: None,
        },
        roles: vec![],
        groups: vec![],
        ack_window_ids: 0,
        retention_seconds: 0,
        state: None,
    };
    let published = Published {
        publisher: Some(c1()),
        user_id: Some(UserId::new("ada")),
        groups: vec![lobby(), group_name("a.b")],
        no_echo: true,
        ttl_seconds: 300,
        payload: Payload { kind: PayloadKind::Json, bytes: Bytes::from_static(b"{\"n\": 1.0}") },
        metadata,
    };
    let published_bare = Published {
        publisher: None,
        user_id: None,
        groups: vec![lobby()],
        no_echo: false,
        ttl_seconds: 0,
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::new() },
        metadata: Metadata::default(),
    };
    let several = vec![group_name("a"), group_name("b"), group_name("c.d")];
    vec![
        (
            "booted",
            fixed_record(0, 0, None, None, Body::Booted { takes_disconnected: false, ends_all: false }),
        ),
        ("opened", opened),
        ("opened-bare", fixed_record(1, 1, None, None, Body::Opened(opened_bare))),
        (
            "joined",
            fixed_record(
                2,
                1,
                None,
                Some((0, 0x1122_3344_5566_7788)),
                Body::Joined { connection_id: c1(), groups: vec![lobby()] },
            ),
        ),
        (
            "joined-several",
            fixed_record(2, 1, Some(17), None, Body::Joined { connection_id: c1(), groups: several }),
        ),
        ("left", bare(Body::Left { connection_id: c1(), groups: vec![lobby()] })),
        (
            "published",
            fixed_record(
                70_000,
                69_990,
                Some((1 << 53) - 1),
                Some((u64::MAX, u64::MAX)),
                Body::Published(published),
            ),
        ),
        ("published-bare", bare(Body::Published(published_bare))),
        (
            "granted",
            bare(Body::Granted { connection_id: c1(), permission: Permission::SendToGroup, group: lobby() }),
        ),
        (
            "revoked",
            bare(Body::Revoked {
                connection_id: c1(),
                permission: Permission::JoinLeaveGroup,
                group: lobby(),
            }),
        ),
        (
            "ended",
            bare(Body::Ended {
                connection_id: c1(),
                reason: EndReason::Expired,
                disconnected: None,
                attached: None,
            }),
        ),
    ]
}

/// What the application asks for.
fn of_the_application() -> Vec<(&'static str, Record)> {
    let bare = |body| fixed_record(2, 1, None, None, body);
    let metadata = Metadata::new([("trace", "a1")]).unwrap();
    let selection = Selection {
        audience: Audience::Group(group_name("lobby")),
        excluded: vec![ConnectionId::new("c-1"), ConnectionId::new("c,2")],
        filter: Some(Filter::parse("userId eq null").unwrap()),
    };
    let sent = Sent {
        selection,
        ttl_seconds: 300,
        payload: Payload { kind: PayloadKind::Json, bytes: Bytes::from_static(b"{\"n\": 1.0}") },
        metadata,
    };
    let mut sent = bare(Body::Sent(sent));
    sent.key.request = Some(IdempotencyKey {
        name: RequestName {
            id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
            fingerprint: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        },
        window_seconds: 300,
        window_requests: 100_000,
        first_sent: None,
    });
    let sent_bare = Sent {
        selection: Selection::whole(Audience::All),
        ttl_seconds: 0,
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::new() },
        metadata: Metadata::default(),
    };
    let user = || Selection::whole(Audience::User(UserId::new("ada")));
    let connection = || Selection::whole(Audience::Connection(ConnectionId::new("c-1")));
    let groups = vec![group_name("lobby"), group_name("a.b")];
    vec![
        ("sent", sent),
        ("sent-bare", bare(Body::Sent(sent_bare))),
        ("added", bare(Body::Added { selection: user(), groups: groups.clone() })),
        ("removed", bare(Body::Removed { selection: connection(), groups })),
        ("removed-from-all", bare(Body::Removed { selection: user(), groups: Vec::new() })),
        (
            "closed",
            bare(Body::Closed {
                selection: connection(),
                reason: "maintenance".to_owned(),
                takes_disconnected: false,
            }),
        ),
    ]
}

/// What event handlers take part in.
fn of_event_handlers() -> Vec<(&'static str, Record)> {
    let c1 = || ConnectionId::new("c-1");
    let bare = |body| fixed_record(2, 1, None, None, body);
    let state = || Some(HandlerState(Bytes::from_static(b"eyJhIjoxfQ==")));
    let metadata = Metadata::new([("trace", "a1")]).unwrap();
    let opened = Opened {
        identity: SessionIdentity {
            connection_id: c1(),
            user_id: None,
            subprotocol: Subprotocol::Raw,
            custom_subprotocol: Some("chat.v1".to_owned()),
        },
        roles: vec![],
        groups: vec![],
        ack_window_ids: 10_000,
        retention_seconds: 60,
        state: state(),
    };
    let reply = HandlerReply {
        payload: Payload { kind: PayloadKind::Json, bytes: Bytes::from_static(b"{\"n\": 1.0}") },
        metadata,
    };
    let handled = Body::Handled { connection_id: c1(), reply: Some(reply), state: state() };
    let handled = fixed_record(2, 1, None, Some((7, 0x1122_3344_5566_7788)), handled);
    let emptied = Some(HandlerState::default());
    let selection = Selection::whole(Audience::All);
    vec![
        (
            "booted-telling",
            fixed_record(0, 0, None, None, Body::Booted { takes_disconnected: true, ends_all: false }),
        ),
        ("opened-with-state", bare(Body::Opened(opened))),
        (
            "ended-telling",
            bare(Body::Ended {
                connection_id: c1(),
                reason: EndReason::Expired,
                disconnected: Some(3),
                attached: None,
            }),
        ),
        ("closed-telling", bare(Body::Closed { selection, reason: String::new(), takes_disconnected: true })),
        ("handled", handled),
        ("handled-bare", bare(Body::Handled { connection_id: c1(), reply: None, state: emptied })),
        ("told", bare(Body::Told { connection_ids: vec![c1(), ConnectionId::new("c-2")] })),
    ]
}

/// What owners of sessions write by themselves.
fn of_owners() -> Vec<(&'static str, Record)> {
    let mark = |session, sequence_id| SequenceMark { session: Offset(session), sequence_id };
    let marks = vec![mark(3, 17), mark(300, 0), mark(301, 1 << 40)];
    let booted = Body::Booted { takes_disconnected: true, ends_all: true };
    let mut refused = fixed_record(2, 1, None, None, Body::Refused(Refusal::UnknownUser));
    refused.key.request = Some(IdempotencyKey {
        name: RequestName {
            id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
            fingerprint: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        },
        window_seconds: 300,
        window_requests: 100_000,
        first_sent: Some(1_764_284_400),
    });
    vec![
        ("acked", fixed_record(2, 1, None, None, Body::Acked { marks })),
        ("booted-copy", fixed_record(0, 0, None, None, booted)),
        ("refused", refused),
    ]
}

/// What gateways write that share a log.
fn of_nodes() -> Vec<(&'static str, Record)> {
    let (c1, c2) = (ConnectionId::new("c-1"), ConnectionId::new("c-2"));
    let bare = |body| fixed_record(2, 1, None, None, body);
    let started = NodeStarted {
        node: NodeName::new("gw-1").unwrap(),
        seen: Offset(300),
        record_version: 2,
        takes_disconnected: true,
    };
    let gone = NodeGone {
        boot: BootId(0xffee_ddcc_bbaa_9988_7766_5544_3322_1100),
        is_stopped: true,
        takes_disconnected: true,
    };
    let release = |connection_id: &ConnectionId, attached| Release {
        connection_id: connection_id.clone(),
        attached: Offset(attached),
    };
    let releases = vec![release(&c1, 300), release(&c2, 310)];
    let subprotocol = Subprotocol::JsonReliable;
    let ended = Body::Ended {
        connection_id: c1.clone(),
        reason: EndReason::Expired,
        disconnected: None,
        attached: Some(Offset(300)),
    };
    vec![
        ("node-started", fixed_record(0, 0, None, None, Body::NodeStarted(started))),
        ("node-gone", bare(Body::NodeGone(gone))),
        ("attached", bare(Body::Attached { connection_id: c1, subprotocol })),
        ("released", bare(Body::Released { releases })),
        ("ended-attachment", bare(ended)),
    ]
}

pub(super) fn fixed_record(
    counter: u64,
    settled_below: u64,
    sequence_ack: Option<u64>,
    ack: Option<(u64, u64)>,
    body: Body,
) -> Record {
    let boot = BootId(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
    let ack =
        ack.map(|(ack_id, fingerprint)| AckKey { ack_id, fingerprint: Fingerprint::from_log(fingerprint) });
    let key = Key { boot: BootKey { boot, shard: 0, counter, settled_below }, ack, request: None };
    Record { key, time: Time(1_764_284_400_123), sequence_ack, body }
}

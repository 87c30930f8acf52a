//! What the golden vectors can't show: typed values and errors, who owns the memory, and limits.

use bytes::Bytes;

use super::{decode_downstream, decode_upstream, encode_upstream};
use crate::wire::limits::{CLIENT_OPERATION_ID_BYTES_MAX, JSON_DEPTH_MAX};
use crate::wire::{
    AckError, DecodeError, Downstream, ErrorName, EventName, GroupName, Metadata, NameError, Payload,
    PayloadKind, Received, Upstream,
};

fn send(kind: PayloadKind, bytes: impl Into<Bytes>) -> Upstream {
    Upstream::SendToGroup {
        group: GroupName::new("lobby").unwrap(),
        payload: Payload { kind, bytes: bytes.into() },
        metadata: Metadata::default(),
        ack_id: None,
        no_echo: false,
        ttl_seconds: 0,
    }
}

fn payload_of(frame: &Bytes) -> Bytes {
    match decode_upstream(frame) {
        Ok(Upstream::SendToGroup { payload, .. }) => payload.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_name_what_is_wrong() {
    for (frame, error) in [
        (&b"\xff"[..], DecodeError::NotAMessage),
        (b"", DecodeError::UnknownType),
        (b"\x62\x00", DecodeError::UnknownType),
        (b"\x32\x00", DecodeError::Name(NameError::Blank)),
        (b"\x2a\x07\x0a\x011\x12\x02\x0a\x00", DecodeError::Name(EventName::new("1").unwrap_err())),
        (b"\x0a\x03\x0a\x01g", DecodeError::Property("data")),
        (b"\x0a\x0a\x0a\x01g\x1a\x02\x0a\x00\x28\xad\x02", DecodeError::Property("ttl_seconds")),
    ] {
        assert_eq!(decode_upstream(&Bytes::from_static(frame)), Err(error), "{frame:02x?}");
    }
}

#[test]
fn invocation_and_stream_ids_are_bounded() {
    let cancel = |bytes: usize| Upstream::CancelInvocation { invocation_id: "1".repeat(bytes) };
    let end = |bytes: usize| Upstream::Stream { stream_id: "1".repeat(bytes), group: None, ack_id: None };
    for longest in [cancel(CLIENT_OPERATION_ID_BYTES_MAX), end(CLIENT_OPERATION_ID_BYTES_MAX)] {
        assert_eq!(decode_upstream(&encode_upstream(&longest)), Ok(longest));
    }
    for (too_long, property) in [
        (cancel(CLIENT_OPERATION_ID_BYTES_MAX + 1), "invocation_id"),
        (end(CLIENT_OPERATION_ID_BYTES_MAX + 1), "stream_id"),
    ] {
        assert_eq!(decode_upstream(&encode_upstream(&too_long)), Err(DecodeError::Property(property)));
    }
}

#[test]
fn json_that_is_too_deep_for_json_receivers_is_refused() {
    let nested =
        |depth: usize| send(PayloadKind::Json, format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    let deepest = nested(JSON_DEPTH_MAX - 1);
    assert_eq!(decode_upstream(&encode_upstream(&deepest)), Ok(deepest));
    assert_eq!(
        decode_upstream(&encode_upstream(&nested(JSON_DEPTH_MAX))),
        Err(DecodeError::Property("data"))
    );
}

#[test]
fn large_payloads_share_the_frame_and_others_do_not_keep_it_alive() {
    let shares = |frame: &Bytes| frame.as_ptr_range().contains(&payload_of(frame).as_ptr());
    for kind in [PayloadKind::Text, PayloadKind::Binary] {
        assert!(!shares(&encode_upstream(&send(kind, vec![b'x'; 4096]))));
        let mut frame = encode_upstream(&send(kind, vec![b'x'; 4097])).to_vec();
        assert!(shares(&Bytes::from(frame.clone())));
        // An unknown field, number 1000, of 8192 bytes.
        frame.extend_from_slice(b"\xc2\x3e\x80\x40");
        frame.resize(frame.len() + 8192, b'x');
        assert!(!shares(&Bytes::from(frame)));
    }
}

#[test]
fn metadata_alone_stands_beside_an_empty_text() {
    let metadata = Metadata::new([("k", "v")]).unwrap();
    let frame = Bytes::from_static(b"\x2a\x0b\x0a\x01e\x22\x06\x0a\x01k\x12\x01v");
    assert_eq!(
        decode_upstream(&frame),
        Ok(Upstream::Event {
            event: EventName::new("e").unwrap(),
            payload: Payload { kind: PayloadKind::Text, bytes: Bytes::new() },
            metadata,
            ack_id: None
        })
    );
}

#[test]
fn clients_pass_over_what_they_do_not_know() {
    for frame in [
        &b""[..],
        b"\x1a\x00",
        b"\x32\x02\x10\x01",
        b"\x52\x00",
        b"\xaa\x06\x00",
        b"\x12\x0c\x0a\x04moon\x1a\x04\x0a\x02hi",
        b"\x2a\x05\x0a\x011\x10\x01",
    ] {
        assert_eq!(decode_downstream(&Bytes::from_static(frame)), Ok(Received::Unknown), "{frame:02x?}");
    }
    assert_eq!(decode_downstream(&Bytes::from_static(b"\xff")), Err(DecodeError::NotAMessage));
}

#[test]
fn clients_take_an_unknown_error_name_for_a_failure_that_may_pass() {
    let error = AckError { name: ErrorName::InternalServerError, message: "m".into() };
    assert_eq!(
        decode_downstream(&Bytes::from_static(b"\x0a\x0e\x08\x01\x1a\x0a\x0a\x05Later\x12\x01m")),
        Ok(Received::Control(Downstream::Ack { ack_id: 1, error: Some(error) }))
    );
}

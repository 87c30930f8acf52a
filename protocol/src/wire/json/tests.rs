//! What the golden vectors can't show: typed values and errors, who owns the memory, and depth. Facts about bytes on
//! the wire are golden vectors.

use bytes::Bytes;

use super::{decode_downstream, decode_upstream};
use crate::wire::limits::{CLIENT_OPERATION_ID_BYTES_MAX, GROUP_NAME_UTF16_MAX, JSON_DEPTH_MAX};
use crate::wire::{
    AckError, DecodeError, Downstream, ErrorName, EventName, GroupName, Metadata, MetadataError, NameError,
    Payload, PayloadKind, Received, Upstream,
};

fn up(text: &str) -> Result<Upstream, DecodeError> {
    decode_upstream(&Bytes::copy_from_slice(text.as_bytes()))
}

fn down(text: &str) -> Result<Received, DecodeError> {
    decode_downstream(&Bytes::copy_from_slice(text.as_bytes()))
}

fn payload(kind: PayloadKind, bytes: &'static [u8]) -> Payload {
    Payload { kind, bytes: Bytes::from_static(bytes) }
}

fn payload_of(frame: &Bytes) -> Bytes {
    match decode_upstream(frame) {
        Ok(Upstream::SendToGroup { payload, .. }) => payload.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn send_to_group_has_all_its_parts() {
    let metadata = Metadata::new([("trace", "a1")]).unwrap();
    assert_eq!(
        up(concat!(
            r#"{"ttlSeconds":60,"noEcho":true,"metadata":{"trace":"a1"},"data":{"n" : 1.0},"#,
            r#""dataType":"json","ackId":3,"group":"lobby","type":"sendToGroup"}"#
        )),
        Ok(Upstream::SendToGroup {
            group: GroupName::new("lobby").unwrap(),
            payload: payload(PayloadKind::Json, br#"{"n" : 1.0}"#),
            metadata,
            ack_id: Some(3),
            no_echo: true,
            ttl_seconds: 60,
        })
    );
}

#[test]
fn payload_kinds_become_bytes() {
    for (fields, expected) in [
        (r#""data":"é\n""#, payload(PayloadKind::Json, "\"é\\n\"".as_bytes())),
        (r#""dataType":"text","data":"é\n""#, payload(PayloadKind::Text, "é\n".as_bytes())),
        (
            r#""dataType":"Binary","data":"AAH\u002f\u002b\/8=""#,
            payload(PayloadKind::Binary, b"\x00\x01\xff\xfb\xff"),
        ),
        (r#""dataType":"protobuf","data":"CgASAA==""#, payload(PayloadKind::Any, b"\x0a\x00\x12\x00")),
        (r#""metadata":{}"#, payload(PayloadKind::Text, b"")),
    ] {
        let decoded = up(&format!(r#"{{"type":"event","event":"e",{fields}}}"#));
        let event = EventName::new("e").unwrap();
        let metadata = Metadata::default();
        assert_eq!(
            decoded,
            Ok(Upstream::Event { event, payload: expected, metadata, ack_id: None }),
            "{fields}"
        );
    }
}

#[test]
fn errors_name_what_is_wrong() {
    use DecodeError::{Name, NotAMessage, Property, UnknownType};
    for (text, error) in [
        ("", NotAMessage),
        ("[]", NotAMessage),
        (r#"{"type":7}"#, NotAMessage),
        (r#"{"type":"nope"}"#, UnknownType),
        (r#"{"type":"ack","ackId":1,"sequenceId":2}"#, UnknownType),
        (r#"{"type":"joinGroup"}"#, Property("group")),
        (r#"{"type":"joinGroup","group":" "}"#, Name(NameError::Blank)),
        (r#"{"type":"joinGroup","group":"a","ackId":"1"}"#, Property("ackId")),
        (r#"{"type":"event","event":"1st","data":1}"#, Name(EventName::new("1st").unwrap_err())),
        (r#"{"type":"event","event":"e"}"#, Property("data")),
        (r#"{"type":"event","event":"e","data":null}"#, Property("data")),
        (r#"{"type":"event","event":"e","dataType":"xml","data":1}"#, Property("dataType")),
        (r#"{"type":"sendToGroup","group":"a","data":1,"ttlSeconds":301}"#, Property("ttlSeconds")),
        (r#"{"type":"sequenceAck"}"#, Property("sequenceId")),
        (
            r#"{"type":"event","event":"e","metadata":{"k":"1","k":"2"}}"#,
            DecodeError::Metadata(MetadataError::Repeated),
        ),
    ] {
        assert_eq!(up(text), Err(error), "{text}");
    }
}

#[test]
fn group_length_counts_utf16_units_after_unescaping() {
    let join = |name: &str| up(&format!(r#"{{"type":"joinGroup","group":"{name}"}}"#));
    assert!(join(&r"\ud83d\ude00".repeat(GROUP_NAME_UTF16_MAX / 2)).is_ok());
    assert!(join(&"\u{1F600}".repeat(GROUP_NAME_UTF16_MAX / 2)).is_ok());
    assert!(join(&"a".repeat(GROUP_NAME_UTF16_MAX)).is_ok());
    for too_long in [
        r"\ud83d\ude00".repeat(GROUP_NAME_UTF16_MAX / 2) + "x",
        "\u{1F600}".repeat(GROUP_NAME_UTF16_MAX / 2) + "x",
        "a".repeat(GROUP_NAME_UTF16_MAX + 1),
    ] {
        assert_eq!(join(&too_long), Err(DecodeError::Name(NameError::TooLong)));
    }
}

#[test]
fn invocation_and_stream_ids_are_bounded() {
    for (kind, property) in [("cancelInvocation", "invocationId"), ("streamEnd", "streamId")] {
        let request = |id: &str| up(&format!(r#"{{"type":"{kind}","{property}":"{id}"}}"#));
        assert!(request(&"1".repeat(CLIENT_OPERATION_ID_BYTES_MAX)).is_ok());
        let too_long = "1".repeat(CLIENT_OPERATION_ID_BYTES_MAX + 1);
        assert_eq!(request(&too_long), Err(DecodeError::Property(property)));
        assert_eq!(request(""), Err(DecodeError::Property(property)));
    }
}

#[test]
fn depth_is_bounded_wherever_it_stands() {
    let message = |property: &str, depth: usize| {
        let (open, close) = (r#"[{"a":"#.repeat(depth / 2), "}]".repeat(depth / 2));
        let (odd_open, odd_close) = if depth % 2 == 1 { ("[", "]") } else { ("", "") };
        up(&format!(
            r#"{{"type":"sendToGroup","group":"a","data":1,"{property}":{odd_open}{open}0{close}{odd_close}}}"#
        ))
    };
    for property in ["data", "unknown"] {
        // The message's own object is one level.
        assert!(message(property, JSON_DEPTH_MAX - 1).is_ok(), "{property}");
        assert_eq!(message(property, JSON_DEPTH_MAX), Err(DecodeError::NotAMessage), "{property}");
        assert_eq!(message(property, 300_000), Err(DecodeError::NotAMessage), "{property}");
    }
    assert_eq!(up(&"[".repeat(1_000_000)), Err(DecodeError::NotAMessage));
    assert_eq!(up(&r#"{"metadata":"#.repeat(100_000)), Err(DecodeError::NotAMessage));
}

#[test]
fn large_payloads_share_the_frame_and_others_do_not_keep_it_alive() {
    let shares = |frame: &Bytes| frame.as_ptr_range().contains(&payload_of(frame).as_ptr());
    let frame = |kind: &str, content_bytes: usize, extra_bytes: usize| {
        let (content, extra) = ("x".repeat(content_bytes), "x".repeat(extra_bytes));
        Bytes::from(format!(
            r#"{{"type":"sendToGroup","group":"a","dataType":"{kind}","data":"{content}","extra":"{extra}"}}"#
        ))
    };
    assert!(!shares(&frame("text", 4096, 0)));
    assert!(shares(&frame("text", 4097, 0)));
    assert!(!shares(&frame("text", 4097, 8192)));
    assert!(!shares(&frame("json", 4094, 0)), "two quotes stand around the text");
    assert!(shares(&frame("json", 4095, 0)));
    assert!(!shares(&frame("json", 4095, 8192)));
}

#[test]
fn any_bytes_but_utf8_json_are_refused() {
    for bytes in
        [&b"\xff"[..], b"{\"type\":\"ping\",\"x\":\"\xc3\x28\"}", b"\xef\xbb\xbf{\"type\":\"ping\"}", b"\0"]
    {
        let frame = Bytes::copy_from_slice(bytes);
        assert_eq!(decode_upstream(&frame), Err(DecodeError::NotAMessage));
        assert_eq!(decode_downstream(&frame), Err(DecodeError::NotAMessage));
    }
}

#[test]
fn white_space_may_stand_around_a_message() {
    assert_eq!(up(" \r\n\t{\"type\":\"ping\"}\t\r\n "), Ok(Upstream::Ping));
    assert_eq!(up("\u{a0}{\"type\":\"ping\"}"), Err(DecodeError::NotAMessage));
}

#[test]
fn clients_pass_over_what_they_do_not_know() {
    for text in [
        r#"{"type":"groupStateUpdate","group":"a","items":[]}"#,
        r#"{"type":"system","event":"renamed"}"#,
        r#"{"type":"message","from":"moon","dataType":"text","data":""}"#,
        r#"{"type":"invokeResponse","invocationId":"1","success":true}"#,
    ] {
        assert_eq!(down(text), Ok(Received::Unknown), "{text}");
    }
}

#[test]
fn clients_take_an_unknown_error_name_for_a_failure_that_may_pass() {
    let error = AckError { name: ErrorName::InternalServerError, message: "later".into() };
    assert_eq!(
        down(r#"{"type":"ack","ackId":1,"success":false,"error":{"name":"Timeout","message":"later"}}"#),
        Ok(Received::Control(Downstream::Ack { ack_id: 1, error: Some(error) }))
    );
}

#[test]
fn clients_take_no_user_in_any_form() {
    for user in ["", r#","userId":null"#, r#","userId":"""#] {
        let text = format!(r#"{{"type":"system","event":"connected","connectionId":"c"{user}}}"#);
        assert!(
            matches!(down(&text), Ok(Received::Control(Downstream::Connected { user_id: None, .. }))),
            "{text}"
        );
    }
}

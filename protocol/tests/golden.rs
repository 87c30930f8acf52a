//! Golden vectors: bytes on the wire in both directions, and frames that must be refused with their close codes.
//!
//! The files in `golden/` explain their own form at the top. Blank lines and lines that begin with `#` say nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code outside the test functions themselves")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use oncewire_protocol::wire::{
    Encoding, FrameKind, GroupName, Message, Received, Sender, SequenceId, Subprotocol, Upstream, UserId,
    decode_downstream, decode_upstream, encode_downstream, encode_message, encode_upstream, raw,
};

type Check = fn(&str);

const FILES: [(&str, Check); 4] = [
    ("json-upstream.txt", json_upstream),
    ("json-upstream-refused.txt", json_upstream_refused),
    ("json-downstream.txt", json_downstream),
    ("delivery.txt", delivery),
];

#[test]
fn every_vector_holds() {
    for (name, check) in FILES {
        println!("{name}");
        check(&std::fs::read_to_string(directory().join(name)).unwrap());
    }
}

#[test]
fn every_file_is_used() {
    let stored: BTreeSet<String> = std::fs::read_dir(directory())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let used: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(stored, used);
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn json_upstream(vectors: &str) {
    for (line, received, expected) in received_and_expected(vectors) {
        let frame = Frame::text(received);
        let request = frame.decode_upstream(Encoding::Json).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(utf8(&encode_upstream(Encoding::Json, &request)), expected, "{line}");
        assert_eq!(Frame::text(expected).decode_upstream(Encoding::Json), Ok(request), "{line}");
    }
}

fn json_upstream_refused(vectors: &str) {
    for (line, vector) in lines(vectors) {
        let (code, frame) = vector.split_once(' ').unwrap();
        match Frame::parse(frame).decode_upstream(Encoding::Json) {
            Ok(request) => panic!("{line}: taken for {request:?}"),
            Err(error) => {
                assert_eq!((error.close(Encoding::Json).code as u16).to_string(), code, "{line}: {error}")
            }
        }
    }
}

fn json_downstream(vectors: &str) {
    for (line, received, expected) in received_and_expected(vectors) {
        let frame = Frame::text(received);
        let mut sent = BytesMut::new();
        match decode_downstream(Encoding::Json, frame.kind, &frame.bytes) {
            Ok(Received::Message { message, sequence_id }) => {
                encode_message(Encoding::Json, &message).write_frame(sequence_id, &mut sent);
            }
            Ok(Received::Control(control)) => encode_downstream(Encoding::Json, &control, &mut sent),
            other => panic!("{line}: {other:?}"),
        }
        assert_eq!(Frame::read(&sent), Frame::text(expected), "{line}");
    }
}

fn delivery(vectors: &str) {
    const SEQUENCE_ID: SequenceId = 12;
    let mut message = None;
    for (line, vector) in lines(vectors) {
        let (kind, rest) = vector.split_once(' ').unwrap();
        if kind == "publish" {
            let (encoding, frame) = rest.split_once(' ').unwrap();
            message = Some(published(encoding, &Frame::parse(frame)));
            continue;
        }
        let (name, reliable) = kind.strip_suffix(".reliable").map_or((kind, false), |name| (name, true));
        let body = encode_message(encoding(name), message.as_ref().unwrap());
        let mut sent = BytesMut::new();
        body.write_frame(reliable.then_some(SEQUENCE_ID), &mut sent);
        assert_eq!(Frame::read(&sent), Frame::parse(rest.trim_start()), "{line}");
    }
}

/// What becomes of a publish; raw clients publish to the group `raw-group`.
fn published(encoding_name: &str, frame: &Frame) -> Message {
    let request = match encoding(encoding_name) {
        Encoding::Raw => {
            raw::decode_send_to_group(GroupName::new("raw-group").unwrap(), false, frame.kind, &frame.bytes)
        }
        encoding => frame.decode_upstream(encoding),
    };
    match request {
        Ok(Upstream::SendToGroup { group, payload, metadata, .. }) => {
            Message { sender: Sender::Group { group, user_id: Some(UserId::new("ada")) }, payload, metadata }
        }
        other => panic!("{other:?}"),
    }
}

fn encoding(name: &str) -> Encoding {
    match name {
        "raw" => Subprotocol::Raw.encoding(),
        name => Subprotocol::from_name(&format!("{name}.webpubsub.azure.v1")).unwrap().encoding(),
    }
}

/// One WebSocket message. In the files: `text …` as it is, `text-bytes …` and `binary-bytes …` in hexadecimal.
#[derive(PartialEq, Eq)]
struct Frame {
    kind: FrameKind,
    bytes: Bytes,
}

impl Frame {
    fn text(text: &str) -> Self {
        Self { kind: FrameKind::Text, bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }

    fn parse(vector: &str) -> Self {
        let (form, content) = vector.split_once(' ').unwrap_or((vector, ""));
        let kind = match form {
            "text" => return Self::text(content),
            "text-bytes" => FrameKind::Text,
            "binary-bytes" => FrameKind::Binary,
            _ => panic!("no form of a frame: {form}"),
        };
        let digits: Vec<u8> = content.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        Self { kind, bytes: digits.chunks(2).map(byte).collect() }
    }

    /// Takes apart a whole frame from server to client: final, not masked, its length in the shortest form.
    fn read(sent: &[u8]) -> Self {
        let kind = match sent[0] {
            0x81 => FrameKind::Text,
            0x82 => FrameKind::Binary,
            other => panic!("no data frame: {other:#x}"),
        };
        let (length, payload) = match sent[1] {
            126 => (usize::from(u16::from_be_bytes([sent[2], sent[3]])), &sent[4..]),
            127 => panic!("no vector is that long"),
            length => (usize::from(length), &sent[2..]),
        };
        assert_eq!(payload.len(), length);
        assert_eq!(sent[1] == 126, length > 125);
        Self { kind, bytes: Bytes::copy_from_slice(payload) }
    }

    fn decode_upstream(&self, encoding: Encoding) -> Result<Upstream, oncewire_protocol::wire::DecodeError> {
        decode_upstream(encoding, self.kind, &self.bytes)
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind, std::str::from_utf8(&self.bytes)) {
            (FrameKind::Text, Ok(text)) => write!(f, "text {text}"),
            (kind, _) => write!(f, "{kind:?} {:02x?}", &self.bytes[..]),
        }
    }
}

/// The vectors of a file, each with where it stands.
fn lines(vectors: &str) -> impl Iterator<Item = (String, &str)> {
    vectors
        .split('\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| (format!("line {}: {line}", index + 1), line))
}

/// Each line `> …` with the line `= …` below it, or with itself where there is none.
fn received_and_expected(vectors: &str) -> Vec<(String, &str, &str)> {
    let mut pairs = Vec::new();
    for (line, vector) in lines(vectors) {
        match vector.split_at(2) {
            ("> ", received) => pairs.push((line, received, received)),
            ("= ", expected) => pairs.last_mut().unwrap().2 = expected,
            _ => panic!("{line}: neither `> …` nor `= …`"),
        }
    }
    pairs
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

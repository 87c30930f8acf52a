//! Golden vectors: bytes on the wire in both directions, and frames that must be refused with their close codes.
//!
//! The files in `golden/` explain their own form at the top. Blank lines and lines that begin with `#` say nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code outside the test functions themselves")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use oncewire_protocol::wire::raw::RawTarget;
use oncewire_protocol::wire::{
    Encoding, FrameKind, GroupName, Message, Received, Sender, SequenceId, Subprotocol, Upstream, UserId,
    decode_downstream, decode_upstream, encode_downstream, encode_message, encode_upstream, raw,
};

type Check = fn(&str);

const FILES: [(&str, Check); 7] = [
    ("json-upstream.txt", json_upstream),
    ("json-upstream-refused.txt", |vectors| upstream_refused(Encoding::Json, vectors)),
    ("json-downstream.txt", json_downstream),
    ("protobuf-upstream.txt", protobuf_upstream),
    ("protobuf-upstream-refused.txt", |vectors| upstream_refused(Encoding::Protobuf, vectors)),
    ("protobuf-downstream.txt", protobuf_downstream),
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
    for Vector { line, received, meaning, .. } in sections(vectors) {
        let meaning = meaning.unwrap_or(received);
        let request = upstream(Encoding::Json, &Frame::text(received), &line);
        assert_eq!(utf8(&encode_upstream(Encoding::Json, &request)), meaning, "{line}");
        assert_eq!(upstream(Encoding::Json, &Frame::text(meaning), &line), request, "{line}");
    }
}

fn protobuf_upstream(vectors: &str) {
    for Vector { line, received, meaning, encoded } in sections(vectors) {
        let request = upstream(Encoding::Protobuf, &Frame::binary(received), &line);
        assert_eq!(utf8(&encode_upstream(Encoding::Json, &request)), meaning.unwrap(), "{line}");
        let expected = Frame::binary(encoded.unwrap_or(received));
        assert_eq!(
            Frame::new(FrameKind::Binary, &encode_upstream(Encoding::Protobuf, &request)),
            expected,
            "{line}"
        );
    }
}

fn upstream_refused(encoding: Encoding, vectors: &str) {
    for (line, vector) in lines(vectors) {
        let (code, frame) = vector.split_once(' ').unwrap();
        let frame = Frame::parse(frame);
        match decode_upstream(encoding, frame.kind, &frame.bytes) {
            Ok(request) => panic!("{line}: taken for {request:?}"),
            Err(error) => {
                assert_eq!((error.close(encoding).code as u16).to_string(), code, "{line}: {error}")
            }
        }
    }
}

fn json_downstream(vectors: &str) {
    for Vector { line, received, meaning, .. } in sections(vectors) {
        let message = downstream(Encoding::Json, &Frame::text(received), &line);
        assert_eq!(sent(Encoding::Json, &message), Frame::text(meaning.unwrap_or(received)), "{line}");
    }
}

fn protobuf_downstream(vectors: &str) {
    for Vector { line, received, meaning, encoded } in sections(vectors) {
        let message = downstream(Encoding::Protobuf, &Frame::binary(received), &line);
        assert_eq!(sent(Encoding::Json, &message), Frame::text(meaning.unwrap()), "{line}");
        assert_eq!(sent(Encoding::Protobuf, &message), Frame::binary(encoded.unwrap_or(received)), "{line}");
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
        body.write_message(reliable.then_some(SEQUENCE_ID), &mut sent);
        assert_eq!(Frame::read(&sent), Frame::parse(rest.trim_start()), "{line}");
    }
}

/// What becomes of a publish; raw clients publish to the group `raw-group`.
fn published(encoding_name: &str, frame: &Frame) -> Message {
    let request = match encoding(encoding_name) {
        Encoding::Raw => {
            let target = RawTarget { group: GroupName::new("raw-group").unwrap(), no_echo: false };
            raw::decode_send_to_group(&target, frame.kind, &frame.bytes)
        }
        encoding => decode_upstream(encoding, frame.kind, &frame.bytes),
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

fn upstream(encoding: Encoding, frame: &Frame, line: &str) -> Upstream {
    decode_upstream(encoding, frame.kind, &frame.bytes).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn downstream(encoding: Encoding, frame: &Frame, line: &str) -> Received {
    decode_downstream(encoding, frame.kind, &frame.bytes).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn sent(encoding: Encoding, message: &Received) -> Frame {
    let mut sent = BytesMut::new();
    match message {
        Received::Message { message, sequence_id } => {
            encode_message(encoding, message).write_message(*sequence_id, &mut sent);
        }
        Received::Control(control) => encode_downstream(encoding, control, &mut sent),
        Received::Unknown => panic!("no vector is of an unknown type"),
    }
    Frame::read(&sent)
}

/// One WebSocket message. In the files: `text …` as it is, `text-bytes …` and `binary-bytes …` in hexadecimal.
#[derive(PartialEq, Eq)]
struct Frame {
    kind: FrameKind,
    bytes: Bytes,
}

impl Frame {
    fn new(kind: FrameKind, bytes: &[u8]) -> Self {
        Self { kind, bytes: Bytes::copy_from_slice(bytes) }
    }

    fn text(text: &str) -> Self {
        Self::new(FrameKind::Text, text.as_bytes())
    }

    fn binary(hexadecimal: &str) -> Self {
        Self::new(FrameKind::Binary, &bytes(hexadecimal))
    }

    fn parse(vector: &str) -> Self {
        let (form, content) = vector.split_once(' ').unwrap_or((vector, ""));
        match form {
            "text" => Self::text(content),
            "text-bytes" => Self::new(FrameKind::Text, &bytes(content)),
            "binary-bytes" => Self::binary(content),
            _ => panic!("no form of a frame: {form}"),
        }
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
        Self::new(kind, payload)
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

/// A line `> …` with what stands below it.
struct Vector<'a> {
    line: String,
    received: &'a str,
    /// `= …`
    meaning: Option<&'a str>,
    /// `< …`
    encoded: Option<&'a str>,
}

fn sections(vectors: &str) -> Vec<Vector<'_>> {
    let mut sections: Vec<Vector<'_>> = Vec::new();
    for (line, vector) in lines(vectors) {
        match vector.split_at(2) {
            ("> ", received) => sections.push(Vector { line, received, meaning: None, encoded: None }),
            ("= ", meaning) => sections.last_mut().unwrap().meaning = Some(meaning),
            ("< ", encoded) => sections.last_mut().unwrap().encoded = Some(encoded),
            _ => panic!("{line}: none of `> …`, `= …` and `< …`"),
        }
    }
    sections
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<char> = hexadecimal.chars().filter(|digit| *digit != ' ').collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

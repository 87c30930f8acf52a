//! Messages to JSON text, both directions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::data_type;
use crate::wire::{
    AckError, AckId, Downstream, Message, Metadata, Payload, PayloadKind, Sender, SharedBody, Upstream,
};

pub(in crate::wire) fn encode_message(message: &Message) -> SharedBody {
    let payload_bytes = match message.payload.kind {
        PayloadKind::Text | PayloadKind::Json => message.payload.bytes.len(),
        PayloadKind::Binary | PayloadKind::Any => message.payload.bytes.len().div_ceil(3) * 4,
    };
    let mut object = ObjectWriter::new("message", payload_bytes + 2 * message.metadata.bytes());
    match &message.sender {
        Sender::Group { group, user_id } => {
            object.string("from", "group").string("group", group.as_str());
            if let Some(user_id) = user_id {
                object.string("fromUserId", user_id.as_str());
            }
        }
        Sender::Server => {
            object.string("from", "server");
        }
    }
    SharedBody::json(object.payload(&message.payload).metadata(&message.metadata).finish())
}

pub(in crate::wire) fn encode_downstream(message: &Downstream) -> Bytes {
    match message {
        Downstream::Connected { connection_id, user_id, reconnection_token } => {
            let mut object = ObjectWriter::new("system", 0);
            object.string("event", "connected");
            match user_id {
                Some(user_id) => object.string("userId", user_id.as_str()),
                None => object.json("userId", b"null"),
            };
            object.string("connectionId", connection_id.as_str());
            if let Some(token) = reconnection_token {
                object.string("reconnectionToken", &token.0);
            }
            object.finish()
        }
        Downstream::Disconnected { message } => {
            ObjectWriter::new("system", 0).string("event", "disconnected").string("message", message).finish()
        }
        Downstream::Ack { ack_id, error } => {
            ObjectWriter::new("ack", 0).integer("ackId", *ack_id).outcome(error.as_ref()).finish()
        }
        Downstream::Pong => ObjectWriter::new("pong", 0).finish(),
        Downstream::InvokeFailed { invocation_id, error } => ObjectWriter::new("invokeResponse", 0)
            .string("invocationId", invocation_id)
            .outcome(Some(error))
            .finish(),
        Downstream::StreamClosed { stream_id, error } => {
            ObjectWriter::new("streamClosed", 0).string("streamId", stream_id).error(error).finish()
        }
    }
}

pub(in crate::wire) fn encode_upstream(message: &Upstream) -> Bytes {
    match message {
        Upstream::JoinGroup { group, ack_id } => {
            ObjectWriter::new("joinGroup", 0).string("group", group.as_str()).ack_id(*ack_id).finish()
        }
        Upstream::LeaveGroup { group, ack_id } => {
            ObjectWriter::new("leaveGroup", 0).string("group", group.as_str()).ack_id(*ack_id).finish()
        }
        Upstream::SendToGroup { group, payload, metadata, ack_id, no_echo, ttl_seconds } => {
            let mut object = ObjectWriter::new("sendToGroup", payload.bytes.len());
            object.string("group", group.as_str()).ack_id(*ack_id).payload(payload);
            if *no_echo {
                object.boolean("noEcho", true);
            }
            if *ttl_seconds != 0 {
                object.integer("ttlSeconds", u64::from(*ttl_seconds));
            }
            object.metadata(metadata).finish()
        }
        Upstream::Event { event, payload, metadata, ack_id } => {
            ObjectWriter::new("event", payload.bytes.len())
                .string("event", event.as_str())
                .ack_id(*ack_id)
                .payload(payload)
                .metadata(metadata)
                .finish()
        }
        Upstream::SequenceAck { sequence_id } => {
            ObjectWriter::new("sequenceAck", 0).integer("sequenceId", *sequence_id).finish()
        }
        Upstream::Ping => ObjectWriter::new("ping", 0).finish(),
        Upstream::Invoke { invocation_id, event, payload, metadata } => {
            let mut object = ObjectWriter::new("invoke", 0);
            object
                .string("invocationId", invocation_id)
                .string("target", "event")
                .string("event", event.as_str());
            if let Some(payload) = payload {
                object.payload(payload);
            }
            object.metadata(metadata).finish()
        }
        Upstream::CancelInvocation { invocation_id } => {
            ObjectWriter::new("cancelInvocation", 0).string("invocationId", invocation_id).finish()
        }
        Upstream::Stream { stream_id, group: Some(group), ack_id } => {
            let mut object = ObjectWriter::new("sendToGroup", 0);
            object.string("group", group.as_str()).ack_id(*ack_id);
            object.nested("stream", |stream| stream.string("streamId", stream_id)).finish()
        }
        Upstream::Stream { stream_id, group: None, ack_id: _ } => {
            ObjectWriter::new("streamEnd", 0).string("streamId", stream_id).finish()
        }
        Upstream::GroupState { group, ack_id } => ObjectWriter::new("subscribeGroupState", 0)
            .string("group", group.as_str())
            .ack_id(*ack_id)
            .finish(),
    }
}

/// Writes one object, property by property. Names are the protocol's own and need no escapes.
struct ObjectWriter {
    out: Vec<u8>,
}

impl ObjectWriter {
    /// Room for the envelope of most messages; a longer one grows.
    const ENVELOPE_BYTES: usize = 128;

    fn new(kind: &str, content_bytes: usize) -> Self {
        let mut object = Self { out: Vec::with_capacity(Self::ENVELOPE_BYTES + content_bytes) };
        object.out.push(b'{');
        object.string("type", kind);
        object
    }

    /// Gives back the room that was not used: a message may wait in outboxes for long.
    fn finish(&mut self) -> Bytes {
        let mut out = std::mem::take(&mut self.out);
        out.push(b'}');
        out.shrink_to_fit();
        out.into()
    }

    fn name(&mut self, name: &str) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn json(&mut self, name: &str, text: &[u8]) -> &mut Self {
        self.name(name);
        self.out.extend_from_slice(text);
        self
    }

    fn string(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        escape(value.as_bytes(), &mut self.out);
        self
    }

    fn integer(&mut self, name: &str, value: u64) -> &mut Self {
        self.json(name, itoa::Buffer::new().format(value).as_bytes())
    }

    fn boolean(&mut self, name: &str, value: bool) -> &mut Self {
        self.json(name, if value { b"true" } else { b"false" })
    }

    fn nested(&mut self, name: &str, content: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        self.json(name, b"{");
        content(self).out.push(b'}');
        self
    }

    fn ack_id(&mut self, ack_id: Option<AckId>) -> &mut Self {
        match ack_id {
            Some(ack_id) => self.integer("ackId", ack_id),
            None => self,
        }
    }

    fn outcome(&mut self, error: Option<&AckError>) -> &mut Self {
        match error {
            Some(error) => self.boolean("success", false).error(error),
            None => self.boolean("success", true),
        }
    }

    fn error(&mut self, error: &AckError) -> &mut Self {
        self.nested("error", |object| {
            object.string("name", error.name.as_str()).string("message", &error.message)
        })
    }

    fn payload(&mut self, payload: &Payload) -> &mut Self {
        self.string("dataType", data_type(payload.kind));
        match payload.kind {
            PayloadKind::Json => return self.json("data", &payload.bytes),
            PayloadKind::Text => {
                self.name("data");
                escape(&payload.bytes, &mut self.out);
            }
            PayloadKind::Binary | PayloadKind::Any => {
                self.string("data", &STANDARD.encode(&payload.bytes));
            }
        }
        self
    }

    fn metadata(&mut self, metadata: &Metadata) -> &mut Self {
        if metadata.is_empty() {
            return self;
        }
        self.nested("metadata", |object| {
            for (key, value) in metadata.iter() {
                object.string(key, value);
            }
            object
        })
    }
}

/// Appends UTF-8 text as a JSON string.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    out.push(b'"');
    let mut written = 0;
    for (position, &byte) in text.iter().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text[written..position]);
        written = position + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.extend_from_slice(&[
                b'\\',
                b'u',
                b'0',
                b'0',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 0xF)],
            ]),
        }
    }
    out.extend_from_slice(&text[written..]);
    out.push(b'"');
}

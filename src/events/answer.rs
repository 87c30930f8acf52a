//! What a handler makes of a user event, and what it notes about the session.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use oncewire_protocol::hub::Handled;
use oncewire_protocol::log::{HandlerReply, HandlerState};
use oncewire_protocol::wire::{Metadata, MetadataBuilder, MetadataError, Payload, PayloadKind};

use super::client::Answer;
use super::request::{CONNECTION_STATE, METADATA_PREFIX};

/// What a handler may note about a session, in bytes.
const STATE_BYTES_MAX: usize = 8 * 1024;

/// Why an answer of success is none that can be used. No text holds anything of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadAnswer {
    /// The body of a reply is of a type that no message has.
    #[error("the answer's content type is none of text/plain, application/json and application/octet-stream")]
    ContentType,
    /// The body is not what its type says.
    #[error("the answer's body is not what its content type says")]
    Body,
    /// Metadata that no message can have.
    #[error("{METADATA_PREFIX}: {0}")]
    Metadata(#[from] MetadataError),
    /// The state is too large.
    #[error("ce-connectionState is larger than {STATE_BYTES_MAX} bytes")]
    State,
    /// The body of an answer to `connect` can't be understood.
    #[error("the answer to connect is not JSON, or not of the right shape")]
    Connect,
    /// A user can't be called so.
    #[error("the answer to connect names a user with a control character, or with more than 64 KiB")]
    UserId,
    /// A group can't be called so.
    #[error("the answer to connect names a group as none can be called")]
    Group,
    /// A subprotocol can't be called so.
    #[error("the answer to connect names a subprotocol as none can be called")]
    Subprotocol,
}

/// What an answer of success to a user event means.
pub(super) fn handled(answer: Answer) -> Result<Handled, BadAnswer> {
    let Answer { headers, body, .. } = answer;
    let metadata = metadata(&headers)?;
    let payload = match body.is_empty() {
        true if metadata.is_empty() => None,
        true => Some(Payload { kind: PayloadKind::Text, bytes: Bytes::new() }),
        false => Some(payload(&headers, body)?),
    };
    let reply = payload.map(|payload| HandlerReply { payload, metadata });
    Ok(Handled { reply, state: state(&headers)? })
}

/// What the handler has noted, if it says so; the last line counts.
pub(super) fn state(headers: &HeaderMap) -> Result<Option<HandlerState>, BadAnswer> {
    let Some(last) = headers.get_all(CONNECTION_STATE).iter().next_back() else { return Ok(None) };
    if last.len() > STATE_BYTES_MAX {
        return Err(BadAnswer::State);
    }
    Ok(Some(HandlerState(Bytes::copy_from_slice(last.as_bytes()))))
}

/// Commas are part of a value; of repeated lines the last counts.
fn metadata(headers: &HeaderMap) -> Result<Metadata, BadAnswer> {
    let mut metadata = MetadataBuilder::default();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        let value = headers.get_all(name).iter().next_back().map_or(&b""[..], |value| value.as_bytes());
        metadata.insert(key, std::str::from_utf8(value).map_err(|_| MetadataError::Value)?)?;
    }
    Ok(metadata.build())
}

fn payload(headers: &HeaderMap, body: Bytes) -> Result<Payload, BadAnswer> {
    // An empty header is none.
    let value = headers.get(CONTENT_TYPE).filter(|value| !value.as_bytes().trim_ascii().is_empty());
    let Some(value) = value else {
        return Ok(Payload { kind: PayloadKind::Binary, bytes: body });
    };
    let value = value.to_str().map_err(|_| BadAnswer::ContentType)?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| essence.eq_ignore_ascii_case(name);
    if is("application/json") {
        return Payload::json(without_mark(body)).ok_or(BadAnswer::Body);
    }
    if is("text/plain") {
        return Payload::text(body).ok_or(BadAnswer::Body);
    }
    if is("application/octet-stream") {
        return Ok(Payload { kind: PayloadKind::Binary, bytes: body });
    }
    if is("application/x-protobuf") {
        return Ok(Payload { kind: PayloadKind::Any, bytes: body });
    }
    Err(BadAnswer::ContentType)
}

/// JSON without the mark of byte order that some applications begin texts with.
pub(super) fn without_mark(text: Bytes) -> Bytes {
    const MARK: &[u8] = "\u{FEFF}".as_bytes();
    if text.starts_with(MARK) { text.slice(MARK.len()..) } else { text }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue, StatusCode};

    use super::super::memory::room;
    use super::*;

    fn answered(headers: &[(&str, &str)], body: &[u8]) -> Result<Handled, BadAnswer> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        handled(Answer {
            status: StatusCode::OK,
            headers: map,
            body: Bytes::copy_from_slice(body),
            room: room(),
        })
    }

    /// Kind and bytes of the reply.
    fn reply(content_type: &str, body: &[u8]) -> Result<(PayloadKind, Bytes), BadAnswer> {
        let handled = answered(&[("content-type", content_type)], body)?;
        let payload = handled.reply.unwrap().payload;
        Ok((payload.kind, payload.bytes))
    }

    #[test]
    fn the_content_type_tells_what_a_reply_is() {
        for (content_type, kind) in [
            ("text/plain", PayloadKind::Text),
            ("Text/Plain; charset=utf-8", PayloadKind::Text),
            ("application/json", PayloadKind::Json),
            ("application/json;charset=utf-8", PayloadKind::Json),
            ("application/octet-stream", PayloadKind::Binary),
            ("application/x-protobuf", PayloadKind::Any),
        ] {
            assert_eq!(reply(content_type, b"[1]"), Ok((kind, Bytes::from_static(b"[1]"))), "{content_type}");
        }
        let without = answered(&[], b"\xFF").unwrap().reply.unwrap();
        assert_eq!(
            without.payload,
            Payload { kind: PayloadKind::Binary, bytes: Bytes::from_static(b"\xFF") }
        );
        assert!(without.metadata.is_empty());
    }

    #[test]
    fn an_empty_content_type_of_an_answer_was_refused() {
        for empty in ["", " "] {
            assert_eq!(
                reply(empty, b"[1]"),
                Ok((PayloadKind::Binary, Bytes::from_static(b"[1]"))),
                "{empty:?}"
            );
        }
    }

    #[test]
    fn an_answer_in_json_behind_a_mark_of_byte_order_was_no_json() {
        let json = reply("application/json", "\u{FEFF}[1]".as_bytes());
        assert_eq!(json, Ok((PayloadKind::Json, Bytes::from_static(b"[1]"))));
        let text = reply("text/plain", "\u{FEFF}hi".as_bytes());
        assert_eq!(text, Ok((PayloadKind::Text, Bytes::from_static("\u{FEFF}hi".as_bytes()))));
    }

    #[test]
    fn a_body_of_another_type_or_other_than_its_type_is_no_reply() {
        for other in ["text/html", "application/xml", "application/json2", "é"] {
            assert_eq!(reply(other, b"{}"), Err(BadAnswer::ContentType), "{other}");
        }
        assert_eq!(reply("application/json", b"{"), Err(BadAnswer::Body));
        assert_eq!(reply("application/json", b"\xFF"), Err(BadAnswer::Body));
        assert_eq!(reply("text/plain", b"\xFF"), Err(BadAnswer::Body));
    }

    #[test]
    fn no_body_is_no_reply_whatever_its_type_is() {
        for content_type in ["application/octet-stream", "application/json", "text/html"] {
            assert_eq!(
                answered(&[("content-type", content_type)], b""),
                Ok(Handled::default()),
                "{content_type}"
            );
        }
    }

    #[test]
    fn metadata_alone_is_an_empty_text() {
        let reply = answered(&[("x-webpubsub-metadata-Trace", "7")], b"").unwrap().reply.unwrap();
        assert_eq!(reply.payload, Payload { kind: PayloadKind::Text, bytes: Bytes::new() });
        assert_eq!(reply.metadata.iter().collect::<Vec<_>>(), [("trace", "7")]);
    }

    #[test]
    fn of_repeated_metadata_the_whole_last_value_counts() {
        let lines =
            [("x-webpubsub-metadata-k", "first"), ("x-webpubsub-metadata-k", "a, b"), ("x-other", "c")];
        let reply = answered(&lines, b"x").unwrap().reply.unwrap();
        assert_eq!(reply.metadata.iter().collect::<Vec<_>>(), [("k", "a, b")]);
    }

    #[test]
    fn metadata_is_bounded() {
        let (key, value) = (format!("{METADATA_PREFIX}{}", "k".repeat(256)), "v".repeat(1024));
        assert!(answered(&[(&key, &value)], b"").is_ok());
        assert_eq!(answered(&[(&format!("{key}k"), "v")], b""), Err(BadAnswer::Metadata(MetadataError::Key)));
        assert_eq!(answered(&[(METADATA_PREFIX, "v")], b""), Err(BadAnswer::Metadata(MetadataError::Key)));
        let long = format!("{value}v");
        let one = format!("{METADATA_PREFIX}k");
        assert_eq!(answered(&[(&one, &long)], b""), Err(BadAnswer::Metadata(MetadataError::Value)));
        assert_eq!(answered(&[(&one, "é")], b""), Err(BadAnswer::Metadata(MetadataError::Value)));
        let keys: Vec<String> = (0..8).map(|number| format!("{METADATA_PREFIX}{number}")).collect();
        let all: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), value.as_str())).collect();
        assert!(answered(&all[..7], b"").is_ok());
        assert_eq!(answered(&all, b""), Err(BadAnswer::Metadata(MetadataError::TooLarge)));
    }

    #[test]
    fn a_state_is_kept_as_it_is() {
        let state = |values: &[&str]| {
            let lines: Vec<_> = values.iter().map(|value| ("ce-connectionState", *value)).collect();
            answered(&lines, b"").map(|handled| handled.state.map(|HandlerState(bytes)| bytes))
        };
        assert_eq!(state(&[]), Ok(None));
        assert_eq!(state(&[""]), Ok(Some(Bytes::new())));
        assert_eq!(state(&["a", "e30= é"]), Ok(Some(Bytes::from_static("e30= é".as_bytes()))));
        let largest = "s".repeat(STATE_BYTES_MAX);
        assert_eq!(state(&[&largest]).unwrap().map(|bytes| bytes.len()), Some(STATE_BYTES_MAX));
        assert_eq!(state(&[&format!("{largest}s")]), Err(BadAnswer::State));
    }
}

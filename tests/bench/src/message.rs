//! The few messages of `json.reliable.webpubsub.azure.v1` that the benchmarks exchange.
//!
//! Knows how a client writes them and reads the answers, whatever the order of fields, and how to recognise a publish
//! of this benchmark in a delivery. Does not know frames or sockets.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The subprotocol of sessions that survive their socket.
pub const RELIABLE_JSON: &str = "json.reliable.webpubsub.azure.v1";
/// The subprotocol of sessions that end with their socket.
pub const JSON: &str = "json.webpubsub.azure.v1";
/// The hub of all benchmarks.
pub const HUB: &str = "bench";
/// The group of all benchmarks.
pub const GROUP: &str = "bench";

/// The user event of all benchmarks.
pub const EVENT: &str = "echo";

/// Length of the text that [`Stamp`] takes at the start of a payload: the least payload.
pub const STAMP_BYTES: usize = 16;

/// Names a publish within its payload, so that a subscriber can tell a lost message from a repeated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Index of the publisher.
    pub publisher: u16,
    /// How many publishes that publisher had sent before; below 2^48.
    pub number: u64,
}

/// What a server sends.
#[derive(Debug, PartialEq, Eq)]
pub enum Downstream {
    Connected,
    Ack { ack_id: u64 },
    Delivery { sequence_id: u64, stamp: Stamp },
    Other,
}

/// Writes a publish of `payload_bytes` (at least [`STAMP_BYTES`]) into `out`, replacing what it held.
pub fn write_publish(ack_id: u64, stamp: Stamp, payload_bytes: usize, out: &mut Vec<u8>) {
    write_request(("sendToGroup", "group", GROUP), ack_id, stamp, payload_bytes, out);
}

/// Writes a user event of `payload_bytes` (at least [`STAMP_BYTES`]) into `out`, replacing what it held.
pub fn write_event(ack_id: u64, stamp: Stamp, payload_bytes: usize, out: &mut Vec<u8>) {
    write_request(("event", "event", EVENT), ack_id, stamp, payload_bytes, out);
}

fn write_request(
    (kind, key, name): (&str, &str, &str),
    ack_id: u64,
    stamp: Stamp,
    payload_bytes: usize,
    out: &mut Vec<u8>,
) {
    let mut digits = itoa::Buffer::new();
    out.clear();
    for part in [r#"{"type":""#, kind, r#"",""#, key, r#"":""#, name, r#"","ackId":"#] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(digits.format(ack_id).as_bytes());
    out.extend_from_slice(br#","dataType":"text","data":""#);
    let payload_start = out.len();
    out.extend_from_slice(format!("{:04x}{:012x}", stamp.publisher, stamp.number).as_bytes());
    out.resize(payload_start + payload_bytes.max(STAMP_BYTES), b'x');
    out.extend_from_slice(br#""}"#);
}

/// A request of this type that needs a group: `joinGroup` or `leaveGroup`. Neither holds a quote.
pub fn membership(kind: &str, group: &str, ack_id: u64) -> String {
    format!(r#"{{"type":"{kind}","group":"{group}","ackId":{ack_id}}}"#)
}

/// A sequence ack.
pub fn sequence_ack(sequence_id: u64) -> String {
    format!(r#"{{"type":"sequenceAck","sequenceId":{sequence_id}}}"#)
}

impl Downstream {
    /// Reads a message from the server.
    ///
    /// # Errors
    /// It is no message of the protocol, a refused request, or a delivery that this benchmark did not publish.
    pub fn parse(text: &[u8]) -> Result<Self> {
        match Self::parse_leading_sequence_id(text) {
            Some(delivery) => Ok(delivery),
            None => Self::parse_any(text),
        }
    }

    /// The quick way, for deliveries that begin with their sequence id: the load generator must not be what is slow.
    fn parse_leading_sequence_id(text: &[u8]) -> Option<Self> {
        let rest = text.strip_prefix(br#"{"sequenceId":"#)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let sequence_id = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        let data = memmem::find(rest, br#""data":""#)? + br#""data":""#.len();
        Some(Self::Delivery { sequence_id, stamp: Stamp::parse(&rest[data..])? })
    }

    fn parse_any(text: &[u8]) -> Result<Self> {
        let fields: Fields<'_> = serde_json::from_slice(text).context("the server sent no JSON message")?;
        match fields.kind {
            "ack" => {
                let ack_id = fields.ack_id.context("an ack without an ackId")?;
                let error = fields.error.map_or("no error", RawValue::get);
                ensure!(fields.success == Some(true), "request {ack_id} was refused: {error}");
                Ok(Self::Ack { ack_id })
            }
            "message" => {
                let sequence_id = fields.sequence_id.context("a delivery without a sequenceId")?;
                let data = fields.data.and_then(|data| data.get().as_bytes().strip_prefix(b"\""));
                let stamp = data.and_then(Stamp::parse).context("a delivery that was not published here")?;
                Ok(Self::Delivery { sequence_id, stamp })
            }
            "system" => match fields.event {
                Some("connected") => Ok(Self::Connected),
                event => bail!("system event {event:?}"),
            },
            _ => Ok(Self::Other),
        }
    }
}

impl Stamp {
    fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload.get(..STAMP_BYTES)?).ok()?;
        let publisher = u16::from_str_radix(text.get(..4)?, 16).ok()?;
        let number = u64::from_str_radix(text.get(4..)?, 16).ok()?;
        Some(Self { publisher, number })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    event: Option<&'a str>,
    ack_id: Option<u64>,
    sequence_id: Option<u64>,
    success: Option<bool>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { publisher: 3, number: 0x1f };

    #[test]
    fn reads_a_delivery_with_its_sequence_id_first_or_last() {
        let expected = Downstream::Delivery { sequence_id: 302, stamp: STAMP };
        let first = br#"{"sequenceId":302,"type":"message","from":"group","group":"bench","dataType":"text","data":"000300000000001fxx"}"#;
        assert_eq!(Downstream::parse_leading_sequence_id(first).unwrap(), expected);
        assert_eq!(Downstream::parse(first).unwrap(), expected);
        let last = br#"{"type":"message","from":"group","group":"bench","fromUserId":null,"dataType":"text","data":"000300000000001f","sequenceId":302}"#;
        assert_eq!(Downstream::parse(last).unwrap(), expected);
    }

    #[test]
    fn reads_the_other_messages() {
        let connected = br#"{"type":"system","event":"connected","userId":null,"connectionId":"c","reconnectionToken":"r"}"#;
        assert_eq!(Downstream::parse(connected).unwrap(), Downstream::Connected);
        let ack = br#"{"type":"ack","ackId":18446744073709551615,"success":true}"#;
        assert_eq!(Downstream::parse(ack).unwrap(), Downstream::Ack { ack_id: u64::MAX });
        assert_eq!(Downstream::parse(br#"{"type":"pong"}"#).unwrap(), Downstream::Other);
    }

    #[test]
    fn refuses_errors_and_strangers() {
        let refused =
            br#"{"type":"ack","ackId":1,"success":false,"error":{"name":"Forbidden","message":"no"}}"#;
        assert!(Downstream::parse(refused).unwrap_err().to_string().contains("Forbidden"));
        assert!(Downstream::parse(br#"{"sequenceId":1,"type":"message","data":"short"}"#).is_err());
        assert!(Downstream::parse(br#"{"type":"message","data":"000300000000001f"}"#).is_err(), "no id");
        assert!(Downstream::parse(br#"{"type":"system","event":"disconnected","message":"m"}"#).is_err());
        assert!(Downstream::parse(b"").is_err());
    }

    #[test]
    fn a_publish_has_the_payload_that_was_asked_for() {
        let mut out = Vec::new();
        for (asked, expected) in [(128, 128), (STAMP_BYTES, STAMP_BYTES), (0, STAMP_BYTES)] {
            write_publish(7, STAMP, asked, &mut out);
            let publish: serde_json::Value = serde_json::from_slice(&out).unwrap();
            let data = publish["data"].as_str().unwrap();
            assert_eq!((publish["ackId"].as_u64(), data.len()), (Some(7), expected));
            assert_eq!(Stamp::parse(data.as_bytes()), Some(STAMP));
        }
    }
}

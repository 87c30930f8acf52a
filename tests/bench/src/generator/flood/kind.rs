//! The kinds of floods: what each does, and which of the server's bounds are there for it.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::swarm::{Part, Script};
use crate::endpoint::{Endpoint, Purpose};
use crate::frame::{self, Opcode};
use crate::handshake;
use crate::message::{self, HUB, RELIABLE_JSON};

/// The group that floods publish to.
const FLOODED: &str = "flooded";
/// What a half-sent message has at the server; its bound is 1 MiB by default.
const HALF_BYTES: usize = 900_000;
/// Groups of the client that joins and leaves: the default bound, with one place for what it joins and leaves.
const GROUPS: u64 = 9_999;
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// What a connection's request head may take by the gateway's reference.
const HEAD_BYTES: u64 = 64 * KIB;

/// The gateway's bounds in all floods, as its configuration names them.
const HANDSHAKES_PENDING_MAX: u64 = 256;
const HTTP_CONNECTIONS_MAX: u64 = 128;
const HTTP_BODY_BYTES_MAX: u64 = MIB;

/// What floods the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// 400 sockets, each with 0.9 MB of a message that never ends: half of them an unfinished frame, half a first fragment.
    HalfSent,
    /// 200 subscribers that read nothing, for a second each, while two clients publish 16 KiB each time.
    Unread,
    /// 4 clients that publish with 4,096 metadata keys of two letters, to 8 subscribers that acknowledge nothing.
    Metadata,
    /// 1,000 connections without a word.
    IdleTcp,
    /// 200 connections that ask for the demo page again and again, and read no answer.
    UnreadAnswers,
    /// 300 requests whose body comes to 0.9 MB at once, and then by a byte each 0.2 s.
    SlowBodies,
    /// 4 connections that send through REST with a filter of 15 KB, over 10,000 idle sessions.
    Filter,
    /// A client that is in 9,999 groups, and joins and leaves one more in turn.
    Joins,
    /// 64 connections that ask for `/metrics` without waiting for the answer before.
    Metrics,
    /// 64 connections that ask for an upgrade with a token that is none.
    Refused,
}

/// A bound that is there for a kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// What is bounded.
    pub name: &'static str,
    pub bytes: u64,
}

impl Kind {
    /// Settings of the gateway.
    pub fn configuration(self) -> String {
        format!(
            "message_memory_bytes_max = {}\nhandshakes_pending_max = {HANDSHAKES_PENDING_MAX}\n\
             http_connections_max = {HTTP_CONNECTIONS_MAX}\nhttp_body_bytes_max = {HTTP_BODY_BYTES_MAX}\n\
             metrics = {}\ndemo = {}\n",
            self.message_memory_bytes(),
            self == Self::Metrics,
            self == Self::UnreadAnswers,
        )
    }

    /// The bounds that what this kind makes the server keep counts against. Only these: with others in the sum any figure
    /// would seem small.
    pub fn bounds(self) -> Vec<Bound> {
        let memory = Bound { name: "message_memory_bytes_max", bytes: self.message_memory_bytes() };
        let handshakes =
            Bound { name: "handshakes_pending_max x 64 KiB", bytes: HANDSHAKES_PENDING_MAX * HEAD_BYTES };
        let http = Bound { name: "http_connections_max x 64 KiB", bytes: HTTP_CONNECTIONS_MAX * HEAD_BYTES };
        let bodies = Bound {
            name: "http_connections_max x http_body_bytes_max",
            bytes: HTTP_CONNECTIONS_MAX * HTTP_BODY_BYTES_MAX,
        };
        match self {
            Self::HalfSent | Self::Unread | Self::Metadata | Self::Joins => vec![memory],
            Self::IdleTcp | Self::Refused => vec![handshakes],
            Self::UnreadAnswers | Self::Metrics => vec![http],
            Self::SlowBodies => vec![http, bodies],
            Self::Filter => vec![memory, http],
        }
    }

    /// Sessions that are there before the flood and do nothing.
    pub fn idle_sessions(self) -> usize {
        if self == Self::Filter { 10_000 } else { 0 }
    }

    /// What one part of the load is.
    pub fn unit(self) -> &'static str {
        match self {
            Self::HalfSent => "halves",
            Self::Unread | Self::Metadata => "publishes",
            Self::IdleTcp => "parts",
            Self::SlowBodies => "pieces",
            Self::Joins => "joins+leaves",
            Self::UnreadAnswers | Self::Filter | Self::Metrics | Self::Refused => "requests",
        }
    }

    fn message_memory_bytes(self) -> u64 {
        // Room for the sessions that a filter looks at.
        if self == Self::Filter { 256 * MIB } else { 64 * MIB }
    }

    /// What its sockets do.
    ///
    /// # Errors
    /// The clock stands before 1970.
    pub fn script(self, endpoint: &Endpoint) -> Result<Script> {
        Ok(match self {
            Self::HalfSent => half_sent(endpoint)?,
            Self::Unread => Script {
                sockets: 202,
                reads: |index| index < 2,
                lifetime: Some(Duration::from_secs(1)),
                ..publishers(endpoint, 2, text_publish)?
            },
            Self::Metadata => Script { sockets: 12, ..publishers(endpoint, 4, metadata_publish)? },
            Self::IdleTcp => Script { sockets: 1_000, ..http(None) },
            Self::UnreadAnswers => {
                Script { sockets: 200, reads: |_| false, ..http(Some(get(endpoint, "/").into_bytes())) }
            }
            Self::SlowBodies => slow_bodies(endpoint)?,
            Self::Filter => Script { sockets: 4, ..http(Some(filtered_send(endpoint)?.into_bytes())) },
            Self::Joins => joins(endpoint)?,
            Self::Metrics => Script { sockets: 64, ..http(Some(get(endpoint, "/metrics").into_bytes())) },
            Self::Refused => {
                let target = format!("/client/hubs/{HUB}?access_token=none");
                let upgrade = handshake::request(&endpoint.address.to_string(), &target, RELIABLE_JSON);
                Script { sockets: 64, ..http(Some(upgrade.into_bytes())) }
            }
        })
    }
}

/// Connections that send this again and again, or nothing.
fn http(request: Option<Vec<u8>>) -> Script {
    let request: Option<Rc<[u8]>> = request.map(Rc::from);
    Script {
        sockets: 0,
        upgrade: Box::new(|_| None),
        part: Box::new(move |_, _| request.clone().map(Part::now)),
        reads: |_| true,
        lifetime: None,
    }
}

fn get(endpoint: &Endpoint, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", endpoint.address)
}

fn upgrade(endpoint: &Endpoint, target: &str) -> String {
    handshake::request(&endpoint.address.to_string(), target, RELIABLE_JSON)
}

fn text_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame::push_client_frame(Opcode::Text, text, &mut frame);
    frame
}

fn half_sent(endpoint: &Endpoint) -> Result<Script> {
    let upgrade = upgrade(endpoint, &endpoint.client_target(Purpose::Publish)?);
    let halves: [Rc<[u8]>; 2] = [unfinished_frame().into(), first_fragment().into()];
    Ok(Script {
        sockets: 400,
        upgrade: Box::new(move |_| Some(upgrade.clone())),
        part: Box::new(move |index, number| (number == 0).then(|| Part::now(Rc::clone(&halves[index % 2])))),
        reads: |_| true,
        lifetime: None,
    })
}

/// The beginning of a frame of a tenth more.
fn unfinished_frame() -> Vec<u8> {
    let mut frame = text_frame(&vec![b' '; HALF_BYTES / 9 * 10]);
    frame.truncate(HALF_BYTES);
    frame
}

/// A frame that says that more of its message comes.
fn first_fragment() -> Vec<u8> {
    let mut frame = text_frame(&vec![b' '; HALF_BYTES]);
    frame[0] &= 0x7F;
    frame
}

/// So many sockets publish; all others are subscribers that acknowledge nothing.
fn publishers(endpoint: &Endpoint, count: usize, message: fn(u64) -> String) -> Result<Script> {
    let publisher = upgrade(endpoint, &endpoint.client_target(Purpose::Publish)?);
    let subscriber = upgrade(endpoint, &endpoint.target_with(&[], &[FLOODED])?);
    Ok(Script {
        sockets: count,
        upgrade: Box::new(move |index| {
            Some(if index < count { publisher.clone() } else { subscriber.clone() })
        }),
        part: Box::new(move |index, number| {
            (index < count).then(|| Part::now(text_frame(message(number + 1).as_bytes())))
        }),
        reads: |_| true,
        lifetime: None,
    })
}

fn text_publish(ack_id: u64) -> String {
    let data = "x".repeat(16 * 1024);
    format!(
        r#"{{"type":"sendToGroup","group":"{FLOODED}","ackId":{ack_id},"dataType":"text","data":"{data}"}}"#
    )
}

fn metadata_publish(ack_id: u64) -> String {
    let letters = || ('0'..='9').chain('A'..='Z').chain('a'..='z').chain(['-', '_']);
    let keys: Vec<String> =
        letters().flat_map(|first| letters().map(move |second| format!(r#""{first}{second}":"""#))).collect();
    let keys = keys.join(",");
    format!(
        r#"{{"type":"sendToGroup","group":"{FLOODED}","ackId":{ack_id},"dataType":"text","data":"","metadata":{{{keys}}}}}"#
    )
}

fn joins(endpoint: &Endpoint) -> Result<Script> {
    let upgrade = upgrade(endpoint, &endpoint.target_with(&["webpubsub.joinLeaveGroup"], &[])?);
    Ok(Script {
        sockets: 1,
        upgrade: Box::new(move |_| Some(upgrade.clone())),
        part: Box::new(|_, number| Some(Part::now(text_frame(join_or_leave(number).as_bytes())))),
        reads: |_| true,
        lifetime: None,
    })
}

fn join_or_leave(number: u64) -> String {
    let (kind, group) = match number.checked_sub(GROUPS) {
        None => ("joinGroup", number),
        Some(after) if after % 2 == 0 => ("joinGroup", GROUPS),
        Some(_) => ("leaveGroup", GROUPS),
    };
    message::membership(kind, &format!("group {group}"), number + 1)
}

fn send_head(endpoint: &Endpoint, query: &str, body_bytes: usize) -> Result<String> {
    let path = format!("/api/hubs/{HUB}/:send");
    let token = endpoint.rest_token(&path)?;
    Ok(format!(
        "POST {path}?api-version=2024-12-01{query} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: text/plain\r\nContent-Length: {body_bytes}\r\n\r\n",
        endpoint.address
    ))
}

fn slow_bodies(endpoint: &Endpoint) -> Result<Script> {
    let mut start = send_head(endpoint, "", HALF_BYTES / 9 * 10)?.into_bytes();
    start.resize(start.len() + HALF_BYTES, b'x');
    let (start, byte): (Rc<[u8]>, Rc<[u8]>) = (start.into(), Rc::from(&b"x"[..]));
    Ok(Script {
        sockets: 300,
        part: Box::new(move |_, number| {
            Some(match number {
                0 => Part::now(Rc::clone(&start)),
                _ => Part { bytes: Rc::clone(&byte), pause: Duration::from_millis(200) },
            })
        }),
        ..http(None)
    })
}

/// A send to nobody, found out by a filter that has to be evaluated to its end for every session: no index says where
/// those are that it selects.
fn filtered_send(endpoint: &Endpoint) -> Result<String> {
    Ok(send_head(endpoint, &format!("&filter={}", filter().replace(' ', "%20").replace('\'', "%27")), 1)?
        + "x")
}

fn filter() -> String {
    let clauses: Vec<String> = (0..560).map(|number| format!("userId ne 'nobody {number:04}'")).collect();
    format!("not ({})", clauses.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn metadata_has_all_its_keys_of_two_letters() {
        let message: serde_json::Value = serde_json::from_str(&metadata_publish(7)).unwrap();
        let keys = message["metadata"].as_object().unwrap();
        assert_eq!((keys.len(), message["ackId"].as_u64()), (4_096, Some(7)));
        assert!(keys.keys().all(|key| key.len() == 2));
    }

    #[test]
    fn halves_have_the_bytes_that_are_said_and_do_not_end() {
        let sizes = [unfinished_frame().len(), first_fragment().len()];
        assert_eq!(sizes, [HALF_BYTES, HALF_BYTES + 14]);
        assert_eq!(first_fragment()[0], 0x01, "a text that is not final");
        assert_eq!(unfinished_frame()[0], 0x81);
    }

    #[test]
    fn joins_and_leaves_take_turns_when_all_groups_are_there() {
        let kinds: Vec<_> = (GROUPS - 1..GROUPS + 3).map(join_or_leave).collect();
        assert!(kinds[0].contains(r#""joinGroup","group":"group 9998""#), "{}", kinds[0]);
        assert!(kinds[1].contains(r#""joinGroup","group":"group 9999""#), "{}", kinds[1]);
        assert!(kinds[2].contains(r#""leaveGroup","group":"group 9999""#), "{}", kinds[2]);
        assert!(kinds[3].contains("joinGroup"), "{}", kinds[3]);
    }

    #[test]
    fn a_filter_is_as_long_as_is_said() {
        let bytes = filter().len();
        assert!((15_000..16 * 1024).contains(&bytes), "{bytes}");
    }

    #[test]
    fn each_kind_has_bounds_and_sockets() {
        let endpoint: Endpoint = "Endpoint=http://127.0.0.1:1;AccessKey=k;".parse().unwrap();
        for kind in Kind::value_variants() {
            assert!(kind.bounds().iter().map(|bound| bound.bytes).sum::<u64>() > 0, "{kind:?}");
            assert!(kind.script(&endpoint).unwrap().sockets > 0, "{kind:?}");
        }
        let names: BTreeSet<_> = Kind::value_variants().iter().collect();
        assert_eq!(names.len(), 10);
    }
}

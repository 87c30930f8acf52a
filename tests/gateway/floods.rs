//! Too much of everything, at a gateway in a process of its own whose memory is held to a bound. Somebody who behaves is
//! served all the while.
//!
//! Bounds are a few times what was measured, and far below what it would be without the limit in question.

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::iter;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// Sockets that are dealt with at once.
const AT_ONCE: usize = 100;

/// A gateway with these settings, and their file.
async fn served(settings: &str) -> (Served, NamedTempFile) {
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    Served::with_settings(settings).await
}

/// A new session, its `connected` read.
async fn session(served: &Served, subprotocol: &str, token: &Token) -> Socket {
    let connector = Connector::new(served.address).token(token).offer(subprotocol);
    let mut socket = connector.open().await.unwrap();
    socket.read_connected().await;
    socket
}

/// Somebody who joins, publishes and hears what it published, and nothing else.
struct Bystander {
    socket: Socket,
    told: u64,
}

impl Bystander {
    async fn of(served: &Served) -> Self {
        Self { socket: session(served, RELIABLE, &Token::user("bystander").group("quiet")).await, told: 0 }
    }

    async fn is_served(&mut self) {
        self.told += 1;
        let text = format!("text {}", self.told);
        self.socket.send(publish("quiet", self.told, &text)).await;
        self.socket.expect(message(self.told, "quiet", "bystander", &text)).await;
        self.socket.expect(success(self.told)).await;
    }
}

/// A masked frame, its mask being zero.
fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match content.len() {
        short @ 0..=125 => bytes.push(0x80 | short as u8),
        medium @ 126..=0xFFFF => {
            bytes.push(0xFE);
            bytes.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            bytes.push(0xFF);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(content);
    bytes
}

#[tokio::test]
async fn bad_frames_end_their_own_session_with_their_code_and_leave_nothing_behind() {
    let (served, _file) = served("").await;
    let mut bystander = Bystander::of(&served).await;
    let ping = br#"{"type":"ping"}"#;
    let bad: [(u16, Vec<u8>); 17] = [
        // Compressed, though nothing was negotiated, and the other reserved bits.
        (1002, frame(0xC1, ping)),
        (1002, frame(0xA1, ping)),
        (1002, frame(0x91, ping)),
        // Not masked.
        (1002, [&[0x81, ping.len() as u8], &ping[..]].concat()),
        // Opcodes that do not exist.
        (1002, frame(0x83, ping)),
        (1002, frame(0x8B, ping)),
        // Going on with what has not begun, and beginning anew in the middle.
        (1002, frame(0x80, ping)),
        (1002, [frame(0x01, ping), frame(0x81, ping)].concat()),
        (1002, [frame(0x01, ping), frame(0x82, ping)].concat()),
        // Control frames in fragments, and too long.
        (1002, frame(0x09, b"")),
        (1002, frame(0x89, &[0; 126])),
        // A close frame of half a code.
        (1002, frame(0x88, &[3])),
        (1003, frame(0x82, ping)),
        (1007, frame(0x81, b"\xff")),
        (1007, frame(0x81, b"{\"type\":\"ping\"")),
        (1009, [&[0x81, 0xFF], &u64::MAX.to_be_bytes()[..], &[0; 4]].concat()),
        (1009, [&[0x81, 0xFF], &(1024 * 1024 + 1_u64).to_be_bytes()[..], &[0; 4]].concat()),
    ];
    let mut flood = iter(bad.iter().cycle().take(60 * bad.len()))
        .map(async |(code, bytes)| {
            let mut socket = session(&served, RELIABLE, &Token::user("bad").group("quiet-no-more")).await;
            socket.send_raw(bytes).await;
            match socket.next().await {
                Event::Close(heard, _) => assert_eq!(heard, *code, "{:02x?}", &bytes[..bytes.len().min(16)]),
                other => panic!("{:02x?}: {other:?}", &bytes[..bytes.len().min(16)]),
            }
        })
        .buffer_unordered(AT_ONCE);
    let mut done = 0;
    while flood.next().await.is_some() {
        done += 1;
        if done % 100 == 0 {
            bystander.is_served().await;
        }
    }
    drop(flood);
    let held = served.resident_mib();
    assert!(held < 40, "{held} MiB after {done} bad frames");
    let (_, log) = served.stop().await;
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn a_mebibyte_in_the_smallest_fragments_is_one_message_and_costs_little_more() {
    let (served, _file) = served("").await;
    let mut bystander = Bystander::of(&served).await;
    let empty = publish("g", 1, "").to_string();
    let message = publish("g", 1, &"x".repeat(1024 * 1024 - empty.len())).to_string();
    let fragments = |bytes: usize| {
        let parts: Vec<&[u8]> = message.as_bytes().chunks(bytes).collect();
        let last = parts.len() - 1;
        let one =
            |(n, part): (usize, &&[u8])| frame(u8::from(n == 0) | if n == last { 0x80 } else { 0 }, part);
        parts.iter().enumerate().flat_map(one).collect::<Vec<u8>>()
    };
    let senders = (0..24).map(|n| {
        let bytes = fragments([1, 2, 7, 64][n % 4]);
        let served = &served;
        async move {
            let mut socket = session(served, RELIABLE, &Token::user("p")).await;
            for part in bytes.chunks(64 * 1024) {
                socket.send_raw(part).await;
            }
            socket.expect(success(1)).await;
            // Fragments without content, then the end of the message.
            socket.send_raw(&frame(0x01, br#"{"type":"#)).await;
            socket.send_raw(&frame(0x00, b"").repeat(20_000)).await;
            socket.send_raw(&frame(0x80, br#""ping"}"#)).await;
            socket.expect(json!({"type": "pong"})).await;
        }
    });
    join_all(senders).await;
    bystander.is_served().await;
    let held = served.resident_mib();
    assert!(held < 100, "{held} MiB for 24 messages of 1 MiB in fragments");
}

#[tokio::test]
async fn slow_request_heads_are_cut_and_keep_nobody_out() {
    let (served, _file) = served("header_read_timeout_seconds = 1\nhandshakes_pending_max = 50\n").await;
    let mut bystander = Bystander::of(&served).await;
    let slow = (0..400).map(|n| {
        let address = served.address;
        async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = b"GET /client/hubs/chat HTTP/1.1\r\nHost: x\r\nX: ";
            // Nothing at all, a part, and a part that grows byte by byte.
            if n % 3 > 0 {
                let _ = stream.write_all(head).await;
            }
            let (mut read, mut write) = stream.into_split();
            let dripping = async {
                while n % 3 == 2 && write.write_all(b"x").await.is_ok() {
                    a_while().await;
                }
                std::future::pending::<()>().await;
            };
            let mut rest = Vec::new();
            tokio::select! {
                read = soon(read.read_to_end(&mut rest)) => drop(read),
                () = dripping => {}
            }
            assert!(!rest.starts_with(b"HTTP/1.1 101"));
        }
    });
    let newcomers = async {
        for _ in 0..10 {
            session(&served, RELIABLE, &Token::user("newcomer")).await.done(join("g", 1)).await;
            bystander.is_served().await;
        }
    };
    tokio::join!(join_all(slow), newcomers);
    let held = served.resident_mib();
    assert!(held < 40, "{held} MiB after 400 slow heads");
}

#[tokio::test]
async fn thousands_of_groups_come_and_go() {
    const SESSIONS: usize = 20;
    const GROUPS: u64 = 1_000;
    let (served, _file) = served("").await;
    let mut bystander = Bystander::of(&served).await;
    let round = async |round: usize| {
        let members = (0..SESSIONS).map(|n| {
            let served = &served;
            async move {
                let mut socket = session(served, RELIABLE, &Token::user("m")).await;
                let name =
                    |group: u64| format!("round {round}, session {n}, group {group} {}", "x".repeat(200));
                socket.send_together((0..GROUPS).map(|group| join(&name(group), group))).await;
                for group in 0..GROUPS {
                    socket.expect(success(group)).await;
                }
                socket.send(publish(&name(GROUPS / 2), GROUPS, "to myself")).await;
                socket.expect(self::message(1, &name(GROUPS / 2), "m", "to myself")).await;
                socket.expect(success(GROUPS)).await;
                socket
            }
        });
        let members = join_all(members).await;
        let held = served.resident_mib();
        join_all(members.into_iter().map(|socket| socket.close(1000))).await;
        held
    };
    // Freed memory and trimmed records go back in portions; what was never given back would be many times the bound.
    for n in 0..16 {
        let held = round(n).await;
        assert!(held < 70, "{held} MiB in round {n}, of {} groups each", SESSIONS as u64 * GROUPS);
        bystander.is_served().await;
    }
}

#[tokio::test]
async fn five_thousand_sessions_that_are_gone_take_no_memory() {
    // Those that are cut expire soon.
    let (served, _file) = served("session_retention_seconds = 1\n").await;
    let mut bystander = Bystander::of(&served).await;
    let come_and_go = async |sessions: usize| {
        let mut opened = iter(0..sessions)
            .map(async |n| {
                let token = Token::user(&format!("user {n}")).group("room").group(&format!("group {n}"));
                let mut socket = session(&served, [RELIABLE, JSON][n % 2], &token).await;
                socket.done(join("g", 1)).await;
                if n % 4 < 2 {
                    assert_eq!(socket.close(1000).await, Event::Close(1000, String::new()));
                } else {
                    socket.cut();
                }
            })
            .buffer_unordered(AT_ONCE);
        while opened.next().await.is_some() {}
    };
    come_and_go(1000).await;
    let before = served.resident_mib();
    come_and_go(5000).await;
    bystander.is_served().await;
    let bound = before + 10;
    let is_back = soon(async {
        while served.resident_mib() > bound {
            a_while().await;
        }
    });
    is_back.await;
}

#[tokio::test]
async fn one_who_never_reads_among_a_thousand_is_closed_and_the_others_get_everything() {
    const OTHERS: usize = 999;
    const MESSAGES: u64 = 300;
    let (served, _file) = served("outbox_messages_max = 200\n").await;
    let never = Connector::new(served.address).token(&Token::user("never").group("g")).offer(RELIABLE);
    let mut never = never.receive_buffer_bytes(4096).open().await.unwrap();
    let others: Vec<Socket> = iter(0..OTHERS)
        .map(async |n| session(&served, JSON, &Token::user(&format!("user {n}")).group("g")).await)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut publisher = served.reliable("publisher").await.unwrap();
    let text = |n: u64| format!("{n} {}", "x".repeat(500));
    // One who reads sees each message before the next is published: nobody falls behind who reads.
    let (told, hears) = tokio::sync::watch::channel(0);
    let reading = others.into_iter().map(|mut socket| {
        let told = &told;
        tokio::task::unconstrained(async move {
            for n in 1..=MESSAGES {
                socket.expect(unsequenced("g", "publisher", &text(n))).await;
                told.send_modify(|heard| *heard += 1);
            }
            socket
        })
    });
    let publishing = async {
        let mut hears = hears;
        for n in 1..=MESSAGES {
            publisher.done(publish("g", n, &text(n))).await;
            soon(hears.wait_for(|heard| *heard >= (n as usize - n.min(50) as usize) * OTHERS)).await.unwrap();
        }
    };
    let (readers, ()) = tokio::join!(join_all(reading), publishing);
    let held = served.resident_mib();
    assert!(held < 50, "{held} MiB for {} sockets, one of which never reads", readers.len());

    never.read_connected().await;
    let identity = never.identity();
    let heard = never.settle_until_close(1008).await;
    assert!(heard.len() <= 200, "{}", heard.len());
    let recovery = Connector::new(served.address).recover(&identity).offer(RELIABLE);
    recovery.open().await.unwrap().expect_close(1008).await;
}

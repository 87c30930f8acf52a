//! Strangers: connections that cost the gateway something before anybody has looked at who they are. Those who are let in
//! go on meanwhile, and whoever comes next is served.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::ChildStderr;

use crate::support::*;

/// Connections on which nothing is ever said.
async fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(soon(TcpStream::connect(address)).await.unwrap());
    }
    connections
}

/// Completes when the gateway has closed a connection.
async fn closed(stream: &mut TcpStream) {
    let mut said = Vec::new();
    let _ = soon(stream.read_to_end(&mut said)).await;
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

/// An answer's head and what of its body comes with it, on a connection that stays.
async fn ask_on(stream: &mut TcpStream, request: &str) -> String {
    soon(stream.write_all(request.as_bytes())).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = soon(stream.read_buf(&mut answer)).await.unwrap();
        assert!(read > 0, "closed after {}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

fn health(more: &str) -> String {
    format!("HEAD /api/health HTTP/1.1\r\nHost: h\r\n{more}\r\n")
}

/// Reads the log until a line has this in it.
async fn logged(log: &mut BufReader<ChildStderr>, what: &str) {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(soon(log.read_line(&mut line)).await.unwrap() > 0, "the log has ended without: {what}");
    }
}

/// The name of the hub's newest segment. A count would not do: trimming deletes older ones at any time.
fn newest_segment(data: &Path) -> Option<String> {
    let files = std::fs::read_dir(data.join("hubs").join(HUB)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('0') && name.ends_with(".redb")).max()
}

#[tokio::test]
async fn connections_without_a_token_take_no_descriptor_from_the_log() {
    let data = tempfile::tempdir().unwrap();
    let arguments = ["--data-dir", data.path().to_str().unwrap(), "--durability", "os"];
    let served = Served::start_on(Some(400), "disk", &arguments).await;
    let mut publisher = served.reliable("publisher").await.unwrap();
    let identity = publisher.identity();
    let crowd = silent(served.address, 450).await;
    // More than a segment holds, so that files have to be made.
    let text = "x".repeat(1_000_000);
    let mut published = 1;
    publisher.done(publish("nobody", published, &text)).await;
    let first = newest_segment(data.path());
    while newest_segment(data.path()) == first {
        published += 1;
        publisher.done(publish("nobody", published, &text)).await;
        assert!(published < 200, "no second segment");
    }
    publisher.cut();
    let recovery = Connector::new(served.address).recover(&identity).offer(RELIABLE);
    recovery.open().await.unwrap().done(join("g", published + 1)).await;
    served.reliable("newcomer").await.unwrap().done(join("g", 1)).await;
    drop(crowd);
    let (_, stderr) = served.stop().await;
    assert!(!stderr.contains("ERROR"), "{stderr}");
}

#[tokio::test]
async fn a_limit_on_the_size_of_files_ended_the_process() {
    let data = tempfile::tempdir().unwrap();
    let arguments = ["--data-dir", data.path().to_str().unwrap(), "--durability", "os"];
    let served = Served::start_with_small_files(8 * 1024, "disk", &arguments).await;
    let mut publisher = served.reliable("publisher").await.unwrap();
    let mut subscriber = Connector::new(served.address)
        .token(&Token::user("s").group("g"))
        .offer(RELIABLE)
        .open()
        .await
        .unwrap();
    subscriber.read_connected().await;
    // Five times what a file may hold: the log goes on in another one.
    let text = "x".repeat(500_000);
    for ack_id in 1..=80 {
        publisher.done(publish("g", ack_id, &text)).await;
        let message = subscriber.read().await;
        assert_eq!(message["data"].as_str().map(str::len), Some(text.len()));
        subscriber.send(sequence_ack(message["sequenceId"].as_u64().unwrap())).await;
    }
    served.stop().await;
}

#[tokio::test]
async fn in_the_last_descriptors_only_recoveries_are_let_in() {
    let served = Served::start(Some(128), &[]).await;
    let waiting = served.reliable("waiting").await.unwrap();
    let identity = waiting.identity();
    let mut inside = Vec::new();
    let refused = loop {
        let connector = Connector::new(served.address).token(&Token::user("a")).offer(RELIABLE);
        match connector.open().await {
            Ok(socket) => inside.push(socket),
            Err(Refused(status)) => break status,
        }
        assert!(inside.len() < 128, "more sockets than descriptors");
    };
    assert_eq!(refused, 503);
    // Its old socket still has its descriptor: this one takes another.
    let recovery = Connector::new(served.address).recover(&identity).offer(RELIABLE);
    recovery.open().await.unwrap().done(join("g", 1)).await;
    drop((inside, waiting));
    let (_, stderr) = served.stop().await;
    assert!(!stderr.contains("ERROR"), "{stderr}");
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    // Nothing here happens because time has passed.
    let gateway = Gateway::with(|config| {
        config.handshakes_pending_max = 20;
        config.header_read_timeout_seconds = 300;
    })
    .await;
    let mut early = gateway.reliable("early").await;
    let mut crowd = silent(gateway.address(), 300).await;
    gateway.reliable("late").await.done(join("g", 1)).await;
    assert_eq!(Ask::new(gateway.address(), "HEAD", "/api/health").send().await.status, 200);
    early.done(join("g", 1)).await;
    for stream in &mut crowd[..270] {
        closed(stream).await;
    }
}

#[tokio::test]
async fn the_connection_that_was_silent_for_longest_goes_first() {
    let gateway = Gateway::with(|config| {
        config.handshakes_pending_max = 2;
        config.header_read_timeout_seconds = 300;
    })
    .await;
    let [mut first, mut second] = silent(gateway.address(), 2).await.try_into().unwrap();
    // The beginning of a head is no reason to stay.
    first.write_all(b"HEAD /api/health HTTP/1.1\r\n").await.unwrap();
    let mut third = TcpStream::connect(gateway.address()).await.unwrap();
    closed(&mut first).await;
    for stream in [&mut second, &mut third] {
        assert!(ask_on(stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn an_idle_http_connection_goes_when_there_are_too_many_and_a_socket_does_not() {
    let gateway = Gateway::with(|config| config.http_connections_max = 2).await;
    let mut socket = gateway.reliable("a").await;
    let mut kept = silent(gateway.address(), 3).await;
    for stream in &mut kept {
        assert!(ask_on(stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    }
    closed(&mut kept[0]).await;
    for stream in &mut kept[1..] {
        assert!(ask_on(stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    }
    socket.done(join("g", 1)).await;
}

#[tokio::test]
async fn an_http_connection_is_kept_for_longer_than_a_head_may_take() {
    let gateway = Gateway::with(|config| config.header_read_timeout_seconds = 1).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    assert!(ask_on(&mut stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    for _ in 0..6 {
        a_while().await;
    }
    assert!(ask_on(&mut stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    // The head of a later request may take no longer than that of the first.
    stream.write_all(b"HEAD /api/health HTTP/1.1\r\n").await.unwrap();
    closed(&mut stream).await;
}

#[tokio::test]
async fn an_http_connection_is_not_kept_for_longer_than_it_may_be() {
    let gateway = Gateway::with(|config| config.http_keep_alive_seconds = 1).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    for _ in 0..3 {
        assert!(ask_on(&mut stream, &health("")).await.starts_with("HTTP/1.1 200 "));
    }
    closed(&mut stream).await;
}

#[tokio::test]
async fn an_address_has_no_more_connections_than_it_may_have_but_for_a_trusted_proxy() {
    for (trusted, may_more) in [(&[][..], false), (&["192.0.2.0/24"], false), (&["127.0.0.0/8"], true)] {
        let gateway = Gateway::with(|config| {
            config.connections_per_address_max = Some(3);
            config.trusted_proxies = trusted.iter().map(|range| range.parse().unwrap()).collect();
        })
        .await;
        let mut inside = [gateway.reliable("a").await, gateway.reliable("b").await];
        let mut third = TcpStream::connect(gateway.address()).await.unwrap();
        assert!(ask_on(&mut third, &health("")).await.starts_with("HTTP/1.1 200 "));
        let mut fourth = TcpStream::connect(gateway.address()).await.unwrap();
        if may_more {
            assert!(ask_on(&mut fourth, &health("")).await.starts_with("HTTP/1.1 200 "));
            continue;
        }
        closed(&mut fourth).await;
        for socket in &mut inside {
            socket.done(join("g", 1)).await;
        }
        drop(inside);
        drop(third);
        // Once they have gone, others may come.
        let is_back = async {
            loop {
                let connector = gateway.connector().token(&Token::user("c")).offer(RELIABLE);
                if let Some(stream) = connector.stream().await {
                    break stream;
                }
                a_while().await;
            }
        };
        soon(is_back).await;
    }
}

#[tokio::test]
async fn answers_that_nobody_reads_are_given_up() {
    const REQUESTS: usize = 100;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "http_write_timeout_seconds = 1\ndemo = true\n").unwrap();
    let arguments = ["--config", file.path().to_str().unwrap(), "--log", "oncewire::edge=debug"];
    let mut served = Served::start(None, &arguments).await;
    let mut log = BufReader::new(served.child.stderr.take().unwrap());
    let page = Ask::new(served.address, "GET", "/").header("host", "localhost").send().await;
    let page = String::from_utf8(page.body).unwrap();
    let script = page.split('"').find(|part| part.ends_with(".js")).unwrap().trim_start_matches('.');
    let script = format!("/{}", script.trim_start_matches('/'));
    let whole = Ask::new(served.address, "GET", &script).header("host", "localhost").send().await.body.len();
    assert!(whole > 100_000, "{whole} bytes are no test");

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut never = socket.connect(served.address).await.unwrap();
    let request = format!("GET {script} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    never.write_all(request.repeat(REQUESTS).as_bytes()).await.unwrap();
    logged(&mut log, "did not take its answer").await;
    let mut rest = Vec::new();
    let _ = soon(never.read_to_end(&mut rest)).await;
    assert!(rest.len() < 2 * whole, "{} bytes had been kept for it", rest.len());
    served.child.stderr = Some(log.into_inner());
    served.stop().await;
}

#[tokio::test]
async fn slow_bodies_at_the_demo_keep_no_other_request_waiting() {
    let gateway = Gateway::with(|config| config.demo = true).await;
    let address = gateway.address();
    let head = format!(
        "POST /demo/negotiate HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let mut slow = silent(address, 1100).await;
    for stream in &mut slow {
        stream.write_all(head.as_bytes()).await.unwrap();
    }
    // Some of them are refused: so all before them are being waited for.
    let mut answer = [0; 12];
    soon(slow[1099].read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    assert_eq!(Ask::new(address, "GET", "/api/health").send().await.status, 200);
    let target = "/api/hubs/chat/:send?api-version=2024-12-01";
    let token = Token::bare().sign(&format!("http://{address}{target}"));
    let send = Ask::new(address, "POST", target).header("authorization", &format!("Bearer {token}"));
    assert_eq!(send.header("content-type", "text/plain").body("hi").send().await.status, 202);
    gateway.reliable("a").await.done(join("g", 1)).await;
}

#[tokio::test]
async fn a_website_can_do_nothing_where_everybody_knows_the_key() {
    let gateway = Gateway::with(|config| config.is_key_public = true).await;
    let address = gateway.address();
    let own = format!("http://{address}");
    let target = "/api/hubs/chat/:send?api-version=2024-12-01";
    for (host, origin, is_served) in [
        (address.to_string(), None, true),
        (address.to_string(), Some(own.as_str()), true),
        (address.to_string(), Some("http://localhost:3000"), true),
        (address.to_string(), Some("https://evil.example"), false),
        (address.to_string(), Some("null"), false),
        // A name that a website has resolve to this machine.
        ("evil.example".to_owned(), None, false),
        ("evil.example".to_owned(), Some("http://evil.example"), false),
    ] {
        let connector =
            gateway.connector().host(&host).through(address).token(&Token::user("a")).offer(RELIABLE);
        let token = Token::bare().sign(&format!("http://{host}{target}"));
        let send = Ask::new(address, "POST", target).header("host", &host).header("content-length", "0");
        let send = send.header("authorization", &format!("Bearer {token}"));
        let (connector, send) = match origin {
            Some(origin) => (connector.header("Origin", origin), send.header("origin", origin)),
            None => (connector, send),
        };
        let expected = if is_served { (101, 202) } else { (403, 403) };
        let statuses = (connector.status().await, send.send().await.status);
        assert_eq!(statuses, expected, "{origin:?} at {host}");
    }
}

#[tokio::test]
async fn a_request_with_two_hosts_or_none_or_what_is_no_host_is_400() {
    let gateway = Gateway::start().await;
    for (lines, status) in [
        ("HTTP/1.1\r\nHost: a\r\nHost: b\r\n", "400"),
        ("HTTP/1.1\r\nHost: a\r\nHost: a\r\n", "400"),
        ("HTTP/1.1\r\nHost: a b\r\n", "400"),
        ("HTTP/1.1\r\nHost: ann@a\r\n", "400"),
        ("HTTP/1.1\r\n", "400"),
        ("HTTP/1.1\r\nHost: a\r\n", "200"),
        ("HTTP/1.0\r\n", "200"),
    ] {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        let answer = ask_on(&mut stream, &format!("HEAD /api/health {lines}\r\n")).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{lines}");
    }
}

#[tokio::test]
async fn a_body_whose_end_is_not_clear_or_that_is_encoded_is_400() {
    let gateway = Gateway::start().await;
    for (lines, status) in [
        ("Transfer-Encoding: chunked\r\n", "401"),
        ("Transfer-Encoding: gzip, chunked\r\n", "400"),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "400"),
        ("Transfer-Encoding: identity\r\n", "400"),
        ("Content-Length: 0\r\n", "401"),
    ] {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        let request = format!(
            "POST /api/hubs/h/:send?api-version=2024-01-01 HTTP/1.1\r\nHost: a\r\n{lines}\r\n0\r\n\r\n"
        );
        let answer = ask_on(&mut stream, &request).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{lines}");
    }
}

#[tokio::test]
async fn the_operators_listener_has_metrics_and_the_clients_have_none_then() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "metrics = true\nheader_read_timeout_seconds = 300\n").unwrap();
    let arguments = ["--config", file.path().to_str().unwrap(), "--admin-listen", &free.to_string()];
    let served = Served::start(None, &arguments).await;
    let mut socket = served.reliable("a").await.unwrap();
    // Nobody keeps the operator out either.
    let _crowd = (silent(free, 200).await, silent(served.address, 200).await);
    for (address, path, status) in [
        (free, "/api/health", 200),
        (free, "/livez", 200),
        (free, "/metrics", 200),
        (free, "/api/hubs/chat/users/u", 404),
        (free, "/client/hubs/chat", 404),
        (served.address, "/api/health", 200),
        (served.address, "/livez", 200),
        (served.address, "/metrics", 404),
    ] {
        assert_eq!(Ask::new(address, "GET", path).send().await.status, status, "{path} at {address}");
    }
    let metrics = Ask::new(free, "GET", "/metrics").send().await;
    assert!(String::from_utf8(metrics.body).unwrap().contains("oncewire_sockets{hub=\"chat\"} 1"));
    socket.done(join("g", 1)).await;
    served.stop().await;
}

#[tokio::test]
async fn a_gateway_whose_store_does_nothing_is_alive() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(std::sync::Arc::new(store.clone()), |_| {}).await;
    let mut socket = gateway.reliable("a").await;
    store.hold();
    socket.send(join("g", 1)).await;
    let answer = Ask::new(gateway.address(), "GET", "/livez").send().await;
    assert_eq!((answer.status, &*answer.body), (200, &b"ok\n"[..]));
    store.release();
    socket.expect(success(1)).await;
}

#[tokio::test]
async fn an_idle_socket_does_not_hold_the_buffer_of_its_largest_message_in_fragments() {
    let served = Served::start(None, &[]).await;
    let message = json!({"type": "ping", "padding": "x".repeat(1_000_000)}).to_string();
    let mut frames = Vec::new();
    let parts: Vec<_> = message.as_bytes().chunks(60_000).collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        frames.push(u8::from(index == 0) | if is_last { 0x80 } else { 0 });
        frames.push(0xFE);
        frames.extend_from_slice(&(part.len() as u16).to_be_bytes());
        frames.extend_from_slice(&[0; 4]);
        frames.extend_from_slice(part);
    }
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut socket = served.reliable(&format!("s{number}")).await.unwrap();
        socket.send_raw(&frames).await;
        socket.expect(json!({"type": "pong"})).await;
        idle.push(socket);
    }
    let held = served.resident_mib();
    assert!(held < 60, "{held} MiB for 100 idle sockets");
}

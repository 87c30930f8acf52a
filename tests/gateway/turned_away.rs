//! Whoever is turned away for want of room is told: to the operator by one warning for each episode, whose end says how many
//! they were, and by a count; to the client, where it is answered, by when it may try again.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;
use crate::telling::{Lines, Told, metric_at};

/// Checks that there was one warning, and that its end has this count at least.
fn one_episode(lines: &Lines, warning: &str, end: &str, count_min: u64) {
    let warned: Vec<_> = lines.all("WARN", warning);
    let begun: Vec<_> = warned.iter().filter(|fields| fields["count"].is_null()).collect();
    assert_eq!(begun.len(), 1, "{warned:#?}");
    let ends = lines.all("WARN", end);
    let ends: Vec<_> = ends.iter().filter(|fields| fields["count"].is_u64()).collect();
    assert_eq!(ends.len(), 1, "{ends:#?}");
    assert!(ends[0]["count"].as_u64().unwrap() >= count_min && ends[0]["seconds"].is_u64(), "{ends:#?}");
}

async fn connections(told: &Told, count: usize) -> Vec<TcpStream> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(soon(TcpStream::connect(told.address())).await.unwrap());
    }
    connections
}

async fn closed(stream: &mut TcpStream) {
    let mut said = Vec::new();
    let _ = soon(stream.read_to_end(&mut said)).await;
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn clients_that_were_refused_for_want_of_descriptors_were_in_no_line() {
    const REFUSED: usize = 18;
    let told = Told::start_with(Some(128), "").await;
    let (mut inside, mut refused) = (Vec::new(), 0);
    while refused < REFUSED {
        let connector = Connector::new(told.address()).token(&Token::user("u")).offer(RELIABLE);
        match connector.open().await {
            Ok(socket) => inside.push(socket),
            Err(Refused(status)) => {
                assert_eq!(status, 503);
                refused += 1;
            }
        }
        assert!(inside.len() < 128, "more sockets than descriptors");
    }
    inside.into_iter().for_each(Socket::cut);
    // Until the gateway has closed them too, whoever asks is refused, and counted.
    while Ask::new(told.address(), "GET", "/livez").send().await.status == 503 {
        refused += 1;
        a_while().await;
    }
    told.metric(&format!("oncewire_strangers_turned_away_total{{reason=\"descriptors_short\"}} {refused}"))
        .await;
    let lines = told.stop().await;
    one_episode(
        &lines,
        "clients are turned away: nearly all descriptors",
        "clients are turned away",
        refused as u64,
    );
}

#[tokio::test]
async fn connections_beyond_what_an_address_may_have_were_in_no_line() {
    let operator = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = Told::start(&format!("connections_per_address_max = 3\nadmin_listen = \"{operator}\"")).await;
    let inside = connections(&told, 3).await;
    for mut stream in connections(&told, 2).await {
        closed(&mut stream).await;
    }
    let counted = "oncewire_strangers_turned_away_total{reason=\"connections_per_address_max\"} 2";
    metric_at(operator, counted).await;
    drop(inside);
    let lines = told.stop().await;
    one_episode(&lines, "connections are closed: ", "connections are closed: ", 2);
}

#[tokio::test]
async fn silent_connections_that_go_for_others_were_in_no_line() {
    let told = Told::start("handshakes_pending_max = 4\nheader_read_timeout_seconds = 300").await;
    let mut crowd = connections(&told, 10).await;
    for stream in &mut crowd[..6] {
        closed(stream).await;
    }
    let lines = told.stop().await;
    one_episode(&lines, "silent connections are closed: ", "silent connections are closed: ", 6);
}

#[tokio::test]
async fn requests_beyond_the_connections_that_are_being_answered_were_in_no_line() {
    let operator = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = format!("http_connections_max = 2\ndemo = true\nadmin_listen = \"{operator}\"");
    let told = Told::start(&config).await;
    let address = told.address();
    let mut slow = connections(&told, 2).await;
    for stream in &mut slow {
        let head = demo_request_head(address).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // From then on it is being answered.
        let mut begun = [0; 12];
        soon(stream.read_exact(&mut begun)).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 100");
    }
    for _ in 0..3 {
        let answer = Ask::new(address, "GET", "/api/health").send().await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "5"));
    }
    metric_at(operator, "oncewire_strangers_turned_away_total{reason=\"http_connections_max\"} 3").await;
    drop(slow);
    let lines = told.stop().await;
    one_episode(&lines, "HTTP requests are refused: as many", "HTTP requests are refused: http_conn", 3);
}

#[tokio::test]
async fn strangers_who_speak_neither_http_nor_tls_were_in_no_count() {
    let directory = tempfile::tempdir().unwrap();
    let files = Pair::new().write(directory.path());
    let gateway = Gateway::with_tls(&files, |config| config.metrics = true).await;
    for address in [gateway.address(), gateway.tls_address()] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"hello, is anybody there?\r\n\r\n").await.unwrap();
        let _ = soon(stream.read_to_end(&mut Vec::new())).await;
    }
    for reason in ["no_http", "tls_failed"] {
        let line = format!("oncewire_strangers_turned_away_total{{reason=\"{reason}\"}} 1");
        metric_at(gateway.address(), &line).await;
    }
}

/// Of a request to the demo page's routes whose body is to come.
fn demo_request_head(address: SocketAddr) -> String {
    format!(
        "POST /demo/negotiate HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    )
}

#[tokio::test]
async fn requests_that_are_shed_were_in_no_count_and_without_a_time_to_try_again() {
    let told = Told::start("demo = true").await;
    let address = told.address();
    let head = demo_request_head(address) + "{";
    let mut slow = connections(&told, 66).await;
    for stream in &mut slow {
        stream.write_all(head.as_bytes()).await.unwrap();
    }
    // Whichever they are: some are refused at once, the others when they have taken too long.
    for stream in &mut slow {
        let mut answer = Vec::new();
        while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
            assert!(soon(stream.read_buf(&mut answer)).await.unwrap() > 0);
        }
        let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 503") && answer.contains("\r\nretry-after: 5\r\n"), "{answer}");
    }
    told.metric("oncewire_http_requests_shed_total{reason=\"demo_requests_max\"} 2").await;
    told.metric("oncewire_http_requests_shed_total{reason=\"timed_out\"} 64").await;
    let lines = told.stop().await;
    one_episode(&lines, "HTTP requests are refused: as many", "HTTP requests are refused: too many", 2);
    one_episode(&lines, "HTTP requests are given up", "HTTP requests are given up", 64);
}

#[tokio::test]
async fn a_client_that_recovers_in_vain_is_counted_and_its_message_has_a_size() {
    let told = Told::start("").await;
    let mut socket = told.session(RELIABLE, &Token::user("u").group("g")).await;
    let identity = socket.identity();
    socket.send(publish("g", 1, &"x".repeat(1234))).await;
    socket.expect(message(1, "g", "u", &"x".repeat(1234))).await;
    socket.expect(success(1)).await;
    socket.close(1001).await;
    // A slow machine takes more of them, since a socket that has lived for long was not in vain.
    let again_and_again = async {
        loop {
            let recovery = Connector::new(told.address()).recover(&identity).offer(RELIABLE);
            let mut socket = recovery.open().await.unwrap();
            socket.expect(message(1, "g", "u", &"x".repeat(1234))).await;
            socket.close(1001).await;
            let metrics = Ask::new(told.address(), "GET", "/metrics").send().await;
            let metrics = String::from_utf8(metrics.body).unwrap();
            let none = "oncewire_recoveries_delayed_total{reason=\"in_vain\"} 0";
            if !metrics.lines().any(|line| line == none) {
                break;
            }
        }
    };
    soon(again_and_again).await;
    let lines = told.stop().await;
    let warning = lines.one("WARN", "a client recovers its session again and again");
    assert_eq!(warning["connection_id"], json!(identity.connection_id));
    assert_eq!(warning["first_message_bytes"], json!(1234), "{warning}");
    assert!(!lines.all("WARN", "clients recover their sessions in vain").is_empty());
}

#[tokio::test]
async fn sessions_beyond_the_bound_were_refused_without_a_warning() {
    let told = Told::start("sessions_max = 1").await;
    let _inside = told.session(RELIABLE, &Token::user("u")).await;
    for _ in 0..2 {
        let connector = Connector::new(told.address()).token(&Token::user("v")).offer(RELIABLE);
        assert_eq!(connector.status().await, 503);
    }
    told.metric("oncewire_upgrades_refused_total{reason=\"no_room\"} 2").await;
    let lines = told.stop().await;
    one_episode(&lines, "clients are refused: there are as many sessions", "clients are refused: no room", 2);
}

#[tokio::test]
async fn what_a_failing_store_has_refused_did_not_say_when_to_try_again() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let _member = gateway.session(RELIABLE, &Token::user("u").group("g")).await;
    let target = "/api/hubs/chat/:send?api-version=2024-12-01";
    let token = Token::bare().sign(&format!("http://{}{target}", gateway.address()));
    let send =
        Ask::new(gateway.address(), "POST", target).header("authorization", &format!("Bearer {token}"));
    store.fail_next(Failure::Definite);
    let answer = send.header("content-type", "text/plain").body("hi").send().await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "5"));
}

//! https: what clients agree on with the gateway, and that everything behind it goes on as in the clear.

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{HandshakeKind, ProtocolVersion};

use crate::support::*;

/// A gateway with https, and a client that trusts it.
pub struct Secured {
    pub gateway: Gateway,
    pub client: TlsClient,
    pub pair: Pair,
    directory: TempDir,
}

impl Secured {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut oncewire::config::Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pair = Pair::new();
        let files = pair.write(directory.path());
        let gateway = Gateway::with_tls(&files, change).await;
        Self { gateway, client: TlsClient::new(&pair.certificate), pair, directory }
    }

    async fn reliable(&self, user: &str) -> Socket {
        self.gateway.reliable_inside(&self.client, user).await
    }

    /// A session that is in `g` from the start.
    async fn subscriber(&self, receive_buffer_bytes: Option<u32>) -> Socket {
        let token = Token::user("s").group("g");
        let mut connector = self.gateway.tls_connector(&self.client).token(&token).offer(RELIABLE);
        if let Some(bytes) = receive_buffer_bytes {
            connector = connector.receive_buffer_bytes(bytes);
        }
        let mut socket = connector.open().await.unwrap();
        socket.read_connected().await;
        socket
    }
}

/// Asks for the gateway's health and reads to the end, which has to be said.
async fn health(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> String {
    stream
        .write_all(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    stream.flush().await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn both_versions_are_spoken_and_a_client_comes_back_with_its_session() {
    let secured = Secured::start().await;
    for (version, spoken) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let client = TlsClient::with(&secured.pair.certificate, &[version], &["http/1.1"]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut stream = client.connect(secured.gateway.tls_address()).await.unwrap();
            let (_, session) = stream.get_ref();
            assert_eq!(session.protocol_version(), Some(spoken));
            assert_eq!(session.handshake_kind(), Some(kind), "{spoken:?}");
            assert!(health(&mut stream).await.starts_with("HTTP/1.1 200 "));
        }
        let mut socket = secured.gateway.reliable_inside(&client, "a").await;
        socket.done(join("g", 1)).await;
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_when_its_files_change_and_sockets_stay() {
    let secured = Secured::start().await;
    let address = secured.gateway.tls_address();
    let mut early = secured.reliable("early").await;
    // What can't be used changes nothing; time enough for several looks.
    std::fs::write(secured.directory.path().join("key.pem"), "no key").unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    TlsClient::new(&secured.pair.certificate).connect(address).await.unwrap();
    let new = Pair::new();
    new.write(secured.directory.path());
    // Each time a client with no memory of earlier connections.
    soon(async {
        while TlsClient::new(&new.certificate).connect(address).await.is_err() {
            a_while().await;
        }
    })
    .await;
    assert!(TlsClient::new(&secured.pair.certificate).connect(address).await.is_err());
    early.done(join("g", 1)).await;
}

#[tokio::test]
async fn http_1_1_is_agreed_on_with_whoever_offers_it_and_nothing_else_with_anybody() {
    let secured = Secured::start().await;
    for (offer, agreed) in
        [(&["http/1.1"][..], Some("http/1.1")), (&["h2", "http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let client = TlsClient::with(&secured.pair.certificate, &[&TLS13], offer);
        let stream = client.connect(secured.gateway.tls_address()).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes), "{offer:?}");
    }
    let client = TlsClient::with(&secured.pair.certificate, &[&TLS13], &["h2"]);
    let refusal = client.connect(secured.gateway.tls_address()).await.unwrap_err();
    assert!(refusal.to_string().contains("NoApplicationProtocol"), "{refusal}");
}

#[tokio::test]
async fn messages_pass_between_https_and_http() {
    let secured = Secured::start().await;
    let mut inside = secured.subscriber(None).await;
    let mut plain = secured.gateway.session(RELIABLE, &Token::user("p").group("g")).await;
    plain.send(publish("g", 1, "to https")).await;
    inside.expect(message(1, "g", "p", "to https")).await;
    plain.expect(message(1, "g", "p", "to https")).await;
    plain.expect(success(1)).await;
    inside.send(publish("g", 1, "to http")).await;
    plain.expect(message(2, "g", "s", "to http")).await;
    inside.expect(message(2, "g", "s", "to http")).await;
    inside.expect(success(1)).await;
}

#[tokio::test]
async fn large_messages_reach_a_slow_reader_whole_and_the_last_one_needs_no_other_behind_it() {
    let secured = Secured::start().await;
    let mut publisher = secured.reliable("p").await;
    let mut ack_id = 0;
    // What is stuck differs from round to round: many records, a part of one, a little.
    for (messages, bytes) in [(8, 900_000), (40, 100_000), (200, 16_384), (3000, 700), (1, 1_000_000)] {
        let mut subscriber = secured.subscriber(Some(4096)).await;
        let text = |n: u64| format!("{n:06}{}", "x".repeat(bytes - 6));
        for n in 1..=messages {
            ack_id += 1;
            publisher.done(publish("g", ack_id, &text(n))).await;
        }
        for n in 1..=messages {
            let heard = subscriber.read().await;
            assert!(heard["data"] == text(n).as_str(), "message {n} of {bytes} bytes");
        }
        subscriber.close(1000).await;
    }
}

#[tokio::test]
async fn many_messages_sent_together_are_each_executed_once_and_in_order() {
    let secured = Secured::start().await;
    let mut subscriber = secured.subscriber(None).await;
    let mut publisher = secured.reliable("p").await;
    const MESSAGES: u64 = 3000;
    let sending = publisher.send_together((1..=MESSAGES).map(|n| publish("g", n, &n.to_string())));
    let reading = async {
        for n in 1..=MESSAGES {
            assert_eq!(subscriber.read().await["data"], n.to_string());
        }
    };
    tokio::join!(sending, reading);
    for n in 1..=MESSAGES {
        publisher.expect(success(n)).await;
    }
}

#[tokio::test]
async fn a_session_is_resumed_over_https_and_redelivered_what_was_missed() {
    let secured = Secured::start().await;
    let mut subscriber = secured.subscriber(None).await;
    let mut publisher = secured.reliable("p").await;
    publisher.done(publish("g", 1, "before")).await;
    subscriber.expect(message(1, "g", "p", "before")).await;
    let identity = subscriber.identity();
    subscriber.cut();
    publisher.done(publish("g", 2, "meanwhile")).await;
    let recover = |identity: &Identity| {
        secured.gateway.tls_connector(&secured.client).recover(identity).offer(RELIABLE)
    };
    let mut subscriber = recover(&identity).open().await.unwrap();
    subscriber.expect(message(1, "g", "p", "before")).await;
    subscriber.expect(message(2, "g", "p", "meanwhile")).await;
    let unknown = Identity { reconnection_token: "no token".to_owned(), ..identity };
    recover(&unknown).open().await.unwrap().expect_close(1008).await;
}

#[tokio::test]
async fn the_end_is_said_in_tls_too() {
    let secured = Secured::start().await;
    let connector = secured.gateway.tls_connector(&secured.client).token(&Token::user("a")).offer(RELIABLE);
    let mut stream = connector.stream().await.unwrap();
    let wire = stream.get_mut();
    // A close frame with 1000, masked with zeros.
    wire.write_all(b"\x88\x82\0\0\0\0\x03\xe8").await.unwrap();
    wire.flush().await.unwrap();
    let mut heard = Vec::new();
    // Without the word of its end this were an error.
    soon(wire.read_to_end(&mut heard)).await.unwrap();
    assert!(heard.ends_with(b"\x88\x02\x03\xe8"), "{heard:?}");
}

#[tokio::test]
async fn sockets_inside_tls_are_closed_with_1001_at_the_end_and_half_handshakes_are_not_waited_for() {
    let secured = Secured::start().await;
    let half = TcpStream::connect(secured.gateway.tls_address()).await.unwrap();
    let socket = secured.reliable("a").await;
    tokio::join!(secured.gateway.begin_shut_down(), socket.expect_close(1001));
    drop(half);
}

#[tokio::test]
async fn half_handshakes_count_as_pending_and_are_cut_in_time() {
    let secured = Secured::with(|config| {
        config.handshakes_pending_max = 2;
        config.header_read_timeout_seconds = 2;
    })
    .await;
    let mut open = secured.reliable("early").await;
    let mut pending = Vec::new();
    // One says nothing, the other the beginning of a handshake.
    for said in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(secured.gateway.tls_address()).await.unwrap();
        stream.write_all(said).await.unwrap();
        pending.push(stream);
    }
    // One of them goes.
    let _late = secured.reliable("late").await;
    let is_given_up = |stream: &TcpStream| {
        !stream.try_read(&mut [0; 8]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(pending.iter().any(is_given_up), "both are pending still");
    for mut stream in pending {
        let mut heard = Vec::new();
        let _ = soon(stream.read_to_end(&mut heard)).await;
    }
    secured.reliable("later").await.done(join("g", 1)).await;
    open.expect_quiet().await;
}

#[tokio::test]
async fn a_listener_at_rest_keeps_no_place_from_the_other() {
    let secured = Secured::with(|config| config.handshakes_pending_max = 1).await;
    for name in ["a", "b"] {
        secured.gateway.reliable(name).await.done(join("g", 1)).await;
        secured.reliable(name).await.done(join("g", 1)).await;
    }
}

#[tokio::test]
async fn whoever_speaks_the_wrong_protocol_is_let_go_and_the_others_are_served() {
    let secured = Secured::start().await;
    let mut plain = TcpStream::connect(secured.gateway.tls_address()).await.unwrap();
    plain.write_all(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = soon(plain.read_to_end(&mut heard)).await;
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
    assert!(secured.client.connect(secured.gateway.address()).await.is_err());
    secured.reliable("a").await.done(join("g", 1)).await;
    secured.gateway.reliable("b").await.done(join("g", 1)).await;
}

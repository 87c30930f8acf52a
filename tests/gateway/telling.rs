//! What a person who runs the gateway can read in its log and its metrics: ends, refusals, floods, and what is wrong with the
//! application. The real process is asked, and what it has written to standard error is read.

use std::net::SocketAddr;

use oncewire_proxy::{Action, Proxy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// Waits until the metrics of the gateway at this address have this line.
pub async fn metric_at(address: SocketAddr, line: &str) {
    soon(async {
        loop {
            let answer = Ask::new(address, "GET", "/metrics").send().await;
            let text = String::from_utf8(answer.body).unwrap();
            if text.lines().any(|found| found == line) {
                return;
            }
            a_while().await;
        }
    })
    .await;
}

/// A process with a configuration of its own, whose log is JSON at DEBUG.
pub struct Told {
    pub served: Served,
    directory: TempDir,
}

/// The lines of a log.
pub struct Lines(Vec<Value>);

impl Told {
    pub async fn start(config: &str) -> Self {
        Self::start_with(None, config).await
    }

    /// At most with so many descriptors.
    pub async fn start_with(descriptors_max: Option<u32>, config: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("oncewire.toml");
        std::fs::write(&file, format!("metrics = true\n{config}")).unwrap();
        let file = file.to_str().unwrap();
        let arguments = ["--config", file, "--log", "debug", "--log-format", "json"];
        let served = Served::start(descriptors_max, &arguments).await;
        Self { served, directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.served.address
    }

    pub async fn session(&self, subprotocol: &str, token: &Token) -> Socket {
        let mut socket = Connector::new(self.address()).token(token).offer(subprotocol).open().await.unwrap();
        socket.read_connected().await;
        socket
    }

    /// Waits until the metrics have this line.
    pub async fn metric(&self, line: &str) {
        metric_at(self.address(), line).await;
    }

    pub async fn stop(self) -> Lines {
        let (_, stderr) = self.served.stop().await;
        assert!(!stderr.contains(ACCESS_KEY) && !stderr.contains("eyJ"), "{stderr}");
        Lines(stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

impl Lines {
    /// The fields of all lines of this level whose message begins so.
    pub fn all(&self, level: &str, begin: &str) -> Vec<&Value> {
        let is_it = |line: &&Value| {
            line["level"] == level
                && line["fields"]["message"].as_str().is_some_and(|said| said.starts_with(begin))
        };
        self.0.iter().filter(is_it).map(|line| &line["fields"]).collect()
    }

    pub fn one(&self, level: &str, begin: &str) -> &Value {
        let all = self.all(level, begin);
        assert_eq!(all.len(), 1, "{level} {begin}: {:#?}", self.0);
        all[0]
    }

    /// The one of a session or a socket.
    fn of(&self, begin: &str, identity: &Identity) -> &Value {
        let all = self.all("DEBUG", begin);
        let own: Vec<_> =
            all.iter().filter(|fields| fields["connection_id"] == *identity.connection_id).collect();
        assert_eq!(own.len(), 1, "{begin}: {all:#?}");
        own[0]
    }
}

/// An application that answers each request of `method` by these lines of a head and no body.
async fn application(answers: &'static [(&'static str, &'static str)]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 16 * 1024];
                let read = stream.read(&mut request).await.unwrap_or_default();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let answer = answers.iter().find(|(method, _)| request.starts_with(method));
                let head = answer.map_or("404 Not Found", |(_, head)| head);
                let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

fn rest_token(address: SocketAddr, key: &str) -> String {
    format!("Bearer {}", Token::bare().key(key).sign(&format!("http://{address}/api/hubs/chat/:send")))
}

async fn send(address: SocketAddr, authorization: &str) -> Answer {
    let ask = Ask::new(address, "POST", "/api/hubs/chat/:send?api-version=2024-12-01");
    ask.header("content-type", "text/plain").header("authorization", authorization).body("x").send().await
}

#[tokio::test]
async fn each_end_has_a_line_with_its_reason_its_user_its_peer_and_who_closed() {
    let told = Told::start("session_retention_seconds = 1").await;
    let proxy = Proxy::start("127.0.0.1:0".parse().unwrap(), told.address()).await.unwrap();
    let leaving = told.session(RELIABLE, &Token::user("leaving")).await;
    let mut breaking = told.session(JSON, &Token::user("breaking")).await;
    let lost =
        Connector::new(told.address()).token(&Token::user("lost")).offer(RELIABLE).through(proxy.address());
    let mut lost = lost.open().await.unwrap();
    lost.read_connected().await;
    let staying = told.session(RELIABLE, &Token::bare()).await;
    let who = [leaving.identity(), breaking.identity(), lost.identity(), staying.identity()];
    leaving.close(1000).await;
    breaking.send_binary(b"not text").await;
    breaking.expect_close(1003).await;
    proxy.strike_all(Action::CutRst);
    told.metric("oncewire_sessions_ended_total{reason=\"expired\"} 1").await;
    told.metric("oncewire_sessions_ended_total{reason=\"client_closed\"} 1").await;
    told.metric("oncewire_sockets_ended_total{reason=\"protocol_violation\"} 1").await;
    told.metric("oncewire_sockets{hub=\"chat\"} 1").await;
    told.metric("oncewire_sessions{hub=\"chat\"} 1").await;
    let (_, lines) = tokio::join!(staying.expect_close(1001), told.stop());
    for (identity, user, reason, closed_by) in [
        (&who[0], "leaving", "client_closed", "client"),
        (&who[1], "breaking", "protocol_violation", "gateway"),
        (&who[2], "lost", "expired", "gateway"),
    ] {
        let end = lines.of("session ended", identity);
        assert_eq!((&end["hub"], &end["user"]), (&json!("chat"), &json!(user)), "{end}");
        assert_eq!((&end["reason"], &end["closed_by"]), (&json!(reason), &json!(closed_by)), "{end}");
    }
    for (identity, user, reason, closed_by, code) in [
        (&who[0], json!("leaving"), "client_closed", "client", json!(1000)),
        (&who[1], json!("breaking"), "protocol_violation", "gateway", json!(1003)),
        (&who[2], json!("lost"), "lost", "network", Value::Null),
        (&who[3], Value::Null, "closed_by_gateway", "gateway", json!(1001)),
    ] {
        let end = lines.of("socket ended", identity);
        assert_eq!((&end["user"], &end["code"]), (&user, &code), "{end}");
        assert_eq!((&end["reason"], &end["closed_by"]), (&json!(reason), &json!(closed_by)), "{end}");
        assert!(end["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{end}");
    }
}

#[tokio::test]
async fn clients_that_do_not_keep_up_are_one_warning_and_its_end_says_how_many_they_were() {
    let told = Told::start("outbox_messages_max = 5").await;
    let mut slow = Vec::new();
    for number in 0..3 {
        slow.push(told.session(RELIABLE, &Token::user(&format!("slow{number}")).group("g")).await);
    }
    let mut publisher = told.session(RELIABLE, &Token::user("p")).await;
    for ack_id in 1..=6 {
        publisher.done(publish("g", ack_id, "x")).await;
    }
    publisher.cut();
    for mut socket in slow {
        socket.settle_until_close(1008).await;
    }
    told.metric("oncewire_sessions_ended_total{reason=\"outbox_full\"} 3").await;
    let lines = told.stop().await;
    let warning = lines.one("WARN", "a session is ended: more than outbox_messages_max");
    assert!(warning["user"].as_str().unwrap().starts_with("slow"), "{warning}");
    let end = lines.one("WARN", "sessions ended since their outbox was full");
    assert_eq!((&end["count"], &end["of"]), (&json!(3), &json!("hub chat")), "{end}");
    assert!(end["seconds"].is_u64(), "{end}");
    let closed: Vec<_> = lines.all("DEBUG", "socket ended");
    let by_gateway = closed.iter().filter(|end| end["text"] == "The reliable message buffer is full.");
    assert_eq!(by_gateway.count(), 3, "{closed:#?}");
}

#[tokio::test]
async fn an_event_that_no_handler_takes_is_one_warning_with_the_reason() {
    let told = Told::start(
        "[[hubs.chat.event_handlers]]\nurl_template = \"http://127.0.0.1:9/\"\nuser_event_pattern = \"known\"\n\
         abuse_protection = false\n",
    )
    .await;
    let mut client = told.session(RELIABLE, &Token::user("u")).await;
    for ack_id in 1..=3 {
        let event = json!({"type": "event", "event": "unknown", "ackId": ack_id, "dataType": "text", "data": "s3cret"});
        client.refused(event, "InternalServerError").await;
    }
    let raw = Connector::new(told.address()).hub("chta").token(&Token::user("r"));
    let mut raw = raw.open().await.unwrap();
    raw.send_text("s3cret").await;
    assert_eq!(raw.expect_close_reason(1011).await, "No event handler of the hub takes this event.");
    told.metric("oncewire_events_failed_total{reason=\"no_handler\"} 4").await;
    let lines = told.stop().await;
    let warnings = lines.all("WARN", "no event handler takes an event");
    assert_eq!(warnings.len(), 2, "one for each hub: {warnings:#?}");
    for (warning, hub, event, reason) in [
        (warnings[0], "chat", "unknown", "user_event_pattern"),
        (warnings[1], "chta", "message", "no event handler for"),
    ] {
        assert_eq!((&warning["hub"], &warning["event"]), (&json!(hub), &json!(event)), "{warning}");
        assert!(warning["reason"].as_str().unwrap().contains(reason), "{warning}");
    }
    assert!(!lines.0.iter().any(|line| line.to_string().contains("s3cret")));
}

#[tokio::test]
async fn a_connect_handler_that_fails_is_told_and_its_client_hears_that_nobody_could_be_asked() {
    let failing = application(&[("POST", "500 Internal Server Error")]).await;
    let mute = application(&[("OPTIONS", "200 OK"), ("POST", "200 OK")]).await;
    let told = Told::start(&format!(
        "[[hubs.chat.event_handlers]]\nurl_template = \"http://{failing}/{{event}}?code=s3cret\"\n\
         system_events = [\"connect\"]\nabuse_protection = false\nretry_after_seconds = [0]\n\
         [[hubs.mute.event_handlers]]\nurl_template = \"http://{mute}/{{event}}?code=s3cret\"\n\
         system_events = [\"connect\"]\n"
    ))
    .await;
    let refusal = async |hub: &str| {
        let connector = Connector::new(told.address()).hub(hub).token(&Token::user("u")).offer(RELIABLE);
        connector.status().await
    };
    for _ in 0..2 {
        assert_eq!(refusal("chat").await, 500);
    }
    assert_eq!(refusal("mute").await, 500);
    let text = text_of_refusal(told.address(), &Token::user("u")).await;
    assert!(text.contains("the application could not be asked about the connection"), "{text}");
    told.metric("oncewire_events_failed_total{reason=\"status\"} 3").await;
    told.metric("oncewire_events_failed_total{reason=\"not_allowed\"} 1").await;
    told.metric("oncewire_upgrades_refused_total{reason=\"handler_failed\"} 4").await;
    let lines = told.stop().await;
    let warnings = lines.all("WARN", "an event handler fails");
    let first = warnings.iter().find(|fields| fields["hub"] == "chat").unwrap();
    assert_eq!(
        (&first["event"], &first["failure"]),
        (&json!("connect"), &json!("500 Internal Server Error"))
    );
    let ended = warnings
        .iter()
        .filter(|fields| fields["count"] == 3 && fields["of"].as_str().unwrap().contains("chat"));
    assert_eq!(ended.count(), 1, "{warnings:#?}");
    let validation = lines.all("WARN", "an event handler gives no leave to send it events")[0];
    let refusal = validation["refusal"].as_str().unwrap();
    assert!(refusal.contains("200 OK") && refusal.contains("no WebHook-Allowed-Origin"), "{refusal}");
    let calls = lines.all("DEBUG", "event handler called");
    assert_eq!(calls.len(), 6, "each attempt: {calls:#?}");
    assert!(calls.iter().all(|call| call["status"] == 500 && call["elapsed_ms"].is_u64()), "{calls:#?}");
    assert!(!lines.0.iter().any(|line| line.to_string().contains("s3cret")));
}

/// The whole answer to an upgrade that is refused.
async fn text_of_refusal(address: SocketAddr, token: &Token) -> String {
    let token = token.sign(&format!("http://{address}/client/hubs/chat"));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /client/hubs/chat HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut read = 0;
    soon(async {
        while !String::from_utf8_lossy(&answer[..read]).contains("the application") {
            let more = stream.read(&mut answer[read..]).await.unwrap();
            assert!(more > 0, "{}", String::from_utf8_lossy(&answer[..read]));
            read += more;
        }
    })
    .await;
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn requests_under_another_access_key_are_one_warning_at_each_door_and_hear_why() {
    const OTHER_KEY: &str = "some other key that is long enough to be one";
    let told = Told::start("").await;
    let address = told.address();
    for _ in 0..3 {
        let connector = Connector::new(address).token(&Token::user("u").key(OTHER_KEY)).offer(RELIABLE);
        assert_eq!(connector.status().await, 401);
        let answer = send(address, &rest_token(address, OTHER_KEY)).await;
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(
            (answer.status, &*message),
            (401, "The access token is not signed with this gateway's access key.")
        );
    }
    let elsewhere = Token::bare().sign(&format!("http://{address}/api/hubs/other/:send"));
    let answer = send(address, &format!("Bearer {elsewhere}")).await;
    let wanted = format!("http://{address}/api/hubs/chat/:send");
    let message =
        format!("The access token is for another audience: its aud names another URL; wanted: {wanted}");
    assert_eq!((answer.status, &answer.json()["message"]), (401, &json!(message)));
    let expired = Token::bare().claim("exp", json!(1)).sign(&format!("http://{address}/api/hubs/chat/:send"));
    let answer = send(address, &format!("Bearer {expired}")).await;
    assert_eq!((answer.status, &answer.json()["message"]), (401, &json!("The access token has expired.")));
    assert_eq!(send(address, "Basic x").await.json()["message"], "An access token is needed.");
    assert_eq!(send(address, &rest_token(address, ACCESS_KEY)).await.status, 202);
    let unknown = Ask::new(address, "GET", "/clients/mqtt/hubs/chat?access_token=s3cret").send().await;
    assert_eq!(unknown.status, 404);
    assert!(String::from_utf8(unknown.body).unwrap().contains("MQTT"));
    told.metric("oncewire_tokens_refused_total{reason=\"wrong_key\"} 6").await;
    told.metric("oncewire_tokens_refused_total{reason=\"wrong_audience\"} 1").await;
    told.metric("oncewire_tokens_refused_total{reason=\"missing\"} 1").await;
    told.metric("oncewire_rest_requests_refused_total{reason=\"unauthorized\"} 6").await;
    told.metric("oncewire_upgrades_refused_total{reason=\"token\"} 3").await;
    let lines = told.stop().await;
    let warnings = lines.all("WARN", "requests are refused: their access tokens are signed");
    let doors: Vec<_> = warnings.iter().map(|warning| warning["door"].as_str().unwrap()).collect();
    assert_eq!(doors, ["clients", "the REST API"]);
    assert_eq!(
        lines.one("WARN", "requests are refused: their access tokens are for another URL")["wanted"],
        wanted
    );
    let refused = lines.all("DEBUG", "upgrade refused");
    assert_eq!(refused.len(), 3);
    assert!(refused[0]["reason"].as_str().unwrap().contains("not signed with this gateway's access key"));
    assert!(refused[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:") && refused[0]["hub"] == "chat");
    let calls = lines.all("DEBUG", "REST call");
    let statuses: Vec<_> = calls.iter().map(|call| call["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [401, 401, 401, 401, 401, 401, 202]);
    assert!(calls.iter().all(|call| call["path"] == "/api/hubs/chat/:send" && call["elapsed_ms"].is_u64()));
    assert_eq!(lines.one("DEBUG", "nothing there")["path"], "/clients/mqtt/hubs/chat");
    assert!(!lines.0.iter().any(|line| line.to_string().contains("s3cret")));
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_nobody_up_and_says_how_much_is_missing() {
    const MESSAGES: usize = 40_000;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("oncewire.toml");
    std::fs::write(&file, "metrics = true\n").unwrap();
    let mut served = Served::start(None, &["--config", file.to_str().unwrap(), "--log", "trace"]).await;
    let mut socket = served.reliable("u").await.unwrap();
    for _ in 0..MESSAGES / 100 {
        // Each leaves a line, and none is answered.
        socket.send_together((0..100).map(|_| sequence_ack(1))).await;
    }
    socket.done(join("g", 1)).await;
    let answer = Ask::new(served.address, "GET", "/metrics").send().await;
    let text = String::from_utf8(answer.body).unwrap();
    let dropped = text.lines().find_map(|line| line.strip_prefix("oncewire_log_lines_dropped_total "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{text}");
    let mut stderr = served.child.stderr.take().unwrap();
    served.signal("TERM");
    // It is told why the log is not whole, once it is read again.
    let mut read = String::new();
    soon(stderr.read_to_string(&mut read)).await.unwrap();
    assert!(read.contains("log lines were dropped"), "{} bytes", read.len());
    assert!(soon(served.child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_process_whose_log_nobody_reads_ends_all_the_same() {
    let mut served = Served::start(None, &["--log", "trace"]).await;
    let mut socket = served.reliable("u").await.unwrap();
    for _ in 0..50 {
        socket.send_together((0..100).map(|_| sequence_ack(1))).await;
    }
    socket.done(join("g", 1)).await;
    let stderr = served.child.stderr.take().unwrap();
    served.signal("TERM");
    socket.expect_close(1001).await;
    assert!(soon(served.child.wait()).await.unwrap().success());
    drop(stderr);
}

#[tokio::test]
async fn a_hang_up_ends_nobody_and_has_the_files_read_again() {
    let told = Told::start("").await;
    let mut socket = told.session(RELIABLE, &Token::user("u")).await;
    let handler = "[[hubs.chat.event_handlers]]\nurl_template = \"http://127.0.0.1:9/\"\nuser_event_pattern = \"*\"\nabuse_protection = false\nretry_after_seconds = []\n";
    let file = told.directory.path().join("oncewire.toml");
    std::fs::write(file, format!("metrics = true\n{handler}")).unwrap();
    told.served.signal("HUP");
    soon(async {
        let mut ack_id = 1;
        loop {
            let event =
                json!({"type": "event", "event": "e", "ackId": ack_id, "dataType": "text", "data": ""});
            let ack = socket.ask(event).await;
            if !ack["error"]["message"].as_str().unwrap().contains("No event handler") {
                break;
            }
            ack_id += 1;
            a_while().await;
        }
    })
    .await;
    let lines = told.stop().await;
    lines.one("INFO", "SIGHUP");
    lines.one("INFO", "the event handlers of the changed configuration file are used");
}

#[tokio::test]
async fn a_second_sigterm_ends_it_at_once() {
    let served = Served::start(None, &[]).await;
    let mut silent = served.reliable("a").await.unwrap();
    served.signal("TERM");
    silent.expect_close_frame_unanswered(1001).await;
    served.signal("TERM");
    let output = soon(served.child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    drop(silent);
}

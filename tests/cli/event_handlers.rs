//! Event handlers as an operator meets them.

use std::net::TcpListener;

use super::*;

/// An application that gives leave to send, and refuses each client with this status; gives its address.
fn application(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut lines = stream.by_ref().lines().map_while(Result::ok);
            let Some(request) = lines.next() else { continue };
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut body).unwrap();
            let answer = match request.split(' ').next() {
                Some("OPTIONS") => "200 OK\r\nWebHook-Allowed-Origin: *",
                _ => status,
            };
            let mut stream = stream.into_inner();
            write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        }
    });
    address
}

/// How a client's handshake is answered.
fn handshake(gateway: SocketAddr) -> String {
    let mut stream = TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /client/hubs/chat HTTP/1.1\r\nHost: {gateway}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn handlers_change_with_the_file_while_the_gateway_runs_and_a_wrong_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oncewire.toml");
    let handler = |url: &str| {
        let text = format!(
            "[hubs.chat]\nanonymous = true\n[[hubs.chat.event_handlers]]\nurl_template = \"{url}\"\n\
             system_events = [\"connect\"]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let (first, second) = (application("402 Payment Required"), application("403 Forbidden"));
    handler(&format!("http://{first}/{{event}}?code={{env:HOOK_CODE}}&more=s3cret"));
    let arguments = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:0", "--config"];
    let mut command = oncewire(&arguments);
    command.arg(&file).args(["--log", "debug"]).env("HOOK_CODE", "of-the-env");
    let mut running = Running::start(&mut command);
    let mut log = BufReader::new(running.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut logged = Vec::new();
    let mut until = |text: &str| {
        let found = log.by_ref().inspect(|line| logged.push(line.clone())).find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("the log ends without {text:?}"))
    };
    let gateway = address(&connection_string(&running.line()).0);
    assert!(handshake(gateway).starts_with("HTTP/1.1 402 "), "{}", handshake(gateway));
    handler(&format!("http://{second}/{{event}}?code=s3cret"));
    until("are used from now on");
    assert!(handshake(gateway).starts_with("HTTP/1.1 403 "));
    handler("http://{hub}.example/?code=s3cret");
    let refusal = until("can't be used");
    assert!(
        refusal.contains("WARN") && refusal.contains("line 4") && refusal.contains("not in the host"),
        "{refusal}"
    );
    assert!(handshake(gateway).starts_with("HTTP/1.1 403 "));
    running.signal("TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    logged.extend(log);
    for secret in ["of-the-env", "s3cret"] {
        assert!(!logged.iter().any(|line| line.contains(secret)), "{logged:#?}");
    }
}

#[test]
fn a_handler_that_cannot_be_used_is_named_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oncewire.toml");
    for (keys, reason) in [
        ("url_template = \"https://a.example/\"\ntls_ca = \"/nowhere/ca.pem\"", "/nowhere/ca.pem"),
        ("url_template = \"http://a.example/{env:HOOK_CODE}\"", "HOOK_CODE is not set"),
        ("url_template = \"http://a.example/\"\nuser_event_pattern = \"a.*\"", "user_event_pattern"),
    ] {
        std::fs::write(&file, format!("[[hubs.chat.event_handlers]]\n{keys}\n")).unwrap();
        let arguments = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:0", "--config"];
        let message = refused(oncewire(&arguments).arg(&file));
        assert!(message.contains(reason) && message.contains("event_handlers[0]"), "{message}");
    }
}

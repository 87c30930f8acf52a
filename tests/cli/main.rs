//! The `oncewire` command as its users meet it: flags, environment, exit codes, and what it prints where.

// Clippy allows these in tests, but does not take the helpers of an integration test for one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod event_handlers;
mod first_minutes;
mod log;
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use oncewire::auth::{AccessKeys, AudienceContext, ClientClaims, TokenError};

const KEY: &str = "cli-test-key-0123456789abcdef-0123456789";
/// A safety net for noisy machines; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command, shielded from the variables of whoever runs the tests, and without a disk.
fn oncewire(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncewire"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.env("ONCEWIRE_STORE", "memory").env("ONCEWIRE_PRINT_CONNECTION_STRING", "true");
    command
}

/// The command in a directory of its own, with the store that it has by default.
fn oncewire_in(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = oncewire(arguments);
    command.env_remove("ONCEWIRE_STORE").current_dir(directory);
    command
}

fn finish(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Expects exit code 2 with nothing on standard output, and returns what was said.
fn refused(command: &mut Command) -> String {
    let (code, stdout, stderr) = finish(command);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    stderr
}

/// A running gateway, killed when dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// The next line that begins so.
    fn line_with(&self, begin: &str) -> String {
        std::iter::repeat_with(|| self.line()).find(|line| line.starts_with(begin)).unwrap()
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }

    /// Waits for the end; returns the exit code and what was logged.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The endpoint and the key in a connection string line.
fn connection_string(line: &str) -> (String, String) {
    let (_, parts) = line.split_once("connection string: ").unwrap();
    let parts: Vec<(&str, &str)> =
        parts.split_terminator(';').map(|part| part.split_once('=').unwrap()).collect();
    let [("Endpoint", endpoint), ("AccessKey", key), ("Version", "1.0")] = parts[..] else {
        panic!("not a connection string: {line}")
    };
    (endpoint.to_owned(), key.to_owned())
}

fn address(endpoint: &str) -> SocketAddr {
    endpoint.strip_prefix("http://").unwrap().parse().unwrap()
}

fn health(address: SocketAddr, method: &str) -> String {
    ask(address, method, "/api/health")
}

fn ask(address: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Checks a client URL's token as the gateway would.
fn verify(
    url: &str,
    host: &str,
    hub: &str,
    key: &str,
    after_seconds: u64,
) -> Result<ClientClaims, TokenError> {
    let (_, token) = url.split_once("?access_token=").unwrap();
    let audience = AudienceContext { public_urls: &[], host: Some(host), hub };
    AccessKeys::new(key, None).unwrap().verify_client_token(
        token,
        &audience,
        now_unix_seconds() + after_seconds,
    )
}

#[test]
fn serve_without_a_key_refuses_to_start() {
    let message = refused(&mut oncewire(&["serve", "--listen", "127.0.0.1:0"]));
    assert!(message.contains("no access key") && message.contains("ONCEWIRE_ACCESS_KEY"), "{message}");
    let message = refused(oncewire(&["serve"]).env("ONCEWIRE_ACCESS_KEY", ""));
    assert!(message.contains("no access key"), "{message}");
}

#[test]
fn a_short_key_is_refused_and_not_shown() {
    let short = "tiny-secret-of-31-bytes-1234567";
    let message = refused(&mut oncewire(&["serve", "--access-key", short]));
    assert!(message.contains("at least 32 bytes") && message.contains("primary"), "{message}");
    assert!(!message.contains(short), "{message}");
    let message =
        refused(oncewire(&["serve"]).env("ONCEWIRE_ACCESS_KEY", KEY).env("ONCEWIRE_SECONDARY_KEY", short));
    assert!(message.contains("at least 32 bytes") && message.contains("secondary"), "{message}");
    assert!(!message.contains(short), "{message}");
}

#[test]
fn the_key_of_dev_that_everybody_knows_opens_loopback_only() {
    let key = "oncewire-development-key-for-loopback-only";
    for everywhere in [
        &["serve", "--access-key", key, "--listen", "0.0.0.0:0"][..],
        &["serve", "--access-key", KEY, "--secondary-key", key, "--listen", "[::]:0"],
        &["serve", "--access-key", key, "--tls-self-signed", "--tls-listen", "0.0.0.0:0"],
    ] {
        let message = refused(&mut oncewire(everywhere));
        assert!(message.contains("everybody knows") && !message.contains(key), "{message}");
    }
    let running = Running::start(&mut oncewire(&["serve", "--access-key", key, "--listen", "127.0.0.1:0"]));
    running.line();
    let message = refused(oncewire(&["token", "--hub", "h"]).env("ONCEWIRE_ACCESS_KEY", ""));
    assert!(message.contains(key), "who has forgotten it is told: {message}");
}

#[test]
fn an_unknown_configuration_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("oncewire.toml");
    std::fs::write(&file, format!("access_key = \"{KEY}\"\noutbox_mesages_max = 5\n")).unwrap();
    let file = file.to_str().unwrap();
    for command in
        [&mut oncewire(&["serve", "--config", file]), oncewire(&["serve"]).env("ONCEWIRE_CONFIG", file)]
    {
        let message = refused(command);
        assert!(message.contains("line 2") && message.contains("outbox_mesages_max"), "{message}");
        assert!(!message.contains(KEY), "{message}");
    }
}

#[test]
fn a_hub_section_needs_a_hubs_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("oncewire.toml");
    std::fs::write(&file, format!("access_key = \"{KEY}\"\n[hubs.\"no hub\"]\n")).unwrap();
    let message = refused(&mut oncewire(&["serve", "--config", file.to_str().unwrap()]));
    assert!(message.contains("no hub"), "{message}");
}

#[test]
fn a_missing_configuration_file_is_named() {
    let message =
        refused(&mut oncewire(&["serve", "--access-key", KEY, "--config", "/nowhere/oncewire.toml"]));
    assert!(message.contains("/nowhere/oncewire.toml"), "{message}");
}

#[test]
fn wrong_usage_exits_2() {
    for arguments in [
        &["serve", "--access-key", KEY, "--store", "tape"][..],
        &["serve", "--access-key", KEY, "--durability", "hope"],
        &["log", "verify"],
        &["log"],
        &["serve", "--access-key", KEY, "--listen", "8080"],
        &["serve", "--access-key", KEY, "--public-url", "ws://chat.example.com"],
        &["serve", "--access-key", KEY, "--allowed-origin", "chat.example.com"],
        &["serve", "--access-key", KEY, "--allowed-origin", "https://chat.example.com/path"],
        &["serve", "--access-key", KEY, "--log", "oncewire=loud"],
        &["serve", "--unknown"],
        &["dev", "--listen", "0.0.0.0:0"],
        &["token", "--access-key", KEY],
        &["token", "--hub", "no hub", "--access-key", KEY],
        &["token", "--hub", "chat"],
        &["token", "--hub", "chat", "--access-key", "short"],
        &["token", "--hub", "chat", "--access-key", KEY, "--minutes", "0"],
        &["token", "--hub", "chat", "--access-key", KEY, "--group", " "],
        &["token", "--hub", "chat", "--access-key", KEY, "--role", ""],
        &["token", "--hub", "chat", "--access-key", KEY, "--role", "webpubsub.sendToGroup", "--role", " "],
        &["token", "--hub", "chat", "--access-key", KEY, "--endpoint", "wss://chat.example.com"],
        &["unknown"],
        &[],
    ] {
        let message = refused(&mut oncewire(arguments));
        assert!(!message.contains(KEY), "{message}");
    }
}

#[test]
fn serve_prints_where_it_listens_answers_health_and_ends_well_at_a_signal() {
    for signal in ["TERM", "INT"] {
        let running =
            Running::start(&mut oncewire(&["serve", "--access-key", KEY, "--listen", "127.0.0.1:0"]));
        let (endpoint, key) = connection_string(&running.line());
        assert_eq!(key, KEY);
        let address = address(&endpoint);
        assert_ne!(address.port(), 0);
        for method in ["HEAD", "GET"] {
            let answer = health(address, method);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        }
        running.signal(signal);
        let (code, log) = running.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains(KEY), "{log}");
    }
}

#[test]
fn the_key_is_printed_neither_into_a_pipe_nor_into_a_file_unless_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out");
    let serve = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:0"];
    for unset in [None, Some(""), Some("false")] {
        let mut command = oncewire(&serve);
        match unset {
            None => command.env_remove("ONCEWIRE_PRINT_CONNECTION_STRING"),
            Some(value) => command.env("ONCEWIRE_PRINT_CONNECTION_STRING", value),
        };
        let running = Running::start(&mut command);
        let line = running.line();
        let endpoint = line.strip_prefix("ready: ").unwrap();
        assert!(health(address(endpoint), "HEAD").starts_with("HTTP/1.1 200 "), "{line}");
        running.signal("TERM");
        let (code, log) = running.end();
        assert_eq!((code, log.contains(KEY)), (Some(0), false), "{log}");
    }
    let asked = [&serve[..], &["--print-connection-string"]].concat();
    let running = Running::start(oncewire(&asked).env_remove("ONCEWIRE_PRINT_CONNECTION_STRING"));
    assert_eq!(connection_string(&running.line()).1, KEY);
    drop(running);

    let mut command = oncewire(&serve);
    command.env_remove("ONCEWIRE_PRINT_CONNECTION_STRING").stdout(std::fs::File::create(&file).unwrap());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let said = || std::fs::read_to_string(&file).unwrap();
    let begun = std::time::Instant::now();
    while !said().ends_with('\n') && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said().starts_with("ready: http://127.0.0.1:") && !said().contains(KEY), "{}", said());
}

#[test]
fn every_flag_of_serve_is_also_a_variable() {
    let running = Running::start(
        oncewire(&["serve"])
            .env("ONCEWIRE_LISTEN", "0.0.0.0:0")
            .env("ONCEWIRE_ACCESS_KEY", KEY)
            .env("ONCEWIRE_SECONDARY_KEY", KEY.to_uppercase())
            .env("ONCEWIRE_STORE", "memory")
            .env("ONCEWIRE_DATA_DIR", "unused")
            .env("ONCEWIRE_DURABILITY", "memory")
            .env("ONCEWIRE_DEMO", "true")
            .env("ONCEWIRE_PUBLIC_URL", "https://chat.example.com/wps,https://other.example.com")
            .env("ONCEWIRE_ALLOWED_ORIGIN", "https://app.example.com,http://localhost:3000")
            .env("ONCEWIRE_LOG", "trace")
            .env("ONCEWIRE_LOG_FORMAT", "json"),
    );
    assert_eq!(
        running.line(),
        format!("connection string: Endpoint=https://chat.example.com/wps;AccessKey={KEY};Version=1.0;")
    );
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.is_empty() && log.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{log}");
    assert!(!log.contains(KEY) && !log.contains(&KEY.to_uppercase()), "{log}");
}

#[test]
fn variables_that_are_set_to_nothing_count_as_not_set() {
    const VARIABLES: [&str; 9] = [
        "ONCEWIRE_LISTEN",
        "ONCEWIRE_SECONDARY_KEY",
        "ONCEWIRE_STORE",
        "ONCEWIRE_DATA_DIR",
        "ONCEWIRE_PUBLIC_URL",
        "ONCEWIRE_DEMO",
        "ONCEWIRE_CONFIG",
        "ONCEWIRE_LOG",
        "ONCEWIRE_LOG_FORMAT",
    ];
    // The usual data directory is in the working directory.
    let directory = tempfile::tempdir().unwrap();
    let mut command = oncewire(&["serve", "--listen", "127.0.0.1:0"]);
    command.current_dir(&directory).envs(VARIABLES.map(|name| (name, ""))).env("ONCEWIRE_ACCESS_KEY", KEY);
    let running = Running::start(&mut command);
    let (endpoint, _) = connection_string(&running.line());
    assert!(address(&endpoint).ip().is_loopback());
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("INFO"), "the level is the usual one: {log}");

    let (code, token, _) = finish(
        oncewire(&["token", "--hub", "chat"])
            .env("ONCEWIRE_ACCESS_KEY", KEY)
            .env("ONCEWIRE_USER", "")
            .env("ONCEWIRE_ROLE", "")
            .env("ONCEWIRE_GROUP", "")
            .env("ONCEWIRE_MINUTES", "")
            .env("ONCEWIRE_PUBLIC_URL", ""),
    );
    assert_eq!(code, 0);
    assert!(token.starts_with("ws://127.0.0.1:7080/client/hubs/chat?"), "{token}");
    refused(oncewire(&["token", "--hub", "chat"]).env("ONCEWIRE_ACCESS_KEY", ""));
}

#[test]
fn a_wildcard_without_a_public_url_is_announced_as_loopback() {
    let running = Running::start(&mut oncewire(&["serve", "--access-key", KEY, "--listen", "0.0.0.0:0"]));
    let (endpoint, _) = connection_string(&running.line());
    assert!(address(&endpoint).ip().is_loopback());
    assert!(health(address(&endpoint), "HEAD").starts_with("HTTP/1.1 200 "));
}

#[test]
fn flags_win_over_variables_and_both_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("oncewire.toml");
    std::fs::write(
        &file,
        "listen = \"192.0.2.1:1\"\naccess_key = \"the-key-of-the-file-0123456789abcdef\"\n",
    )
    .unwrap();
    let running = Running::start(
        oncewire(&["serve", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"])
            .env("ONCEWIRE_LISTEN", "192.0.2.2:2")
            .env("ONCEWIRE_ACCESS_KEY", KEY),
    );
    let (endpoint, key) = connection_string(&running.line());
    assert_eq!((address(&endpoint).ip().is_loopback(), key.as_str()), (true, KEY));
}

#[test]
fn doubtful_settings_are_logged_as_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("oncewire.toml");
    std::fs::write(&file, "session_retention_seconds = 5\n").unwrap();
    let running = Running::start(
        oncewire(&[
            "serve",
            "--access-key",
            KEY,
            "--listen",
            "127.0.0.1:0",
            "--config",
            file.to_str().unwrap(),
        ])
        .env("ONCEWIRE_LISTN", "127.0.0.1:1"),
    );
    running.line();
    running.signal("TERM");
    let (_, log) = running.end();
    assert!(log.contains("WARN") && log.contains("session_retention_seconds"), "{log}");
    assert!(log.contains("ONCEWIRE_LISTN") && log.contains("did you mean ONCEWIRE_LISTEN?"), "{log}");
}

#[test]
fn serve_has_the_demo_only_if_asked_and_says_whom_it_is_for() {
    for (arguments, status) in [(&[][..], "404"), (&["--demo"], "200")] {
        let common = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:0"];
        let running = Running::start(&mut oncewire(&[&common, arguments].concat()));
        let (endpoint, _) = connection_string(&running.line());
        for path in ["/", "/demo/status"] {
            let answer = ask(address(&endpoint), "GET", path);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        running.signal("TERM");
        let (_, log) = running.end();
        assert_eq!(log.contains("WARN") && log.contains("tokens for the hub demo"), status == "200", "{log}");
    }
}

#[test]
fn dev_serves_with_a_key_of_its_own_and_prints_a_ready_url() {
    let running = Running::start(
        oncewire(&["dev", "--listen", "127.0.0.1:0"]).env("ONCEWIRE_ACCESS_KEY", "not for dev"),
    );
    let page = running.line();
    let page = page.strip_prefix("demo page: ").unwrap();
    let (endpoint, key) = connection_string(&running.line());
    assert_eq!(page, format!("{endpoint}/"));
    let host = address(&endpoint).to_string();
    let line = running.line();
    let url = line.strip_prefix("client URL: ").unwrap();
    assert!(url.starts_with(&format!("ws://{host}/client/hubs/")), "{url}");
    let (_, hub) = url.split_once('?').unwrap().0.rsplit_once('/').unwrap();
    assert!(ask(address(&endpoint), "GET", "/").starts_with("HTTP/1.1 200 "));
    let claims = verify(url, &host, hub, &key, 0).unwrap();
    assert_eq!(claims.roles, ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"]);
    let snippet = running.line_with("node ");
    assert!(snippet.contains(url), "{snippet}");
    running.signal("TERM");
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn token_prints_a_url_whose_token_verifies() {
    let (code, stdout, stderr) = finish(&mut oncewire(&[
        "token",
        "--hub",
        "Chat",
        "--user",
        "ann",
        "--role",
        "webpubsub.joinLeaveGroup",
        "--role",
        "webpubsub.sendToGroup.a,b",
        "--group",
        "g1",
        "--group",
        "g2",
        "--minutes",
        "10",
        "--access-key",
        KEY,
        "--endpoint",
        "https://chat.example.com/",
    ]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let url = stdout.trim_end();
    assert!(url.starts_with("wss://chat.example.com/client/hubs/Chat?access_token="), "{url}");
    let expected = ClientClaims {
        user_id: Some("ann".to_owned()),
        roles: vec!["webpubsub.joinLeaveGroup".to_owned(), "webpubsub.sendToGroup.a,b".to_owned()],
        groups: vec!["g1".to_owned(), "g2".to_owned()],
    };
    assert_eq!(verify(url, "chat.example.com", "chat", KEY, 0), Ok(expected));
    // Ten minutes, and the five minutes by which clocks may differ.
    assert!(verify(url, "chat.example.com", "chat", KEY, 14 * 60).is_ok());
    assert_eq!(verify(url, "chat.example.com", "chat", KEY, 16 * 60), Err(TokenError::Expired));
}

#[test]
fn token_takes_key_and_public_url_from_the_environment() {
    let mut command = oncewire(&["token", "--hub", "chat"]);
    let (code, stdout, _) = finish(command.env("ONCEWIRE_ACCESS_KEY", KEY));
    assert_eq!(code, 0);
    let url = stdout.trim_end();
    assert!(url.starts_with("ws://127.0.0.1:7080/client/hubs/chat?access_token="), "{url}");
    assert_eq!(verify(url, "127.0.0.1:7080", "chat", KEY, 0), Ok(ClientClaims::default()));

    let (_, stdout, _) = finish(command.env("ONCEWIRE_PUBLIC_URL", "https://a.example/x,https://b.example"));
    assert!(stdout.starts_with("wss://a.example/x/client/hubs/chat?"), "{stdout}");
}

#[test]
fn help_explains_and_shows_no_key() {
    let secret = "help-must-not-show-this-0123456789abcdef";
    for arguments in
        [&["--help"][..], &["serve", "--help"], &["serve", "-h"], &["dev", "--help"], &["token", "--help"]]
    {
        let mut command = oncewire(arguments);
        let (code, stdout, _) =
            finish(command.env("ONCEWIRE_ACCESS_KEY", secret).env("ONCEWIRE_SECONDARY_KEY", secret));
        assert_eq!(code, 0);
        assert!(!stdout.contains(secret), "{stdout}");
    }
    let (_, stdout, _) = finish(&mut oncewire(&["--help"]));
    for word in ["serve", "dev", "token", "Examples:", "Exit codes:"] {
        assert!(stdout.contains(word), "{word} is missing in\n{stdout}");
    }
    assert_eq!(finish(&mut oncewire(&["--version"])).0, 0);
}

/// Serves over a new data directory, and ends well.
fn serve_once(directory: &Path) {
    let running = Running::start(&mut oncewire_in(directory, &["dev", "--listen", "127.0.0.1:0"]));
    running.line();
    let (endpoint, _) = connection_string(&running.line());
    let line = running.line();
    let path = line.strip_prefix("client URL: ws://").unwrap().split_once('/').unwrap().1.to_owned();
    // A hub is there once it has a client.
    let mut stream = TcpStream::connect(address(&endpoint)).unwrap();
    let head = format!(
        "GET /{path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: json.reliable.webpubsub.azure.v1\r\n\r\n",
        address(&endpoint)
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn sessions_are_on_the_disk_by_default_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    let mode =
        |path: &str| std::fs::metadata(directory.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data"), mode("data/reconnection-secret")), (0o700, 0o600));
    assert!(directory.path().join("data/hubs/chat").is_dir());
}

#[test]
fn a_data_directory_that_is_in_use_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(&mut oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]));
    running.line();
    for arguments in [
        &["dev", "--listen", "127.0.0.1:0"][..],
        &["log", "verify", "--data-dir", "data"],
        &["log", "new-epoch", "--data-dir", "data"],
    ] {
        let (code, stdout, stderr) = finish(&mut oncewire_in(directory.path(), arguments));
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains("data is in use by another process"), "{stderr}");
    }
}

#[test]
fn a_data_directory_that_cannot_be_made_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data"), "a file").unwrap();
    let (code, stdout, stderr) =
        finish(&mut oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]));
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("oncewire: the data directory data is a file"), "{stderr}");
}

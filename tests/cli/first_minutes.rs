//! What somebody meets who has just come: errors that say what to do, and what is printed to try first.

use super::*;

/// The endpoint that the first line of `serve` tells, with the key or without.
fn told_endpoint(running: &Running) -> String {
    let line = running.line();
    match line.strip_prefix("ready: ") {
        Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
        None => connection_string(&line).0,
    }
}

#[test]
fn a_name_in_place_of_an_address_was_refused() {
    let running = Running::start(&mut oncewire(&["serve", "--access-key", KEY, "--listen", "localhost:0"]));
    assert!(address(&told_endpoint(&running)).ip().is_loopback());
    let running = Running::start(&mut oncewire(&["dev", "--listen", "localhost:0"]));
    assert!(running.line().starts_with("demo page: http://127.0.0.1:"));
    let message = refused(&mut oncewire(&["serve", "--access-key", KEY, "--listen", "7080"]));
    assert!(message.contains("localhost:7080"), "{message}");
}

#[test]
fn a_public_url_without_its_scheme_was_called_a_relative_one() {
    let serve = &["serve", "--access-key", KEY, "--public-url"][..];
    let token = &["token", "--hub", "chat", "--access-key", KEY, "--endpoint"][..];
    for command in [serve, token] {
        for (host, scheme) in [
            ("chat.example.com", "https"),
            ("chat.example.com:8443", "https"),
            ("localhost:7080", "http"),
            ("127.0.0.1:7080", "http"),
        ] {
            let message = refused(&mut oncewire(&[command, &[host]].concat()));
            assert!(message.contains(&format!("write {scheme}://{host}")), "{message}");
        }
    }
}

#[test]
fn a_bad_name_of_a_hub_was_not_told_which_character_is_not_allowed() {
    let message = refused(&mut oncewire(&["token", "--hub", "a b", "--access-key", KEY]));
    assert!(
        message.contains("--hub: ' ' is not allowed") && message.contains("letters, digits"),
        "{message}"
    );
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("oncewire.toml"), "[hubs.\"a-b\"]\n").unwrap();
    let arguments = ["serve", "--access-key", KEY, "--config", "oncewire.toml"];
    let message = refused(&mut oncewire_in(directory.path(), &arguments));
    assert!(message.contains("hubs.\"a-b\": '-' is not allowed"), "{message}");
}

#[test]
fn a_missing_data_directory_was_a_missing_lock_and_a_definite_failure() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("empty")).unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    for (place, told) in [
        ("nowhere", "there is no data directory nowhere"),
        ("empty", "empty is there, but it is no data directory"),
        ("file", "the data directory file is a file"),
    ] {
        for command in [
            &["inspect"][..],
            &["verify"],
            &["new-epoch"],
            &["copy", "--to", "copy"],
            &["remove", "--hub", "chat"],
        ] {
            let arguments = [&["log"], command, &["--data-dir", place]].concat();
            let (code, stdout, stderr) = finish(&mut oncewire_in(directory.path(), &arguments));
            assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
            assert!(stderr.contains(told), "{stderr}");
            assert!(!stderr.contains("Definite"), "{stderr}");
        }
    }
}

#[test]
fn a_reader_that_had_enough_was_answered_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    serve_once(directory.path());
    for arguments in [
        &["log", "inspect", "--data-dir", "data"][..],
        &["log", "verify", "--data-dir", "data"],
        &["token", "--hub", "chat", "--access-key", KEY],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = oncewire_in(directory.path(), arguments);
        let output =
            command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // What a shell shows of a command that SIGPIPE has ended.
        assert_eq!((output.status.code(), stderr.as_str()), (Some(141), ""));
    }
}

#[test]
fn a_role_that_allows_nothing_was_not_spoken_of() {
    let token = |role: &str| {
        let (code, stdout, stderr) =
            finish(&mut oncewire(&["token", "--hub", "chat", "--access-key", KEY, "--role", role]));
        assert_eq!((code, stdout.lines().count()), (0, 1), "{stderr}");
        stderr
    };
    for role in ["sendToGroup", "webpubsub.sendtogroup", "webpubsub.joinGroup.news", "admin"] {
        let warning = token(role);
        assert!(warning.contains(&format!("the role {role:?} allows nothing")), "{warning}");
        assert!(warning.contains("webpubsub.sendToGroup"), "{warning}");
    }
    for role in ["webpubsub.sendToGroup", "webpubsub.joinLeaveGroup.news", "webpubsub.sendToGroups.a.*"] {
        assert_eq!(token(role), "", "{role}");
    }
}

#[test]
fn a_token_was_made_for_a_user_whom_the_gateway_then_refused() {
    let message =
        refused(&mut oncewire(&["token", "--hub", "chat", "--access-key", KEY, "--user", "a\r\nb"]));
    assert!(message.contains("control characters"), "{message}");
}

#[test]
fn token_did_not_read_the_gateways_own_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oncewire.toml");
    let token = |settings: &str, more: &[&str]| {
        std::fs::write(&file, format!("access_key = \"{KEY}\"\n{settings}")).unwrap();
        let arguments = ["token", "--hub", "chat", "--config", file.to_str().unwrap()];
        let (code, stdout, stderr) = finish(&mut oncewire(&[&arguments[..], more].concat()));
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    let url = token("public_urls = [\"https://chat.example.com/wps\"]\nlisten = \"127.0.0.1:9000\"", &[]);
    assert!(url.starts_with("wss://chat.example.com/wps/client/hubs/chat?"), "{url}");
    assert!(verify(url.trim_end(), "chat.example.com", "chat", KEY, 0).is_err(), "it is for the path too");
    let url = token("listen = \"0.0.0.0:9000\"", &[]);
    assert!(url.starts_with("ws://127.0.0.1:9000/client/hubs/chat?"), "{url}");
    assert!(verify(url.trim_end(), "127.0.0.1:9000", "chat", KEY, 0).is_ok());
    let url = token("tls_self_signed = true\ntls_listen = \"127.0.0.1:9443\"", &[]);
    assert!(url.starts_with("wss://127.0.0.1:9443/client/hubs/chat?"), "{url}");
    let other = "another-key-of-the-tests-0123456789abcdef";
    let url = token("", &["--access-key", other, "--endpoint", "http://localhost:9001"]);
    assert!(
        verify(url.trim_end(), "localhost:9001", "chat", other, 0).is_ok(),
        "flags win over the file: {url}"
    );
    let (code, _, stderr) =
        finish(&mut oncewire(&["token", "--hub", "chat", "--config", "/nowhere/oncewire.toml"]));
    assert_eq!((code, stderr.contains("/nowhere/oncewire.toml")), (2, true), "{stderr}");
}

#[test]
fn the_printed_endpoint_was_the_address_although_there_is_a_public_url() {
    let arguments = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:0"];
    let arguments = [&arguments[..], &["--public-url", "https://chat.example.com/wps"]].concat();
    let running = Running::start(&mut oncewire(&arguments));
    assert_eq!(told_endpoint(&running), "https://chat.example.com/wps");
}

#[test]
fn dev_says_what_plain_http_asks_of_the_javascript_sdk_and_which_process_to_kill() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(&mut oncewire_in(directory.path(), &["dev", "--listen", "127.0.0.1:0"]));
    let line = running.line_with("For plain http");
    assert!(line.contains("allowInsecureConnection: true") && line.contains("--tls"), "{line}");
    let kill = running.line_with("kill -9 ");
    let process: u32 = kill.strip_prefix("kill -9 ").unwrap().parse().unwrap();
    assert_ne!(
        process,
        running.child.id(),
        "it is the process that serves, not the one that starts it again"
    );
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    running.line_with("killed and started again: process ");
    running.signal("TERM");
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn dev_promised_that_nothing_is_lost_where_everything_is() {
    for (arguments, outcome) in [
        (&[][..], "Nothing is lost, and nothing comes twice:"),
        (&["--durability", "os"], "Nothing is lost, and nothing comes twice:"),
        (&["--durability", "memory"], "With --durability memory everything is lost"),
        (&["--store", "memory"], "With --store memory everything is lost"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let arguments = [&["dev", "--listen", "127.0.0.1:0"], arguments].concat();
        let running = Running::start(&mut oncewire_in(directory.path(), &arguments));
        let line = running.line_with("Meanwhile");
        assert!(line.contains(outcome), "{arguments:?}: {line}");
        assert_eq!(line.contains("Nothing is lost"), outcome.starts_with("Nothing"), "{arguments:?}: {line}");
    }
}

#[test]
fn dev_with_tls_says_where_its_certificate_is_and_who_takes_it_how() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["dev", "--tls", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0"];
    let running = Running::start(&mut oncewire_in(directory.path(), &arguments));
    assert!(running.line().starts_with("demo page: https://"));
    let line = running.line_with("certificate: ");
    let path = line.strip_prefix("certificate: ").unwrap();
    assert!(Path::new(path).is_absolute());
    let certificate = std::fs::read_to_string(path).unwrap();
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{certificate}");
    for variable in ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"] {
        let line = std::iter::repeat_with(|| running.line()).find(|line| line.contains(variable)).unwrap();
        assert!(line.contains(&format!("{variable}='{path}'")), "{line}");
    }
    // The program to try needs no certificate.
    assert!(running.line_with("node ").contains("ws://127.0.0.1:"));
    running.signal("TERM");
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn an_address_in_use_is_a_failure_while_running() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = ["serve", "--access-key", KEY, "--store", "memory", "--listen"];
    let refused_at = |arguments: &[&str], flag: &str| {
        let (code, stdout, stderr) = finish(&mut oncewire(&[&serve[..], arguments].concat()));
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains(&address) && stderr.contains("another oncewire"), "{stderr}");
        assert!(stderr.contains(&format!("? {flag} 127.0.0.1:0 takes a free port")), "{stderr}");
    };
    refused_at(&[&address], "--listen");
    refused_at(&["127.0.0.1:0", "--admin-listen", &address], "--admin-listen");
    refused_at(&["127.0.0.1:0", "--tls-self-signed", "--tls-listen", &address], "--tls-listen");
}

#[test]
fn two_listeners_at_one_address_were_told_of_another_oncewire() {
    let serve = ["serve", "--access-key", KEY, "--listen", "127.0.0.1:7099"];
    for (arguments, flags) in [
        (&["--admin-listen", "127.0.0.1:7099"][..], ["--listen", "--admin-listen"]),
        (&["--admin-listen", "0.0.0.0:7099"], ["--listen", "--admin-listen"]),
        (&["--tls-self-signed", "--tls-listen", "127.0.0.1:7099"], ["--listen", "--tls-listen"]),
        (
            &["--tls-self-signed", "--tls-listen", "[::]:1", "--admin-listen", "[::1]:1"],
            ["--tls-listen", "--admin-listen"],
        ),
    ] {
        let message = refused(&mut oncewire(&[&serve[..], arguments].concat()));
        assert!(message.contains("want the same port"), "{message}");
        assert!(flags.iter().all(|flag| message.contains(flag)), "{flags:?}: {message}");
    }
    let arguments = ["dev", "--tls", "--listen", "127.0.0.1:7099", "--tls-listen", "127.0.0.1:7099"];
    assert!(refused(&mut oncewire(&arguments)).contains("--tls-listen"));
}

#[test]
fn a_data_directory_that_cannot_be_made_was_only_an_error_of_the_system() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--data-dir", "file/data"];
    let (code, stdout, stderr) = finish(&mut oncewire_in(directory.path(), &arguments));
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("the data directory can't be created: file/data: "), "{stderr}");
}

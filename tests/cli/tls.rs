//! https as it is configured.

use std::path::Path;

use crate::*;

/// A certificate and its key in files of these names.
fn write_pair(directory: &Path, certificate: &str, key: &str) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join(certificate), pair.cert.pem()).unwrap();
    std::fs::write(directory.join(key), pair.signing_key.serialize_pem()).unwrap();
}

#[test]
fn a_certificate_or_key_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "cert.pem", "key.pem");
    write_pair(directory.path(), "other-cert.pem", "other-key.pem");
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("empty.pem", "");
    write("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    write("garbage-key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    write("cut.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    for (certificate, key, said) in [
        ("cert.pem", "nowhere.pem", "nowhere.pem: "),
        ("nowhere.pem", "key.pem", "nowhere.pem: "),
        ("empty.pem", "key.pem", "no certificate in empty.pem"),
        ("key.pem", "key.pem", "no certificate in key.pem"),
        ("garbage.pem", "key.pem", "garbage.pem can't be understood"),
        ("cut.pem", "key.pem", "cut.pem can't be understood"),
        ("cert.pem", "empty.pem", "no private key in empty.pem"),
        ("cert.pem", "cert.pem", "no private key in cert.pem"),
        ("cert.pem", "garbage-key.pem", "garbage-key.pem can't be used"),
        ("cert.pem", "other-key.pem", "other-key.pem is not that of the certificate in cert.pem"),
    ] {
        let message = refused(&mut oncewire_in(
            directory.path(),
            &[
                "serve",
                "--access-key",
                KEY,
                "--tls-listen",
                "127.0.0.1:0",
                "--tls-cert",
                certificate,
                "--tls-key",
                key,
            ],
        ));
        assert!(message.contains(said), "{message}");
        assert!(!message.contains("AAAA"), "{message}");
    }
    let both = refused(&mut oncewire(&[
        "serve",
        "--access-key",
        KEY,
        "--tls-cert",
        "c",
        "--tls-key",
        "k",
        "--tls-self-signed",
    ]));
    assert!(both.contains("tls_self_signed are both set"), "{both}");
    for (flag, missing) in [("--tls-cert", "tls_key is not"), ("--tls-key", "tls_cert is not")] {
        let message = refused(&mut oncewire(&["serve", "--access-key", KEY, flag, "cert.pem"]));
        assert!(message.contains(missing), "{message}");
    }
}

#[test]
fn with_tls_the_connection_string_says_https_and_http_is_served_where_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "cert.pem", "key.pem");
    let secured = ["serve", "--access-key", KEY, "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let with = |more: &[&str]| {
        let mut command = oncewire(&secured);
        Running::start(command.args(more).current_dir(directory.path()))
    };
    let log = |running: Running| {
        let (endpoint, _) = connection_string(&running.line());
        assert!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");
        running.signal("TERM");
        let (code, log) = running.end();
        assert_eq!(code, Some(0), "{log}");
        log
    };
    let alone = log(with(&["--tls-listen", "127.0.0.1:0"]));
    assert!(alone.contains("https") && !alone.contains("scheme=http "), "{alone}");
    let both = log(with(&["--tls-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]));
    assert!(both.contains("scheme=https ") && both.contains("scheme=http "), "{both}");
    let of_variables = Running::start(
        oncewire(&["serve", "--access-key", KEY])
            .current_dir(directory.path())
            .env("ONCEWIRE_TLS_CERT", "cert.pem")
            .env("ONCEWIRE_TLS_KEY", "key.pem")
            .env("ONCEWIRE_TLS_LISTEN", "127.0.0.1:0"),
    );
    log(of_variables);
}

/// The certificate for clients that a start with this endpoint shows.
fn kept_certificate(directory: &Path, arguments: &[&str]) -> String {
    let running = Running::start(oncewire_in(directory, arguments).env("ONCEWIRE_TLS_LISTEN", "127.0.0.1:0"));
    let (endpoint, _) = connection_string(&running.line());
    assert!(endpoint.starts_with("https://"), "{endpoint}");
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("self-signed-certificate.pem") && !log.contains("PRIVATE"), "{log}");
    std::fs::read_to_string(directory.join("data/self-signed-certificate.pem")).unwrap()
}

#[test]
fn a_self_signed_certificate_is_kept_in_the_data_directory_and_shown_again() {
    let directory = tempfile::tempdir().unwrap();
    let serve = ["serve", "--access-key", KEY, "--tls-self-signed"];
    let first = kept_certificate(directory.path(), &serve);
    assert!(first.starts_with("-----BEGIN CERTIFICATE-----"), "{first}");
    let key = directory.path().join("data/self-signed.pem");
    assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(kept_certificate(directory.path(), &serve), first);
    let named = [&serve[..], &["--public-url", "https://chat.example.com"]].concat();
    assert_ne!(kept_certificate(directory.path(), &named), first);
}

#[test]
fn dev_serves_https_beside_http_when_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls-self-signed"];
    let running = Running::start(&mut oncewire_in(directory.path(), &arguments));
    let (endpoint, _) = connection_string(&running.line_with("connection string"));
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");
    let line = running.line_with("client URL: ");
    assert!(line.starts_with("client URL: wss://127.0.0.1:"), "{line}");
    let snippet = running.line_with("node ");
    assert!(snippet.contains("const url = \"ws://127.0.0.1:"), "{snippet}");
    running.signal("TERM");
    let (_, log) = running.end();
    assert!(log.contains("scheme=https ") && log.contains("scheme=http "), "{log}");
    refused(&mut oncewire(&["dev", "--tls-listen", "0.0.0.0:0"]));
}

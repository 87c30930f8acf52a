use std::io::Write;

use super::*;

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_toml(text, Overrides::default())
}

fn refusal(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_gives_the_documented_defaults() {
    let config = read("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.http_address(), Some("127.0.0.1:7080".parse().unwrap()));
    assert_eq!(config.https_address(), None);
    assert_eq!(config.access_key, None);
    assert_eq!((config.store, config.data_dir.to_str()), (Store::Disk, Some("data")));
    assert_eq!(config.hub("any").durability, Durability::Sync);
    assert_eq!(config.session_retention_seconds, 60);
    assert_eq!(config.outbox_messages_max, 30_000);
    assert_eq!(config.outbox_bytes_max, 33_554_432);
    assert_eq!(config.ack_window_ids, 10_000);
    assert_eq!(config.websocket_ping_seconds, 20);
    assert_eq!(config.websocket_message_bytes_max, 1_048_576);
    assert_eq!(config.websocket_read_buffer_bytes, 512);
    assert_eq!(config.pending_requests_max, 1024);
    assert_eq!(config.pending_request_bytes_max, 4_194_304);
    assert_eq!(config.pending_reply_bytes_max, 65_536);
    assert_eq!(config.connections_max, None);
    assert!(!config.hub("any").anonymous);
    assert_eq!(config.warnings(), []);
}

#[test]
fn every_key_can_be_set() {
    let config = read(
        r#"
        listen = "0.0.0.0:9000"
        default_listen = "0.0.0.0:9001"
        admin_listen = "127.0.0.1:9001"
        tls_cert = "/etc/oncewire/cert.pem"
        tls_key = "/etc/oncewire/key.pem"
        tls_self_signed = false
        tls_listen = "0.0.0.0:9443"
        access_key = "0123456789abcdef0123456789abcdef"
        secondary_access_key = "fedcba9876543210fedcba9876543210"
        public_urls = ["https://chat.example.com/wps"]
        allowed_origins = ["https://app.example.com", "*"]
        store = "memory"
        data_dir = "/var/lib/oncewire"
        durability = "memory"
        session_retention_seconds = 31
        outbox_messages_max = 2
        outbox_bytes_max = 3
        ack_window_ids = 1004
        websocket_ping_seconds = 5
        websocket_message_bytes_max = 6
        websocket_read_buffer_bytes = 2048
        handshakes_pending_max = 7
        http_connections_max = 70
        http_keep_alive_seconds = 71
        http_write_timeout_seconds = 72
        connections_per_address_max = 73
        trusted_proxies = ["10.0.0.0/8", "::1"]
        header_read_timeout_seconds = 8
        handshake_timeout_seconds = 9
        request_timeout_seconds = 10
        http_body_bytes_max = 11
        connections_max = 12
        sessions_max = 99
        sessions_per_user_max = 97
        hubs_max = 98
        message_memory_bytes_max = 13
        pending_requests_max = 14
        pending_request_bytes_max = 15
        pending_reply_bytes_max = 16
        groups_per_session_max = 17
        idempotency = "off"
        idempotency_window_seconds = 98
        idempotency_requests_max = 99
        hub_shards = 3
        demo = true
        metrics = true
        start_with_damaged_hubs = true

        [hubs."chat"]
        anonymous = true
        on_event_failure = "close"
        durability = "memory"
        session_retention_seconds = 90
        outbox_messages_max = 91
        outbox_bytes_max = 92
        ack_window_ids = 1093
        websocket_ping_seconds = 94
        idempotency = "strict"
        idempotency_window_seconds = 95
        idempotency_requests_max = 96
        "#,
    )
    .unwrap();
    let expected = Config {
        listen: Some("0.0.0.0:9000".parse().unwrap()),
        default_listen: "0.0.0.0:9001".parse().unwrap(),
        admin_listen: Some("127.0.0.1:9001".parse().unwrap()),
        tls_cert: Some("/etc/oncewire/cert.pem".into()),
        tls_key: Some("/etc/oncewire/key.pem".into()),
        tls_self_signed: false,
        tls_listen: "0.0.0.0:9443".parse().unwrap(),
        access_key: Some(Secret::new("0123456789abcdef0123456789abcdef")),
        secondary_access_key: Some(Secret::new("fedcba9876543210fedcba9876543210")),
        public_urls: vec!["https://chat.example.com/wps".parse().unwrap()],
        allowed_origins: vec!["https://app.example.com".parse().unwrap(), AllowedOrigin::Any],
        store: Store::Memory,
        data_dir: "/var/lib/oncewire".into(),
        durability: Some(Durability::Memory),
        session_retention_seconds: 31,
        outbox_messages_max: 2,
        outbox_bytes_max: 3,
        ack_window_ids: 1004,
        websocket_ping_seconds: 5,
        websocket_message_bytes_max: 6,
        websocket_read_buffer_bytes: 2048,
        handshakes_pending_max: 7,
        http_connections_max: 70,
        http_keep_alive_seconds: 71,
        http_write_timeout_seconds: 72,
        connections_per_address_max: Some(73),
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        header_read_timeout_seconds: 8,
        handshake_timeout_seconds: 9,
        request_timeout_seconds: 10,
        http_body_bytes_max: 11,
        connections_max: Some(12),
        sessions_max: Some(99),
        sessions_per_user_max: Some(97),
        hubs_max: Some(98),
        message_memory_bytes_max: 13,
        pending_requests_max: 14,
        pending_request_bytes_max: 15,
        pending_reply_bytes_max: 16,
        groups_per_session_max: 17,
        idempotency: Idempotency::Off,
        idempotency_window_seconds: 98,
        idempotency_requests_max: 99,
        hub_shards: 3,
        demo: true,
        metrics: true,
        start_with_damaged_hubs: true,
        is_key_public: false,
        hubs: BTreeMap::from([(
            "chat".to_owned(),
            HubOverrides {
                anonymous: true,
                on_event_failure: EventFailure::Close,
                event_handlers: Vec::new(),
                durability: Some(Durability::Memory),
                session_retention_seconds: Some(90),
                outbox_messages_max: Some(91),
                outbox_bytes_max: Some(92),
                ack_window_ids: Some(1093),
                websocket_ping_seconds: Some(94),
                idempotency: Some(Idempotency::Strict),
                idempotency_window_seconds: Some(95),
                idempotency_requests_max: Some(96),
            },
        )]),
    };
    assert_eq!(config, expected);
    assert_eq!(config.warnings(), [ConfigWarning::DemoForEverybody]);
}

#[test]
fn a_hub_takes_what_it_does_not_set_from_the_general_keys() {
    let config = read(
        "session_retention_seconds = 45\nack_window_ids = 2000\ndurability = \"os\"\n\
         [hubs.Chat]\nanonymous = true\nack_window_ids = 3000\ndurability = \"memory\"",
    )
    .unwrap();
    for name in ["chat", "CHAT", "Chat"] {
        let hub = config.hub(name);
        assert!(hub.anonymous);
        assert_eq!((hub.session_retention_seconds, hub.ack_window_ids), (45, 3000));
        assert_eq!(hub.durability, Durability::Memory);
    }
    let other = config.hub("other");
    assert!(!other.anonymous);
    assert_eq!((other.session_retention_seconds, other.ack_window_ids), (45, 2000));
    assert_eq!(other.durability, Durability::Os);
}

#[test]
fn overrides_win_over_the_file_and_the_file_over_the_defaults() {
    let file = r#"
        listen = "127.0.0.1:1"
        tls_cert = "/file/cert.pem"
        tls_key = "/file/key.pem"
        tls_listen = "127.0.0.1:4"
        access_key = "the file's key"
        secondary_access_key = "the file's other key"
        public_urls = ["https://file.example"]
        allowed_origins = ["https://page.file.example", "https://other.file.example"]
        data_dir = "/file"
        "#;
    let overrides = Overrides {
        listen: Some("127.0.0.1:2".parse().unwrap()),
        default_listen: Some("127.0.0.1:5".parse().unwrap()),
        admin_listen: Some("127.0.0.1:5".parse().unwrap()),
        tls_cert: None,
        tls_key: Some("/flag/key.pem".into()),
        tls_self_signed: None,
        tls_listen: Some("127.0.0.1:3".parse().unwrap()),
        access_key: Some(Secret::new("the flag's key")),
        secondary_access_key: None,
        public_urls: vec!["https://flag.example".parse().unwrap()],
        allowed_origins: vec!["https://page.flag.example".parse().unwrap()],
        store: Some(Store::Memory),
        data_dir: Some("/flag".into()),
        durability: Some(Durability::Os),
        demo: Some(true),
        start_with_damaged_hubs: Some(true),
    };
    let config = Config::from_toml(file, overrides).unwrap();
    assert_eq!(config.http_address(), Some("127.0.0.1:2".parse().unwrap()));
    assert_eq!(config.https_address(), Some("127.0.0.1:3".parse().unwrap()));
    assert_eq!(config.admin_listen, Some("127.0.0.1:5".parse().unwrap()));
    assert_eq!(config.tls_cert.as_ref().unwrap().to_str(), Some("/file/cert.pem"));
    assert_eq!(config.tls_key.as_ref().unwrap().to_str(), Some("/flag/key.pem"));
    assert_eq!(config.access_key.as_ref().unwrap().expose(), "the flag's key");
    assert_eq!(config.secondary_access_key.as_ref().unwrap().expose(), "the file's other key");
    assert_eq!(config.public_urls, ["https://flag.example".parse().unwrap()]);
    assert_eq!(config.allowed_origins, ["https://page.flag.example".parse().unwrap()]);
    assert_eq!(config.data_dir.to_str(), Some("/flag"));
    assert_eq!(config.durability, Some(Durability::Os));
    assert!(config.demo && !read(file).unwrap().demo);
    let of_file = read(file).unwrap();
    assert_eq!(of_file.http_address(), Some("127.0.0.1:1".parse().unwrap()));
    assert_eq!(of_file.https_address(), Some("127.0.0.1:4".parse().unwrap()));
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    let message = refusal("listen = \"127.0.0.1:1\"\noutbox_message_max = 5\n");
    assert!(message.contains("line 2") && message.contains("outbox_message_max"), "{message}");
    let message = refusal("[hubs.chat]\nanonymus = true\n");
    assert!(message.contains("hubs.chat") && message.contains("anonymus"), "{message}");
    assert!(
        matches!(read("[limits]\nx = 1"), Err(ConfigError::UnknownKey { key, line: 1, .. }) if key == "limits")
    );
}

#[test]
fn a_wrong_type_is_refused_by_key_and_line() {
    let message = refusal("\nsession_retention_seconds = \"60\"\n");
    assert!(message.contains("line 2") && message.contains("session_retention_seconds"), "{message}");
    let message = refusal("[hubs.chat]\nwebsocket_ping_seconds = 1.5\n");
    assert!(message.contains("hubs.chat.websocket_ping_seconds"), "{message}");
    for (text, key) in [
        ("outbox_messages_max = -1", "outbox_messages_max"),
        ("listen = \"8080\"", "listen"),
        ("store = \"tape\"", "store"),
        ("durability = \"fsync\"", "durability"),
        ("public_urls = \"https://a.example\"", "public_urls"),
        ("public_urls = [\"chat.example.com\"]", "public_urls"),
        ("allowed_origins = [\"chat.example.com\"]", "allowed_origins"),
        ("allowed_origins = \"*\"", "allowed_origins"),
        ("trusted_proxies = [\"proxy\"]", "trusted_proxies"),
        ("is_key_public = true", "is_key_public"),
    ] {
        assert!(refusal(text).contains(key), "{}", refusal(text));
    }
}

#[test]
fn numbers_out_of_range_are_refused_by_key() {
    for (key, minimum, maximum) in [
        ("session_retention_seconds", 1, 604_800),
        ("outbox_messages_max", 1, 1_000_000),
        ("outbox_bytes_max", 1, 1 << 30),
        ("ack_window_ids", 1024, 1_000_000),
        ("websocket_ping_seconds", 1, 120),
        ("websocket_message_bytes_max", 1, 64 << 20),
        ("websocket_read_buffer_bytes", 64, 1 << 20),
        ("handshakes_pending_max", 1, 1_000_000),
        ("http_connections_max", 1, 1_000_000),
        ("http_keep_alive_seconds", 1, 3600),
        ("http_write_timeout_seconds", 1, 300),
        ("connections_per_address_max", 1, 10_000_000),
        ("header_read_timeout_seconds", 1, 300),
        ("handshake_timeout_seconds", 1, 300),
        ("request_timeout_seconds", 1, 300),
        ("connections_max", 1, 10_000_000),
        ("sessions_max", 1, 100_000_000),
        ("sessions_per_user_max", 1, 1_000_000),
        ("hubs_max", 1, 1_000_000),
        ("message_memory_bytes_max", 1, 1_u64 << 40),
        ("pending_requests_max", 1, 10_000),
        ("pending_request_bytes_max", 1, 1 << 30),
        ("pending_reply_bytes_max", 1, 64 << 20),
        ("groups_per_session_max", 1, 1_000_000),
        ("hub_shards", 1, 64),
    ] {
        for good in [minimum, maximum] {
            assert!(read(&format!("{key} = {good}")).is_ok(), "{key} = {good}");
        }
        for bad in [minimum - 1, maximum + 1] {
            let message = refusal(&format!("{key} = {bad}"));
            assert!(message.starts_with(key) && message.contains("out of range"), "{message}");
        }
    }
    assert!(read("http_body_bytes_max = 0").is_ok());
    assert!(refusal("http_body_bytes_max = 67108865").starts_with("http_body_bytes_max"));
    assert!(
        refusal("pending_requests_max = 9\n[hubs.\"chat\"]\nack_window_ids = 8").contains("9 to 1000000")
    );
    let message = refusal("[hubs.\"chat\"]\nwebsocket_ping_seconds = 121");
    assert!(message.starts_with("hubs.\"chat\".websocket_ping_seconds"), "{message}");
}

#[test]
fn doubtful_values_warn() {
    let warnings = |text: &str| read(text).unwrap().warnings();
    let key = |key: &str| key.to_owned();
    assert_eq!(
        warnings("session_retention_seconds = 29"),
        [ConfigWarning::ShortRetention { key: key("session_retention_seconds") }]
    );
    assert_eq!(warnings("session_retention_seconds = 30"), []);
    assert_eq!(
        warnings("pending_requests_max = 999\nack_window_ids = 999"),
        [ConfigWarning::ShortAckWindow { key: key("ack_window_ids") }]
    );
    assert_eq!(warnings("pending_requests_max = 999\nack_window_ids = 1000"), []);
    for durability in ["sync", "os"] {
        let text = format!("store = \"memory\"\n[hubs.chat]\ndurability = \"{durability}\"");
        assert_eq!(
            warnings(&text),
            [ConfigWarning::DurabilityOfMemory { key: key("hubs.\"chat\".durability") }]
        );
        assert_eq!(read(&text).unwrap().hub("chat").durability, Durability::Memory);
    }
}

#[test]
fn a_section_names_a_hub() {
    let message = refusal("[hubs.\"no hub\"]");
    assert!(message.starts_with("hubs.\"no hub\": "), "{message}");
}

#[test]
fn public_urls_are_plain_base_urls() {
    for good in ["http://a.example", "https://a.example:8443/x/y/", "http://[::1]:8080"] {
        assert!(read(&format!("public_urls = [\"{good}\"]")).is_ok(), "{good}");
    }
    for bad in [
        "ws://a.example",
        "ftp://a.example",
        "mailto:a@example",
        "https://user@a.example",
        "https://user:hidden@a.example",
        "https://a.example?x",
        "https://a.example#x",
    ] {
        let message = refusal(&format!("public_urls = [\"https://good.example\", \"{bad}\"]"));
        assert!(message.contains("public_urls: ") && !message.contains("hidden"), "{message}");
    }
}

#[test]
fn a_certificate_and_its_key_come_together() {
    for (text, missing) in [("tls_cert = \"c\"", "tls_key"), ("tls_key = \"k\"", "tls_cert")] {
        assert!(refusal(text).contains(&format!("{missing} is not")), "{}", refusal(text));
    }
    let both = refusal("tls_cert = \"c\"\ntls_key = \"k\"\ntls_self_signed = true");
    assert!(both.contains("tls_self_signed are both set"), "{both}");
    let own = read("tls_self_signed = true").unwrap();
    assert_eq!((own.http_address(), own.https_address()), (None, Some(own.tls_listen)));
}

#[test]
fn with_tls_plain_http_is_served_only_where_it_is_asked_for() {
    const PAIR: &str = "tls_cert = \"c\"\ntls_key = \"k\"\n";
    let config = read(PAIR).unwrap();
    assert_eq!(config.http_address(), None);
    assert_eq!(config.https_address(), Some("127.0.0.1:8443".parse().unwrap()));
    // An image that has another default does not ask for it either.
    let image = read(&format!("{PAIR}default_listen = \"0.0.0.0:7080\"")).unwrap();
    assert_eq!(image.http_address(), None);
    let image = read("default_listen = \"localhost:7081\"").unwrap();
    assert_eq!(image.http_address(), Some("127.0.0.1:7081".parse().unwrap()));
    let both = read(&format!("{PAIR}listen = \"127.0.0.1:8080\"")).unwrap();
    assert_eq!(both.http_address(), Some("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(both.https_address(), config.https_address());
    let without = read("tls_listen = \"127.0.0.1:1\"").unwrap();
    assert_eq!(without.https_address(), None);
    assert_eq!(without.warnings(), [ConfigWarning::HttpsWithoutCertificate]);
}

#[test]
fn one_hub_has_one_section() {
    let message = refusal("[hubs.chat]\n[hubs.Chat]\n");
    assert!(message.contains("\"chat\" is there twice"), "{message}");
}

#[test]
fn the_endpoint_is_one_that_clients_can_reach() {
    let bare = Config::default();
    let public =
        Config { public_urls: vec!["https://chat.example.com/wps/".parse().unwrap()], ..Config::default() };
    let endpoint = |config: &Config, local: &str| config.endpoint(Scheme::Http, local.parse().unwrap());
    assert_eq!(endpoint(&bare, "127.0.0.1:8080"), "http://127.0.0.1:8080");
    assert_eq!(endpoint(&bare, "[::1]:80"), "http://[::1]:80");
    assert_eq!(endpoint(&bare, "0.0.0.0:8080"), "http://127.0.0.1:8080");
    assert_eq!(endpoint(&bare, "[::]:8080"), "http://[::1]:8080");
    assert_eq!(endpoint(&public, "0.0.0.0:8080"), "https://chat.example.com/wps");
    assert_eq!(endpoint(&public, "127.0.0.1:8080"), "https://chat.example.com/wps");
    let secured = |config: &Config, local: &str| config.endpoint(Scheme::Https, local.parse().unwrap());
    assert_eq!(secured(&bare, "0.0.0.0:8443"), "https://127.0.0.1:8443");
    assert_eq!(secured(&public, "0.0.0.0:8443"), "https://chat.example.com/wps");
}

#[test]
fn the_public_host_has_no_port() {
    for (text, host) in [
        ("", "127.0.0.1"),
        ("listen = \"0.0.0.0:9000\"", "127.0.0.1"),
        ("listen = \"[::]:9000\"", "[::1]"),
        ("listen = \"192.0.2.7:80\"", "192.0.2.7"),
        ("tls_self_signed = true\ntls_listen = \"192.0.2.8:443\"", "192.0.2.8"),
        ("public_urls = [\"https://Chat.example.com:8443/wps\", \"https://b.example\"]", "chat.example.com"),
        ("public_urls = [\"http://[2001:db8::1]:80\"]", "[2001:db8::1]"),
    ] {
        assert_eq!(read(text).unwrap().public_host(), host, "{text}");
    }
}

#[test]
fn no_output_holds_a_key() {
    const KEY: &str = "Zq9secretsecretsecretsecretsecret";
    let config = read(&format!("access_key = \"{KEY}\"\nsecondary_access_key = \"{KEY}\"")).unwrap();
    assert!(!format!("{config:?}").contains(KEY));
    let overrides = Overrides { access_key: Some(Secret::new(KEY)), ..Overrides::default() };
    assert!(!format!("{overrides:?}").contains(KEY));
    for text in [
        format!("access_key = {KEY}"),
        format!("access_key = \"{KEY}"),
        format!("access_key = \"{KEY}\\q\""),
        format!("access_key = [\"{KEY}\"]"),
        format!("access_key = {{ {KEY} = 1 }}"),
        format!("access_key = \"{KEY}\" x"),
        format!("access_key: \"{KEY}\""),
        format!("access_key = \"{KEY}\"\naccess_key = \"{KEY}\""),
        "access_key = 77665544332211".to_owned(),
        "access_key = 776655443322.11".to_owned(),
        "secondary_access_key = 1979-05-27T07:32:00Z".to_owned(),
    ] {
        let error = read(&text).unwrap_err();
        let shown = format!("{error} {error:?}");
        for secret in [KEY, "7766554433", "1979"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

#[test]
fn a_file_is_read_and_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("oncewire.toml");
    let missing = Config::load(Some(&path), Overrides::default()).unwrap_err();
    assert!(missing.to_string().contains("oncewire.toml"), "{missing}");
    std::fs::File::create(&path).unwrap().write_all(b"ack_window_ids = 1234").unwrap();
    assert_eq!(Config::load(Some(&path), Overrides::default()).unwrap().ack_window_ids, 1234);
    assert_eq!(Config::load(None, Overrides::default()).unwrap(), Config::default());
}

#[test]
fn idempotency_has_four_values_and_a_name_from_before() {
    let read = |value: &str| read(&format!("idempotency = \"{value}\"")).map(|config| config.idempotency);
    for (value, expected) in [
        ("sends", Idempotency::Sends),
        ("on", Idempotency::Sends),
        ("all", Idempotency::All),
        ("strict", Idempotency::Strict),
        ("off", Idempotency::Off),
    ] {
        assert_eq!(read(value).unwrap(), expected);
    }
    assert!(read("Sends").is_err() && read("").is_err());
    assert_eq!(Config::default().idempotency, Idempotency::Sends);
}

#[test]
fn a_value_of_the_wrong_kind_was_told_in_the_words_of_the_reader() {
    for (text, told) in [
        (
            "session_retention_seconds = \"60\"",
            "line 1: session_retention_seconds: it wants a whole number without quotes",
        ),
        (
            "session_retention_seconds = 1.5",
            "it wants a whole number without quotes: session_retention_seconds = 1",
        ),
        ("hubs_max = -1", "hubs_max: the number is out of range"),
        ("public_urls = \"http://hidden\"", "public_urls: it wants a list: public_urls = [\"…\"]"),
        ("trusted_proxies = \"hidden\"", "trusted_proxies = [\"…\"]"),
        ("tls_cert = 5", "tls_cert: it wants a text in quotes"),
        ("metrics = \"hidden\"", "metrics: it wants true or false, without quotes"),
        (
            "\n[hubs.\"chat\"]\noutbox_messages_max = \"hidden\"",
            "line 3: hubs.chat.outbox_messages_max: it wants a whole",
        ),
    ] {
        let message = Config::from_toml(text, Overrides::default()).unwrap_err().to_string();
        assert!(message.contains(told), "{text}: {message}");
        assert!(!message.contains("hidden") && !message.contains("expected"), "{text}: {message}");
    }
}
